"""Property tests draw the same examples each time, however slow the machine is.

Being here also makes this folder importable, for what tests of several folders share.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
