"""What the validator says about the answers of a request.

    pieces ──whole──► the answer's text, with its last piece ──judge, in a thread──► its Finish

Only complete answers under a JSON constraint get a verdict: the beginning of a text says nothing.
"""

from __future__ import annotations

import itertools

import msgspec

from structgen import logs
from structgen.frontend import verify
from structgen.frontend.answer import ConstraintStatus, Finish
from structgen.frontend.outputs import RequestOutput
from structgen.frontend.verify import Verifiable

log = logs.get(__name__)


class Judge:
    """Judges complete answers, and counts those that it condemns.  Any thread may call it."""

    def __init__(self) -> None:
        self._violations = itertools.count(1)

    def judge(self, piece: RequestOutput, text: str, constraint: Verifiable) -> RequestOutput:
        """Return the last piece of an answer with the verdict on its `text` in `finish`."""
        assert piece.finish is not None
        met = verify.is_met(constraint, text)
        if met is None:
            return piece
        if not met:
            self._report(piece, text, constraint)
        return msgspec.structs.replace(piece, finish=_with(piece.finish, met))

    def _report(self, piece: RequestOutput, text: str, constraint: Verifiable) -> None:
        log.error(
            "answer violates its constraint",
            request=piece.request_id,
            index=piece.index,
            backend=piece.constraint.backend if piece.constraint is not None else "",
            constraint=constraint.key(),
            violations=next(self._violations),
        )
        log.debug("violation", request=piece.request_id, index=piece.index, text=text)


class Texts:
    """The texts of one request's answers as far as they have come."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, list[str]] = {}  # by index

    def whole(self, piece: RequestOutput) -> str | None:
        """Take in a piece.  With the last one of a complete answer, return what is to be judged:
        all of its text that the constraint speaks of.
        """
        self._parts.setdefault(piece.index, []).append(piece.text)
        if piece.finish is None:
            return None
        text = "".join(self._parts.pop(piece.index))
        return piece.finish.constrained(text) if is_complete(piece) else None


def is_complete(piece: RequestOutput) -> bool:
    """Return whether an answer ends with this piece, and was complete."""
    finish = piece.finish
    return finish is not None and finish.constraint_status is ConstraintStatus.COMPLETE


def _with(finish: Finish, met: bool) -> Finish:
    if met:
        return msgspec.structs.replace(finish, verified=True)
    return msgspec.structs.replace(finish, constraint_status=ConstraintStatus.VIOLATED)
