"""Packed masks say what the tokens that went in say."""

import numpy as np
import pytest

from structgen.grammar import bitmask


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 63, 64, 257, 49_152])
def test_a_full_mask_allows_every_token_and_no_bit_beyond(vocab_size: int) -> None:
    full = bitmask.full(vocab_size)
    np.testing.assert_array_equal(full, bitmask.pack(range(vocab_size), vocab_size))
    assert bitmask.unpack(full, vocab_size) == list(range(vocab_size))
    assert bitmask.count(full[None]).tolist() == [vocab_size]
