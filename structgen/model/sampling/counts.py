"""Which tokens a sequence has, counted as they come: what the penalties are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The distinct tokens of one sequence, and how often each was answered.

    tokens: int64 [U].  outputs: float32 [U], 0 for a token that only the prompt has.
    """

    __slots__ = ("_index", "_outputs", "_tokens", "num_prompt")

    def __init__(self, num_prompt: int) -> None:
        self.num_prompt = num_prompt
        self._index: dict[int, int] = {}
        self._tokens: npt.NDArray[np.int64] = np.empty(64, dtype=np.int64)
        self._outputs: npt.NDArray[np.float32] = np.zeros(64, dtype=np.float32)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._tokens[: len(self._index)]

    @property
    def outputs(self) -> npt.NDArray[np.float32]:
        return self._outputs[: len(self._index)]

    def extend(self, start: int, token_ids: Sequence[int]) -> None:
        """Count the tokens at positions [start, start + len(token_ids)), each position once."""
        num_prompt = max(self.num_prompt - start, 0)
        self._note(token_ids[:num_prompt], 0.0)
        self._note(token_ids[num_prompt:], 1.0)

    def _note(self, token_ids: Iterable[int], amount: float) -> None:
        for token in token_ids:
            at = self._index.setdefault(token, len(self._index))
            if at == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
                self._outputs = np.concatenate([self._outputs, np.zeros_like(self._outputs)])
            self._tokens[at] = token
            self._outputs[at] += amount
