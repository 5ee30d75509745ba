"""What one more token costs a step, learnt from the steps themselves.

    seconds of a step = what every step takes + tokens * what each adds

The slope is that of the least squares line through the steps of late, each of which counts a little
less than the one after it.  Prompts and guesses vary the tokens enough to tell.
"""

from __future__ import annotations

_MEMORY = 0.98  # of what is known, from one step to the next
_LEAST_STEPS, _LEAST_SPREAD = 8.0, 4.0  # before a slope is believed: weight, and tokens squared
_DECODING = 3  # tokens a request, at most, of a step that mostly decodes

# Where nothing is learnt yet: as measured on CPUs with and without products of bytes, in parts of
# what a step of hardly any tokens takes.
_TOKEN, _ROW = 0.09, 0.13


class StepCost:
    """Sums over steps: their weight, tokens x, seconds y, x * x, x * y; and of those that decode,
    what each of their rows takes, in seconds."""

    __slots__ = ("_decode_s", "_sums", "_token_s")

    def __init__(self) -> None:
        self._sums: tuple[float, ...] = (0.0,) * 5
        self._token_s: float | None = None
        self._decode_s: float | None = None

    def took(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Take in a step."""
        x, y = num_tokens, seconds
        new = (1.0, x, y, x * x, x * y)
        self._sums = tuple(old * _MEMORY + one for old, one in zip(self._sums, new, strict=True))
        self._learn_slope()
        if self._token_s is None or num_tokens > _DECODING * num_rows:
            return
        row_s = max(seconds - self._token_s * (num_tokens - num_rows), 0.0) / num_rows
        known = row_s if self._decode_s is None else self._decode_s
        self._decode_s = known + (row_s - known) * 0.1

    def _learn_slope(self) -> None:
        weight, x, y, xx, xy = self._sums
        spread = xx / weight - (x / weight) ** 2
        if weight >= _LEAST_STEPS and spread >= _LEAST_SPREAD:
            slope = (xy / weight - x * y / weight**2) / spread
            self._token_s = max(slope, 0.0)

    def of_draft(self, num_rows: int) -> float:
        """Return what a draft costs, in parts of what a row takes that decodes with so many."""
        if self._token_s is None or not self._decode_s:
            return _TOKEN * num_rows / (1 + _ROW * num_rows)
        return self._token_s / self._decode_s
