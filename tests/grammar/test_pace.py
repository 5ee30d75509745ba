"""A grammar that takes too long to find out what may come next is refused, or ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from structgen.constraints import Constraint
from structgen.errors import BeyondBackend
from structgen.grammar import bitmask
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    Matcher,
    Native,
    TooSlow,
    Vocabulary,
)
from structgen.grammar.pace import MAX_MASK_S, MAX_OVERDRAFT_S, USUAL_MASK_S, Pace, require_pace

WORDS = Vocabulary([b"", b"a", b"aa"])


class Counting(Matcher):
    """Allows all, for so many tokens."""

    def __init__(self, left: int) -> None:
        self.left = left

    def accept(self, token: int) -> None:
        self.left -= 1

    @property
    def accepting(self) -> bool:
        return self.left == 0

    def rollback(self, count: int) -> None:
        self.left += count

    def fork(self) -> Counting:
        return Counting(self.left)


class Slow(GrammarBackend, CompiledConstraint):
    """Takes so many seconds of the processor for the mask of the last token."""

    name = "slow"
    size_bytes = 1

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def supports(self, constraint: Constraint) -> bool:
        return True

    def translate(self, constraint: Constraint) -> Native:
        return Native("")

    def compile_native(self, constraint: Constraint, native: Native) -> Slow:
        return self

    def new_matcher(self) -> Counting:
        return Counting(3)

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        [matcher] = matchers
        assert isinstance(matcher, Counting)
        until = time.thread_time() + self._seconds
        while matcher.left == 1 and time.thread_time() < until:
            pass
        words[rows[0]] = bitmask.pack(range(3) if matcher.left else (), 3)


def test_a_grammar_is_refused_when_a_mask_of_a_text_takes_too_long() -> None:
    slow = Slow(MAX_MASK_S + 0.01)
    with pytest.raises(BeyondBackend, match=r"took up to 1\.0\d s to find"):
        require_pace(slow, slow, WORDS, "input.constraint.grammar.text")
    usual = Slow(0.01)
    require_pace(usual, usual, WORDS, "input.constraint.grammar.text")


def test_many_slow_masks_are_as_bad_as_one_that_is_very_slow() -> None:
    pace = Pace()
    pace.charge(MAX_MASK_S + 0.01)
    with pytest.raises(TooSlow):
        pace.require()
    pace = Pace()
    for _ in range(1000):
        pace.charge(USUAL_MASK_S)
    pace.require()
    for _ in range(int(MAX_OVERDRAFT_S / 0.1) + 1):
        pace.require()
        pace.charge(USUAL_MASK_S + 0.1)
    with pytest.raises(TooSlow):
        pace.copy().require()
