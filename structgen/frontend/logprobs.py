"""Log probabilities as callers get them: each token with its text and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from structgen.logprobs import TokenLogprobs


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token and its natural log probability.

    token_bytes: what the token adds to the text, nothing for a special one.  text: the same, with
    U+FFFD for bytes that are no characters by themselves.
    """

    token_id: int
    text: str
    token_bytes: bytes
    logprob: float


class PositionLogprobs(msgspec.Struct, frozen=True):
    """What the raw model thought of one position: before any mask or option.

    token: the one that is there.  top: the most likely ones, best first.  constraint_mass: the
    probability that the model gave to all that was allowed, where asked for.
    """

    token: TokenLogprob
    top: list[TokenLogprob] = []
    constraint_mass: float | None = None


class Speller:
    """Puts the text to the ids of the engine's log probabilities."""

    __slots__ = ("_texts", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """token_bytes: what each id adds to the text.  Not copied."""
        self._token_bytes = token_bytes
        self._texts: dict[int, str] = {}  # the most likely tokens are the same again and again

    def spell(self, logprobs: Sequence[TokenLogprobs]) -> list[PositionLogprobs]:
        return [self._position(position) for position in logprobs]

    def spell_prompt(
        self, logprobs: Sequence[TokenLogprobs | None]
    ) -> list[PositionLogprobs | None]:
        return [None if position is None else self._position(position) for position in logprobs]

    def _position(self, position: TokenLogprobs) -> PositionLogprobs:
        return PositionLogprobs(
            self._token(position.token, position.logprob),
            [self._token(id, logprob) for id, logprob in position.top],
            position.mass,
        )

    def _token(self, id: int, logprob: float) -> TokenLogprob:
        # A model may have more rows than its tokenizer has ids, and the raw model may like them.
        token_bytes = self._token_bytes[id] if id < len(self._token_bytes) else b""
        text = self._texts.get(id)
        if text is None:
            text = self._texts[id] = token_bytes.decode("utf-8", "replace")
        return TokenLogprob(id, text, token_bytes, logprob)
