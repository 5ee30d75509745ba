"""What every library is held to beyond its grammar: JSON text has each name once, each character
in one spelling, and no special tokens, whatever the schema and the vocabulary."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from feeding import BYTES, byte_vocabulary, obeys

from structgen.constraints import Backend, JsonObject, JsonSchema
from structgen.errors import ConstraintError, Unsupported
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.unique_names import Names, NameWatch, leaves_names_open

LIBRARIES = [Backend.LLGUIDANCE, Backend.XGRAMMAR, Backend.OUTLINES_CORE]
# Pieces that end a name and go on, or hold a whole one, as those of real vocabularies do.
PIECES = [
    b'", "',
    b'": ',
    b'"a"',
    b'"a": ',
    b', "a": 1',
    b'{"',
    b'"}',
    b'{"a": 1, "a"',
    b'""',
    b'c"',
]
SPECIAL = b"<|special|>"


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(byte_vocabulary())


@pytest.fixture(scope="module")
def pieces() -> Backends:
    return Backends(Vocabulary([*BYTES, b"", *PIECES]))


def compiled(backends: Backends, schema: Any, library: Backend) -> Chosen:
    """Skips the test if the library refuses the schema: then it makes no text at all."""
    try:
        return backends.compile(JsonSchema(json.dumps(schema), backend=library))
    except (ConstraintError, Unsupported) as refusal:
        pytest.skip(str(refusal))


def obeyed(chosen: Chosen, texts: list[str]) -> list[str]:
    return [text for text in texts if obeys(chosen, text.encode(errors="surrogatepass"))]


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (OPEN, ['{"a": 1, "a": 2}', '{"c": 1, "c": 2}', '{"": 1, "": 2}', '{"c": 1, "b": "x"}']),
        ({**OPEN, "additionalProperties": False}, ['{"a": 1, "a": 1}', '{"b": "", "b": ""}']),
        ({"type": "object", "minProperties": 2}, ['{"c": 1, "c": 2}', '{"c": 1}']),
        ({"type": "object", "required": ["a"]}, ['{"a": 1, "a": 2}', '{"b": 1, "b": 1, "a": 1}']),
        (
            {
                "properties": {"ab": {"minimum": 3}},
                "patternProperties": {"^a": {"type": "integer"}},
            },
            ['{"ab": 4, "ab": 5}', '{"ac": 4, "ac": 5}', '{"ab": 1}', '{"ac": 1, "ab": 1}'],
        ),
        (True, ['[{"c": 1, "c": 2}]', '{"c": {"d": 1, "d": 1}}', '{"c": {"c": 1}, "c": 1}']),
        ({"propertyNames": {"maxLength": 1}, "type": "object"}, ['{"é": 1, "é": 1}']),
    ],
)
def test_no_name_comes_twice(
    backends: Backends, library: Backend, schema: Any, texts: list[str]
) -> None:
    """B1.2: nor does a library write names in any order and forget which there were."""
    assert obeyed(compiled(backends, schema, library), texts) == []


@pytest.mark.parametrize("library", LIBRARIES[:2])
def test_names_may_come_again_in_other_objects(backends: Backends, library: Backend) -> None:
    texts = ['{"c": {"c": 1}, "d": [{"c": 1}, {"c": 2}]}', '{"c": "\\"c\\": 1", "cc": 1, "": 1}']
    assert obeyed(compiled(backends, True, library), texts) == texts
    assert obeyed(compiled(backends, {"type": "object"}, library), texts) == texts


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (OPEN, [r'{"\u0061": 1}', r'{"\u0061": "x"}', r'{"a": 1, "\u0061": "x"}', '{"a": "x"}']),
        ({**OPEN, "additionalProperties": False}, [r'{"\u0061": 1}']),
        ({"type": "object", "properties": {"a": False}}, ['{"a": 1}', r'{"\u0061": 1}']),
        (
            {"type": "object", "properties": {"a/\n": {"type": "integer"}}},
            [r'{"a/\n": "x"}', r'{"a\/\n": "x"}', r'{"a/\u000a": "x"}', r'{"a/\u000A": "x"}'],
        ),
        ({"type": "object", "properties": {"é": {"type": "null"}}}, ['{"é": 1}', r'{"\u00e9": 1}']),
        (
            {
                "type": "object",
                "patternProperties": {"^a": {"type": "integer"}},
                "additionalProperties": {"type": "string"},
            },
            [r'{"\u0061": "x"}', '{"ab": "x"}', '{"b": 1}'],
        ),
        ({"propertyNames": {"maxLength": 1}, "type": "object"}, [r'{"\u0061b": 1}', '{"ab": 1}']),
    ],
)
def test_a_property_is_not_called_by_another_spelling_of_its_name(
    backends: Backends, library: Backend, schema: Any, texts: list[str]
) -> None:
    assert obeyed(compiled(backends, schema, library), texts) == []


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"type": "string"}, ['"😀"', r'"\n\"\\"']),
        ({"type": "string", "maxLength": 1}, ['"😀"']),
        ({"type": "string", "pattern": "^[^a]$"}, ['"😀"']),
        ({"enum": ["😀", "\n", "é"]}, ['"😀"', r'"\n"', '"é"']),
    ],
)
def test_a_character_counts_as_one_and_has_one_spelling(
    backends: Backends, library: Backend, schema: Any, taken: list[str]
) -> None:
    """B1.3: of a pair of surrogates as of a lone one, in values as in names."""
    chosen = compiled(backends, schema, library)
    spellings = [r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00"', r'"\uD83D\u0041"', '"\ud83d"']
    assert obeyed(chosen, [*spellings, '"\n"', '"\x01"', '"\x7f"', r'"\u0061"', r'"\/"']) == []
    assert obeyed(chosen, taken) == taken
    if schema == {"type": "string"}:
        names = [f"{{{spelling}: 1}}" for spelling in [*spellings, '"\x01"', r'"\u00e9"']]
        assert obeyed(compiled(backends, {"type": "object"}, library), names) == []


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "pattern": "^[\n\t]+$"},
        {"type": "string", "pattern": "^(\\s|[^a-z])+$"},
        {"enum": ["\n", "\ta", '"']},
        {"type": "object", "properties": {"\n": {"type": "null"}}, "required": ["\n"]},
        {"type": "object", "patternProperties": {"^[\n]+$": {}}, "additionalProperties": False},
    ],
)
def test_no_escape_is_begun_that_cannot_be_ended(
    backends: Backends, library: Backend, schema: Any
) -> None:
    chosen = compiled(backends, schema, library)
    rng = random.Random(str(schema))
    words = bitmask.allocate(1, 257)
    for _ in range(60):
        matcher = chosen.grammar.new_matcher()
        for _ in range(20):
            chosen.backend.fill([matcher], words, [0])
            allowed = [byte for byte in range(256) if bitmask.holds(words[0], byte)]
            assert allowed or matcher.accepting
            likely = [byte for byte in allowed if byte in b'\\u0017f"'] or allowed
            if not likely:
                break
            matcher.accept(rng.choice(likely))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 30},
        {"type": "string", "pattern": "^[a-z<|>]*$"},
        {"type": "array", "items": {"type": "string"}},
        {"const": "<|special|>"},
    ],
)
def test_special_tokens_are_not_text(library: Backend, schema: Any) -> None:
    """B1.5: one has no text, whatever it is called; what is spelt like one has."""
    backends = Backends(Vocabulary([*BYTES, b"", SPECIAL]))
    special, spelling = 256, 257
    chosen = compiled(backends, schema, library)
    matcher = chosen.grammar.new_matcher()
    words = bitmask.allocate(1, 258)
    for byte in b'["' if schema.get("type") == "array" else b'"':
        chosen.backend.fill([matcher], words, [0])
        assert not bitmask.holds(words[0], special)
        matcher.accept(byte)
    chosen.backend.fill([matcher], words, [0])
    assert not bitmask.holds(words[0], special)
    assert bitmask.holds(words[0], spelling)
    with pytest.raises(GrammarError):
        matcher.fork().accept(special)


@pytest.mark.parametrize("library", LIBRARIES[:2])
def test_tokens_of_several_characters_are_ruled_out_where_they_end_a_name_again(
    pieces: Backends, library: Backend
) -> None:
    """A token is allowed if and only if its bytes are, one after the other."""
    constraint = JsonObject(backend=library)
    chosen = pieces.compile(constraint)
    rng = random.Random(library.value)
    words = bitmask.allocate(1, 257 + len(PIECES))
    differing = 0
    for _ in range(12):
        matcher = chosen.grammar.new_matcher()
        for _ in range(25):
            chosen.backend.fill([matcher], words, [0])
            allowed = [t for t in range(257 + len(PIECES)) if bitmask.holds(words[0], t)]
            for token, piece in enumerate(PIECES, 257):
                assert (token in allowed) == takes(matcher.fork(), chosen, piece), piece
            picked = [t for t in allowed if t > 256 or chr(t) in '{}":, ac1'] or allowed
            differing += len(picked) < len(PIECES)
            if not picked:
                break
            matcher.accept(rng.choice(picked))
    assert differing


def takes(matcher: Any, chosen: Chosen, piece: bytes) -> bool:
    words = bitmask.allocate(1, 257 + len(PIECES))
    for byte in piece:
        chosen.backend.fill([matcher], words, [0])
        if not bitmask.holds(words[0], byte):
            return False
        matcher.accept(byte)
    return True


def test_a_watch_goes_back_and_forks() -> None:
    watch = NameWatch(Names(byte_vocabulary()))
    for byte in b'{"ab": 1, "a':
        watch.accept(byte)
    fork = watch.fork()
    fork.accept(ord("b"))
    with pytest.raises(GrammarError):
        fork.accept(ord('"'))
    fork.rollback(2)
    fork.accept(ord('"'))  # the empty name
    watch.accept(ord('"'))
    watch.rollback(4)
    for byte in b' "ab':
        watch.accept(byte)
    with pytest.raises(GrammarError):
        watch.accept(ord('"'))
    watch.accept(ord("c"))


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (True, True),
        ({"type": "object"}, True),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "additionalProperties": False, "properties": {"a": True}}, True),
        ({"type": "object", "additionalProperties": False, "patternProperties": {"a": {}}}, True),
        ({"type": "array"}, True),
        ({"type": "array", "items": {"type": ["string", "null"]}}, False),
        ({"type": "array", "items": {"type": "string"}, "prefixItems": [{}]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, True),
        ({"anyOf": [{"const": {}}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"enum": [1]}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"minimum": 1}}}, True),
        ({"type": ["string", "integer"], "minLength": 1}, False),
    ],
)
def test_names_are_watched_where_a_schema_leaves_them_open(schema: Any, is_open: bool) -> None:
    assert leaves_names_open(schema) == is_open
