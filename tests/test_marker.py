"""The marker behind which a constraint begins, however tokens divide it."""

from __future__ import annotations

import itertools
import random

import pytest

from structgen.marker import Marker


def found_at(marker: Marker, pieces: list[bytes]) -> int | None:
    """Return how many bytes there were when the marker ended; None: it did not come."""
    state = total = 0
    for piece in pieces:
        state, read = marker.after(state, 7, piece)
        total += read
        if state == marker.end:
            return total
        assert read == len(piece)
    return None


@pytest.mark.parametrize(
    "text", [b"</think>", b"aab", b"abab", b"aaa", b"ababaca", "日本".encode()]
)
def test_it_is_found_where_it_first_stands(text: bytes) -> None:
    rng = random.Random(text.hex())
    marker = Marker(text)
    for _ in range(300):
        noise = bytes(rng.choices(text, k=rng.randint(0, 12)))
        data = noise + rng.choice([text, text[:-1]]) + bytes(rng.choices(text, k=rng.randint(0, 4)))
        cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randint(0, 5)))
        pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        at = data.find(text)
        assert found_at(marker, pieces) == (None if at < 0 else at + len(text)), (data, pieces)


def test_what_may_have_begun_is_every_beginning_that_the_text_ends_with() -> None:
    marker = Marker(b"ababac")
    state, _ = marker.after(0, 7, b"xababa")
    assert marker.begun(state) == [5, 3, 1]
    assert marker.begun(0) == []


def test_a_control_token_is_found_by_its_id_alone() -> None:
    marker = Marker(b"<end>", token=9)
    assert marker.after(0, 7, b"<end>") == (0, 5)
    assert marker.after(0, 9, b"") == (marker.end, 0)
