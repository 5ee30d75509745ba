"""The guards let exactly well-formed text through, token by token."""

from __future__ import annotations

import json
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
    alphabet = '\\u0017f"bn\né日😀'.encode()
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
        (rb"\n\\u\"\b\f\r\t", True),
        (rb"\u0000\u000b\u001f\u007f", True),
        (rb"\\ud800", True),
        ("é日😀/".encode(), True),
        (rb"\ud83d", False),
        (rb"\ude00", False),
        (rb"\u00e9", False),
        (rb"\u0061", False),
        (rb"\u000a", False),
        (rb"\u001F", False),
        (rb"\/", False),
        (rb"\x", False),
        (b"\t", False),
        (b"\x7f", False),
        (rb"\u00", None),
        (b"\xc3", None),
    ],
)
def test_json_text_spells_each_character_in_one_way(text: bytes, well_formed: bool | None) -> None:
    """None: it may go on but not end."""
    guard = TextGuard(Vocabulary(BYTES), json_automaton())
    if well_formed is False:
        with pytest.raises(GrammarError):
            spell(guard, list(text))
    else:
        assert (spell(guard, list(text)) == State.TEXT) == bool(well_formed)


def test_every_character_has_a_spelling() -> None:
    guard = TextGuard(Vocabulary(BYTES), json_automaton())
    for code in [*range(0x300), 0x2028, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]:
        character = chr(code)
        spelling = json.dumps(character, ensure_ascii=code == 0x7F)[1:-1]
        assert ends_well(guard, spelling.encode()), character
