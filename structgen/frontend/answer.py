"""The text of one answer: from the tokens of one sample to where and how it ends.

Stop strings are the front end's: the engine knows no text.  They are looked for token by token, so
that the answer does not depend on how tokens were grouped into steps, and only in the text after
the first `min_tokens` tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from structgen.frontend.detokenizer import Detokenizer
from structgen.frontend.stops import StopScanner
from structgen.marker import Marker
from structgen.messages import EngineOutput, FinishReason
from structgen.params import MAX_STOP_CHARS, SamplingParams


class ConstraintStatus(StrEnum):
    NOT_CONSTRAINED = "not_constrained"
    COMPLETE = "complete"  # the text obeys the constraint as it stands
    INCOMPLETE = "incomplete"  # it is a beginning of such a text
    VIOLATED = "violated"  # the validator found that it does not


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended.

    stop_id, stop_string: what ended it; neither is part of the answer (unless `include_stop`).
    detail: which masks left nothing, when the reason is DEAD_END.  verified: an independent
    validator agrees that the text obeys the constraint.  constraint_start: where in the text the
    constraint begins, in UTF-8 bytes, if it waited for a marker and that came.  closed_by_budget:
    its last tokens were chosen to complete it before a limit cut it.
    """

    reason: FinishReason
    constraint_status: ConstraintStatus
    stop_id: int | None = None
    stop_string: str | None = None
    detail: str = ""
    verified: bool = False
    closed_by_budget: bool = False
    constraint_start: int | None = None

    def constrained(self, text: str) -> str:
        """Return the part of the answer's text that the constraint speaks of."""
        return text.encode()[self.constraint_start :].decode() if self.constraint_start else text


class Piece(NamedTuple):
    """What an engine output adds to an answer.

    text: what is certain now.  token_ids: the first of the output's ids, all but those behind the
    one that completed a stop string.
    """

    text: str
    token_ids: list[int]
    finish: Finish | None


class Opening:
    """Looks for the marker behind which the constraint begins.

    start: the length of the text up to there, in bytes of UTF-8, once it was found.
    """

    __slots__ = ("_marker", "_num_bytes", "_state", "_token_bytes", "start")

    def __init__(self, marker: Marker, token_bytes: Sequence[bytes]) -> None:
        self._marker = marker
        self._token_bytes = token_bytes
        self._state = 0
        self._num_bytes = 0
        self.start: int | None = None

    def read(self, id: int, piece: str) -> None:
        """piece: the text that the token completes."""
        if self.start is not None:
            return
        self._num_bytes += len(piece.encode())
        self._state, _ = self._marker.after(self._state, id, self._token_bytes[id])
        if self._state == self._marker.end:
            self.start = self._num_bytes


class Answer:
    """The answer of one sample as far as it has come."""

    __slots__ = ("_complete_at", "_detokenizer", "_num_ids", "_opening", "_params", "_scanner")

    def __init__(
        self, params: SamplingParams, token_bytes: Sequence[bytes], marker: Marker | None = None
    ) -> None:
        """marker: what the constraint waits for."""
        self._params = params
        self._opening = Opening(marker, token_bytes) if marker is not None else None
        self._detokenizer = Detokenizer(token_bytes)
        self._scanner = StopScanner(params.stop, params.include_stop) if params.stop else None
        self._num_ids = 0
        # Lengths at which the text obeyed the constraint: a stop may cut it back to one of them.
        self._complete_at: deque[int] = deque(maxlen=MAX_STOP_CHARS + 1)

    def read(self, output: EngineOutput) -> Piece:
        """Add the tokens of `output`, up to the one that completes a stop string."""
        text, ids = self._push(output)
        finish = self._finish(output)
        if finish is not None and finish.stop_string is None:
            text += self._flush()
        return Piece(text, ids, finish)

    def _push(self, output: EngineOutput) -> tuple[str, list[int]]:
        """Return the text that is certain now, and the ids that count."""
        new_ids, scanner = output.new_ids, self._scanner
        if scanner is None:
            return self._decode(new_ids), new_ids
        complete_at = {*output.complete_at, *([len(new_ids)] if output.accepting else ())}
        pieces: list[str] = []
        if 0 in complete_at:
            self._complete_at.append(scanner.seen)
        for count, id in enumerate(new_ids, 1):
            pieces.append(self._scan(scanner, self._decode((id,))))
            if count in complete_at:
                self._complete_at.append(scanner.seen)
            if scanner.matched is not None:
                return "".join(pieces), new_ids[:count]
        return "".join(pieces), new_ids

    def _decode(self, ids: Sequence[int]) -> str:
        opening = self._opening
        if opening is None or opening.start is not None:
            return self._detokenizer.push(ids)
        pieces = [self._detokenizer.push((id,)) for id in ids]
        for id, piece in zip(ids, pieces, strict=True):
            opening.read(id, piece)
        return "".join(pieces)

    def _scan(self, scanner: StopScanner, piece: str) -> str:
        self._num_ids += 1
        if self._num_ids <= self._params.min_tokens:
            return scanner.skip(piece)
        return scanner.push(piece)

    def _flush(self) -> str:
        held = self._scanner.flush() if self._scanner is not None else ""
        return held + self._detokenizer.flush()

    def _finish(self, output: EngineOutput) -> Finish | None:
        scanner = self._scanner
        if scanner is not None and scanner.matched is not None:
            return Finish(
                reason=FinishReason.STOP_STRING,
                constraint_status=self._status(scanner.released in self._complete_at),
                stop_string=scanner.matched,
                constraint_start=self._constraint_start,
            )
        if output.finish is None:
            return None
        ended = output.finish in (FinishReason.STOP, FinishReason.CONSTRAINT_COMPLETE)
        return Finish(
            reason=output.finish,
            constraint_status=self._status(ended or output.accepting),
            stop_id=output.stop_id,
            detail=output.detail,
            closed_by_budget=output.closed,
            constraint_start=self._constraint_start,
        )

    @property
    def _constraint_start(self) -> int | None:
        return self._opening.start if self._opening is not None else None

    def _status(self, complete: bool) -> ConstraintStatus:
        if self._params.constraint is None:
            return ConstraintStatus.NOT_CONSTRAINED
        return ConstraintStatus.COMPLETE if complete else ConstraintStatus.INCOMPLETE
