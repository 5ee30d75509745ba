"""A head start that compiling has over the forward of the prompt that it is for.

Compiling takes some milliseconds of one processor.  Beside a forward that takes all of them it
lasts several times as long, and the forward's threads, which wait for each other, lose more than
it takes.  Once it is done, what the answer begins with by force can be said, and computed with the
prompt.  So the forward waits a little, as long as nobody waits for it who has no constraint to
wait for: once for all that come together, so that it begins in any case.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from structgen.engine.request import Request

# Three of four real schemas take less, a prompt's forward mostly many times as long.
USUAL_S = 0.012


class HeadStart:
    """Of one engine.  Loop thread only."""

    __slots__ = ("_ends_at", "_seconds")

    def __init__(self, seconds: float) -> None:
        """seconds: 0 for none."""
        self._seconds = seconds
        self._ends_at = 0.0  # of time.monotonic

    def begin(self) -> None:
        """Grant one: a request has come, and there is no other."""
        self._ends_at = time.monotonic() + self._seconds

    def left_s(self, requests: Collection[Request]) -> float:
        """Return how long to wait for what these requests wait for, 0 if not at all."""
        if not requests or not all(request.compiling for request in requests):
            return 0.0
        return max(0.0, self._ends_at - time.monotonic())
