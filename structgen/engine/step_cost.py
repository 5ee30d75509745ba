"""What a guess costs a step, learnt from the steps themselves.

    seconds of a step = what every step takes + tokens * what each adds

What the host does for a step counts: of a small model, that is most of it.  The slope is that of
the least squares line through the steps of late, each of which counts a little less than the one
after it, plus its standard error: who knows little expects the worse.  Forced text and guesses vary
the tokens enough to tell.  A token of a prompt costs less, about half as much as a guess: it has no
logits, and attends along with others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MEMORY = 0.98  # of what is known, from one step to the next
_LEAST_STEPS, _LEAST_SPREAD = 8.0, 4.0  # before a slope is believed: weight, and tokens squared
_PROMPT_TOKENS = 16  # of a row: so many are of a prompt

# Where nothing is learnt yet: as measured on CPUs with and without products of bytes, in parts of
# what a step of hardly any tokens takes.
_TOKEN, _ROW = 0.09, 0.13


def has_prompt(lengths: Sequence[int]) -> bool:
    """Whether a step computes a part of a prompt.  lengths: tokens of each row, of one at least."""
    return max(lengths) >= _PROMPT_TOKENS


class StepCost:
    """Sums over steps: their weight, tokens x, seconds y, x * x, x * y, y * y; and of those that
    decode, what each of their rows takes, in seconds."""

    __slots__ = ("_decode_s", "_sums", "_token_s")

    def __init__(self) -> None:
        self._sums: tuple[float, ...] = (0.0,) * 6
        self._token_s: float | None = None
        self._decode_s: float | None = None

    def took(self, lengths: Sequence[int], seconds: float) -> None:
        """Take in a step.  lengths: tokens of each row."""
        if not lengths or has_prompt(lengths):
            return
        num_rows, x, y = len(lengths), sum(lengths), seconds
        new = (1.0, x, y, x * x, x * y, y * y)
        self._sums = tuple(old * _MEMORY + one for old, one in zip(self._sums, new, strict=True))
        self._learn_slope()
        if self._token_s is None:
            return
        row_s = max(y - self._token_s * (x - num_rows), 0.0) / num_rows
        known = row_s if self._decode_s is None else self._decode_s
        self._decode_s = known + (row_s - known) * 0.1

    def _learn_slope(self) -> None:
        weight, x, y, xx, xy, yy = self._sums
        spread = xx / weight - (x / weight) ** 2
        if weight >= _LEAST_STEPS and spread >= _LEAST_SPREAD:
            slope = (xy / weight - x * y / weight**2) / spread
            rest = max(yy / weight - (y / weight) ** 2 - slope**2 * spread, 0.0)
            self._token_s = max(slope, 0.0) + math.sqrt(rest / (weight * spread))

    def of_draft(self, num_rows: int) -> float:
        """Return what a draft costs, in parts of what a row takes that decodes with so many."""
        if self._token_s is None or not self._decode_s:
            return _TOKEN * num_rows / (1 + _ROW * num_rows)
        return self._token_s / self._decode_s
