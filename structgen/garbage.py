"""How seldom a process that serves looks for garbage in cycles.

As Python has it, it looks after every 700 objects that are there to stay for a while: with 256
answers going on that is several times a step, for next to nothing, as hardly anything here refers
back to itself.  It took a tenth of all that is not the model.
"""

from __future__ import annotations

import gc

# Objects made and not freed, between two looks: some megabytes at most.
ALLOCATIONS = 25_000


def look_seldom() -> None:
    """Never look at what is there now, modules and a vocabulary, and seldom at what comes."""
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    gc.enable()
