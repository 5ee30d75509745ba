"""Strings drawn from the masks of every library have the format or the pattern that was asked."""

from __future__ import annotations

import json
import re
from itertools import product
from random import Random

import jsonschema_rs
import numpy as np
import pytest
from feeding import byte_vocabulary, obeys

from structgen.constraints import Backend, JsonSchema
from structgen.errors import ConstraintError, ConstraintTooLarge, Unsupported
from structgen.grammar import bitmask
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.schema import XGRAMMAR, formats, language, patterns

LIBRARIES = [Backend.LLGUIDANCE, Backend.XGRAMMAR, Backend.OUTLINES_CORE]
QUOTE = ord('"')
LONGEST = 63  # a walk that goes on is given up: lengths of names are verified at the end


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(byte_vocabulary())


def drawn(chosen: Chosen, random: Random) -> str | None:
    """Draw a string, byte by byte, that ends where it may about every sixth time."""
    matcher = chosen.grammar.new_matcher()
    words = bitmask.allocate(1, 257)
    text = bytearray()
    while not matcher.accepting:
        chosen.backend.fill([matcher], words, [0])
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:127])
        ends = QUOTE in allowed and (len(allowed) == 1 or not text or random.random() < 0.15)
        text.append(QUOTE if ends else random.choice([one for one in allowed if one != QUOTE]))
        matcher.accept(text[-1])
        if len(text) > LONGEST:
            return None
    found = json.loads(text)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
@pytest.mark.parametrize("name", sorted(formats.KNOWN))
def test_strings_have_their_format(backends: Backends, library: Backend, name: str) -> None:
    """xgrammar's own formats have 31 June, a second of 60 at any time, and octets like 01."""
    schema = {"type": "string", "format": name}
    try:
        chosen = backends.compile(JsonSchema(json.dumps(schema), backend=library))
    except (ConstraintError, ConstraintTooLarge, Unsupported) as refusal:
        pytest.skip(str(refusal))
    is_valid = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    random = Random(name)
    texts = {drawn(chosen, random) for _ in range(150)} - {None}
    assert len(texts) > 20 or name == "regex"
    assert [text for text in texts if not is_valid(text)] == []


# Of sets, as they are written there.
CHARACTERS = ["a", "b", '"', "/", r"\-", r"\]", r"\\", r"\n", r"\t", r"\x00", r"\x00-\x1f", "#-z"]
PROPERTIES = [r'[^\p{L}"]', r"\P{L}", r"[^-\p{N}]", r"[^\p{P}-]", r"[\p{Lu}_]", r"[\P{L}]"]


def patterns_with_sets(random: Random) -> list[str]:
    sets = ["".join(random.sample(CHARACTERS, random.randint(1, 4))) for _ in range(12)]
    plain = [f"[{random.choice(['^', '^', ''])}{one}]" for one in sets]
    return [f"^{one}{{1,4}}$" for one in plain] + [f"^{one}+{plain[0]}*$" for one in plain[1:4]]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
@pytest.mark.parametrize("number", range(3))
def test_sets_let_in_what_is_in_them(backends: Backends, library: Backend, number: int) -> None:
    r"""llguidance takes [^"] to have a quote, and \p{Cc} as well."""
    random = Random(number)
    served = 0
    for pattern in [*patterns_with_sets(random), *(f"^{one}{{1,4}}$" for one in PROPERTIES)]:
        schema = {"type": "string", "pattern": pattern}
        try:
            chosen = backends.compile(JsonSchema(json.dumps(schema), backend=library))
        except (ConstraintError, Unsupported):
            continue
        served += 1
        is_valid = jsonschema_rs.validator_for(schema).is_valid
        texts = {drawn(chosen, random) for _ in range(60)} - {None}
        assert [text for text in texts if not is_valid(text)] == [], pattern
    assert served >= 8 or library is Backend.OUTLINES_CORE  # it takes few


def test_names_without_a_pattern_are_those_that_have_none(backends: Backends) -> None:
    schema = {"type": "object", "patternProperties": {'^[^"]+$': {"type": "integer"}}}
    chosen = backends.compile(JsonSchema(json.dumps(schema)))
    for name in ["a", "\0", "\1", "\n", '"', "\\"]:
        text = json.dumps({name: "x"})
        assert obeys(chosen, text.encode()) == (name == '"'), text


def written(random: Random, depth: int) -> str:
    """Write an expression over the letters a, b, c whose alternatives often begin alike."""
    kind = random.random()
    if depth == 0 or kind < 0.25:
        return random.choice(["a", "b", "c", "[ab]", "[bc]"])
    first, second = written(random, depth - 1), written(random, depth - 1)
    if kind < 0.55:
        return first + second
    if kind < 0.87:
        return f"(?:{first}|{second})"
    return f"(?:{first}){random.choice(['?', '+', '*', '{2}', '{1,3}'])}"


def test_xgrammar_takes_just_what_the_patterns_match_that_it_is_given(backends: Backends) -> None:
    random = Random(7)
    texts = ["".join(letters) for size in range(5) for letters in product("abc", repeat=size)]
    intricate = 0
    for _ in range(250):
        pattern = f"^(?:{written(random, 5)})$"
        if patterns.written(pattern, XGRAMMAR) is None:
            continue
        node = language.whole(pattern)
        assert node is not None
        intricate += "|" in pattern
        schema = json.dumps({"type": "string", "pattern": pattern})
        chosen = backends.compile(JsonSchema(schema, backend=Backend.XGRAMMAR))
        for text in texts:
            found = re.search(pattern, text) is not None
            assert obeys(chosen, json.dumps(text).encode()) == found, (pattern, text)
    assert intricate > 40
