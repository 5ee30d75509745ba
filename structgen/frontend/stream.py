"""Where the pieces of a request's answers wait for their caller."""

from __future__ import annotations

import asyncio

from structgen.errors import StructgenError
from structgen.frontend.outputs import RequestOutput, merge


class Stream:
    """Hands the pieces of a request's answers from the output task to its caller.

    Holds one piece of each answer at most: what comes before the caller takes it is joined to it.
    Used on one event loop.
    """

    __slots__ = ("_changed", "_error", "_num_unfinished", "_pieces", "engine_id", "request_id")

    def __init__(self, request_id: str, serial: int, num_answers: int) -> None:
        self.request_id = request_id
        # The caller may use its id again while outputs of this request are still on their way.
        self.engine_id = f"{request_id}#{serial}"
        self._changed = asyncio.Event()
        self._pieces: dict[int, RequestOutput] = {}  # by index, the one that waits longest first
        self._num_unfinished = num_answers
        self._error: StructgenError | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    @property
    def ended(self) -> bool:
        """Whether the last piece of the last answer was taken."""
        return not self._num_unfinished and not self._pieces

    def put(self, piece: RequestOutput) -> None:
        waiting = self._pieces.get(piece.index)
        self._pieces[piece.index] = piece if waiting is None else merge((waiting, piece))
        self._num_unfinished -= piece.finish is not None
        self._changed.set()

    def fail(self, error: StructgenError) -> None:
        """End the stream, after the pieces that wait.  Complete answers stay so."""
        if self._error is None and self._num_unfinished:
            self._error = error
            self._changed.set()

    async def next(self) -> RequestOutput:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return self._pieces.pop(next(iter(self._pieces)))
