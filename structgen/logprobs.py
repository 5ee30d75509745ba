"""What the raw model thought of a position."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural log probabilities at one position, of the raw model: before any mask or option.

    top: the most likely tokens with theirs, best first.  mass: the probability that the raw model
    gave to what the masks allowed, where asked for.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]
    mass: float | None = None
