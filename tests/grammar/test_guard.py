"""The guards let exactly well-formed text through, token by token."""

from __future__ import annotations

import random

import pytest

from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.guard import State, TextGuard, json_automaton, utf8_automaton

BYTES = [bytes([byte]) for byte in range(256)]


def spell(guard: TextGuard, tokens: list[int]) -> int:
    state: int = State.TEXT
    for token in tokens:
        state = guard.advance(state, token)
    return state


def ends_well(guard: TextGuard, text: bytes) -> bool:
    try:
        return spell(guard, list(text)) == State.TEXT
    except GrammarError:
        return False


def decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_utf8_is_what_python_decodes() -> None:
    guard = TextGuard(Vocabulary(BYTES), utf8_automaton())
    rng = random.Random(0)
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]
    texts = [bytes([lead, tail]) for lead in range(256) for tail in edges]
    texts += [
        bytes([lead, *rng.choices(edges, k=count)])
        for lead in range(0xC0, 0x100)
        for count in (2, 3)
        for _ in range(200)
    ]
    assert [text for text in texts if ends_well(guard, text) != decodes(text)] == []


@pytest.mark.parametrize("state", range(State.DEAD))
def test_masks_hold_the_tokens_that_advance(state: int) -> None:
    rng = random.Random(state)
    alphabet = '\\ud8D"cn\né日😀'.encode()
    tokens = [bytes(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(400)]
    vocabulary = Vocabulary([*BYTES, b"", *tokens, b""])
    guard = TextGuard(vocabulary, json_automaton())
    allowed = set(bitmask.unpack(guard.masks[state], vocabulary.size))
    for token, text in enumerate(vocabulary.token_bytes):
        after = state
        try:
            for byte in text:
                after = guard.advance(after, byte)
        except GrammarError:
            assert token not in allowed
            continue
        assert (token in allowed) == bool(text)
        if text:
            assert guard.advance(state, token) == after


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        (rb"\ud83d\ude00", True),
        (rb"\uD83D\uDE00\u00e9\ud7ff\ue000\n\\u", True),
        (rb"\\ud800", True),
        (rb"\ud83d", None),
        (rb"\ud83d ", False),
        (rb"\ud83d\n", False),
        (rb"\ud83d\u0041", False),
        (rb"\ude00", False),
        (rb"\x", False),
        (b"\t", False),
        (b"\xc3", None),
    ],
)
def test_json_has_surrogate_escapes_in_pairs_only(text: bytes, well_formed: bool | None) -> None:
    """None: it may go on but not end."""
    guard = TextGuard(Vocabulary(BYTES), json_automaton())
    if well_formed is False:
        with pytest.raises(GrammarError):
            spell(guard, list(text))
    else:
        assert (spell(guard, list(text)) == State.TEXT) == bool(well_formed)
