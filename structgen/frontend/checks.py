"""Checks under way: what was asked about constraints, until the engine has answered."""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from structgen.errors import StructgenError, from_wire
from structgen.messages import Checked, ConstraintInfo, TextVerdict


class ConstraintCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a constraint that can be used.

    size_bytes: about what it takes in the engine while it is kept.  verdict: on the text, if one
    was given.
    """

    constraint: ConstraintInfo
    size_bytes: int
    verdict: TextVerdict | None = None


class Checks:
    """Used on one event loop.  A check is here from `open` until `discard`."""

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._open: dict[str, asyncio.Future[ConstraintCheck]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> str:
        """Return the id of a check, which no other ever has."""
        return f"check#{next(self._serials)}"

    def open(self, id: str) -> None:
        """Expect the answer to a check."""
        self._open[id] = asyncio.get_running_loop().create_future()

    async def wait(self, id: str) -> ConstraintCheck:
        """Raises what the check failed with."""
        return await self._open[id]

    def discard(self, id: str) -> bool:
        """Forget a check.  True if it was not answered, so the engine must be told."""
        answer = self._open.pop(id)
        return answer.cancelled() or not answer.done()

    def land(self, checked: Checked) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        answer = self._open.get(checked.id)
        if answer is None or answer.done():
            return
        if checked.error is not None:
            answer.set_exception(from_wire(checked.error))
            return
        assert checked.constraint is not None, f"{checked.id} has neither an answer nor an error"
        answer.set_result(
            ConstraintCheck(
                constraint=checked.constraint,
                size_bytes=checked.size_bytes,
                verdict=checked.verdict,
            )
        )

    def fail_all(self, kind: type[StructgenError], message: str) -> None:
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(kind(message))
