"""From anywhere in a text, a way to its end is found, and what it completes is right."""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import jsonschema_rs
import pytest
from feeding import byte_vocabulary, piece_vocabulary

from structgen.constraints import Choice, Constraint, Ebnf, JsonObject, JsonSchema, Regex
from structgen.grammar import bitmask, closing
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.gate import GatedMatcher, Gates
from structgen.grammar.pieces import Pieces
from structgen.grammar.walk import MAX_SECONDS, UNKNOWN, Restrict, Walk
from structgen.marker import Marker

SCHEMAS: dict[str, tuple[dict[str, object], object]] = {
    "required": (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 2},
                "age": {"type": "integer", "minimum": 100, "maximum": 180},
                "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2},
            },
            "required": ["name", "age", "tags"],
            "additionalProperties": False,
        },
        {"name": 'A "b" \\ c', "age": 123, "tags": ["green", "red", "red"]},
    ),
    "open": ({"type": "object"}, {"a": {"b": [1.5, None, {"c": "d"}]}, "e": "f\n"}),
    "patterns": (
        {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "pattern": "wifi"},
                "mail": {"type": "string", "format": "email"},
                "day": {"type": "string", "format": "date"},
                "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            },
            "required": ["kind", "mail", "day", "code"],
        },
        {
            "kind": "a wifi thing",
            "mail": "someone@example.org",
            "day": "2024-02-29",
            "code": "ABC-1234",
        },
    ),
    "recursive": (
        {
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number", "exclusiveMinimum": -1, "maximum": 0},
                        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    },
                    "required": ["value", "next"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/node",
        },
        {"value": -0.25, "next": {"value": 0, "next": {"value": -0.5, "next": None}}},
    ),
}
TEXTS: dict[str, tuple[Constraint, str]] = {
    "regex": (Regex(r"[a-z]+(-[0-9]{2}){3}\.(com|org)"), "some-12-34-56.org"),
    "search": (Regex(r".*needle.*!"), "hay and needle and hay!"),
    "choice": (Choice(("yes", "no", "perhaps not")), "perhaps not"),
    "grammar": (
        Ebnf('root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'),
        "1+(2+(34+5))+6",
    ),
    "object": (JsonObject(), '{"a": [true, {"b": "c"}]}'),
}


def texts() -> list[str]:
    return [json.dumps(data) for _, data in SCHEMAS.values()] + [text for _, text in TEXTS.values()]


VOCABULARIES = {"bytes": byte_vocabulary(), "pieces": piece_vocabulary(texts())}
BACKENDS = {name: Backends(vocabulary) for name, vocabulary in VOCABULARIES.items()}


@pytest.fixture(params=VOCABULARIES)
def backends(request: pytest.FixtureRequest) -> Backends:
    return BACKENDS[request.param]


def vocabulary_of(backends: Backends) -> Vocabulary:
    return next(VOCABULARIES[name] for name in VOCABULARIES if BACKENDS[name] is backends)


def begun(
    backends: Backends, chosen: Chosen, text: bytes, restrict: Restrict | None = None
) -> Walk:
    """Return a walk that has written a text, byte by byte."""
    assert chosen.exit is not None
    full = bitmask.full(vocabulary_of(backends).size)
    walk = Walk(chosen.backend, chosen.grammar.new_matcher(), chosen.exit, full, restrict=restrict)
    walk.accept(*text)
    walk.max_seconds += walk.seconds  # that was no look
    return walk


def completed(backends: Backends, chosen: Chosen, text: bytes, budget: int = 400) -> bytes | None:
    walk = begun(backends, chosen, text)
    way = backends.closer.way_out(walk, budget)
    if way is None:
        return None
    assert len(way) <= budget
    assert list(walk.output) == list(text), "the walk was moved"
    words = vocabulary_of(backends).token_bytes
    for token in way:
        assert bitmask.holds(walk.allowed(), token)
        walk.accept(token)
    assert walk.accepting
    return text + b"".join([words[token] for token in way])


@pytest.mark.parametrize("name", SCHEMAS)
def test_valid_json_comes_of_every_beginning(backends: Backends, name: str) -> None:
    schema, data = SCHEMAS[name]
    chosen = backends.compile(JsonSchema.of(schema))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    text = json.dumps(data).encode()
    for length in range(0, len(text) + 1, 3):
        whole = completed(backends, chosen, text[:length])
        assert whole is not None, text[:length]
        assert validator.is_valid(json.loads(whole)), whole


@pytest.mark.parametrize("name", TEXTS)
def test_every_beginning_of_a_text_is_completed(backends: Backends, name: str) -> None:
    constraint, text = TEXTS[name]
    chosen = backends.compile(constraint)
    for length in range(len(text) + 1):
        assert completed(backends, chosen, text[:length].encode()) is not None, text[:length]


def test_a_complete_text_takes_nothing(backends: Backends) -> None:
    chosen = backends.compile(Regex("ab*"))
    assert completed(backends, chosen, b"abb", budget=0) == b"abb"


def test_no_way_is_longer_than_asked(backends: Backends) -> None:
    chosen = backends.compile(Regex("x{9}"))
    assert completed(backends, chosen, b"xxxx", budget=4) is None
    assert completed(backends, chosen, b"xxxx", budget=5) == b"x" * 9


def test_a_short_way_is_found_where_the_likely_one_is_long(backends: Backends) -> None:
    chosen = backends.compile(Choice(("zzzzzzzzzzzzzzzzzzzzzz", "zq", "abcdefghijklmnopqrst")))
    assert completed(backends, chosen, b"", budget=2) == b"zq"


@pytest.mark.parametrize(
    ("constraint", "length"),
    [
        (Choice(("zzzz", "zq")), 2),
        (Regex("[ab]{3}"), 3),
        (Regex("a?"), 0),
        (JsonSchema('{"const": [1, "ab"]}'), 9),
        (JsonSchema('{"type": "object", "properties": {"ab": {}}, "required": ["ab"]}'), 8),
    ],
)
def test_every_text_is_as_long_as_is_said(constraint: Constraint, length: int) -> None:
    backends = BACKENDS["bytes"]
    at_least = backends.closer.at_least(begun(backends, backends.compile(constraint), b""))
    assert at_least == length


def test_a_way_uses_nothing_that_is_ruled_out(backends: Backends) -> None:
    chosen = backends.compile(Regex("[ab]{3}"))
    banned = bitmask.TokenSet([ord("a")])
    walk = begun(backends, chosen, b"", restrict=lambda row, tokens: banned.ban(row))
    way = backends.closer.way_out(walk, 3)
    assert way is not None
    assert ord("a") not in way


def test_closed_brackets_are_found_in_one_token_where_there_is_one() -> None:
    vocabulary = piece_vocabulary(['"}]}', '"a": [{"b": "'])
    backends = Backends(vocabulary)
    chosen = backends.compile(JsonObject())
    assert chosen.exit is not None
    walk = Walk(
        chosen.backend, chosen.grammar.new_matcher(), chosen.exit, bitmask.full(vocabulary.size)
    )
    walk.accept(*b'{"a": [{"b": "c')
    way = backends.closer.way_out(walk, 9)
    assert way is not None
    assert [vocabulary.token_bytes[token] for token in way] == [b'"}]}']


@pytest.mark.parametrize("seed", range(3))
def test_random_beginnings_are_completed(backends: Backends, seed: int) -> None:
    """Whatever was sampled before, as long as masks allowed it."""
    rng = random.Random(seed)
    words = vocabulary_of(backends).token_bytes
    for schema, _ in SCHEMAS.values():
        chosen = backends.compile(JsonSchema.of(schema))
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        walk = begun(backends, chosen, b"")
        for _ in range(rng.randrange(40)):
            allowed = bitmask.unpack(walk.allowed(), len(words))
            if not allowed:
                break
            walk.accept(rng.choice(allowed))
        walk.max_seconds += walk.seconds
        way = backends.closer.way_out(walk, 1000)
        assert way is not None, b"".join([words[token] for token in walk.output])
        whole = b"".join([words[token] for token in [*walk.output, *way]])
        assert validator.is_valid(json.loads(whole)), whole


def work(seconds: float) -> None:
    """Spend the thread's time."""
    began = time.thread_time()
    while time.thread_time() < began + seconds:
        pass


def test_a_search_over_costly_masks_gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = BACKENDS["bytes"]
    chosen = backends.compile(JsonObject())
    walk = begun(backends, chosen, b'{"a": [[[[[[[[[[[[[[[[[[[[[[["b')
    fill = chosen.backend.fill

    def slow_fill(*arguments: Any) -> None:
        work(0.02)
        fill(*arguments)

    monkeypatch.setattr(chosen.backend, "fill", slow_fill)
    began = time.thread_time()
    assert backends.closer.way_out(walk, 100) is None
    assert time.thread_time() - began < 2


def test_a_search_is_not_given_up_for_one_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a collection of garbage."""
    backends = BACKENDS["bytes"]
    chosen = backends.compile(JsonObject())
    walk = begun(backends, chosen, b'{"a": [[[[[[[[[[[[[[[[[[[[[[["b')
    fill, calls = chosen.backend.fill, itertools.count()

    def fill_with_a_pause(*arguments: Any) -> None:
        if next(calls) == 2:
            work(2 * MAX_SECONDS)
        fill(*arguments)

    monkeypatch.setattr(chosen.backend, "fill", fill_with_a_pause)
    assert backends.closer.way_out(walk, 100) is not None


def test_a_search_along_costly_automata_gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = BACKENDS["bytes"]
    chosen = backends.compile(Regex("[^x]{5000}"))
    walk = begun(backends, chosen, b"abc")
    asked = []

    def slow_endings(patterns: object, text: str, is_over: object) -> list[str]:
        asked.append(text)
        work(0.02)
        return []

    monkeypatch.setattr(closing, "endings", slow_endings)
    assert backends.closer.way_out(walk, 100) is None
    assert 0 < len(asked) < 10


def test_spelling_a_long_ending_gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = BACKENDS["bytes"]
    chosen = backends.compile(Regex("(a|b)[ab]*c{300}"))
    walk = begun(backends, chosen, b"ab")
    fill, filled = chosen.backend.fill, []

    def slow_fill(*arguments: Any) -> None:
        filled.append(arguments)
        work(0.02)
        fill(*arguments)

    monkeypatch.setattr(chosen.backend, "fill", slow_fill)
    assert backends.closer.way_out(walk, 400) is None
    assert 0 < len(filled) < 10


@pytest.mark.parametrize(
    ("way", "token", "rest"),
    [
        (["ab", "cd", "e"], "a", ["b", "cd", "e"]),
        (["ab", "cd", "e"], "ab", ["cd", "e"]),
        (["a", "b", "cd", "e"], "abc", ["d", "e"]),
        (["a", "b"], "ab", []),
        (["ab", "cd"], "b", []),
        (["ab", "cd"], "ac", []),
        (["ax", "cd"], "a", []),  # no token spells what is left of the first one
    ],
)
def test_a_way_goes_on_behind_a_token_that_has_taken_the_beginning_of_its_text(
    way: list[str], token: str, rest: list[str]
) -> None:
    texts = ["a", "b", "c", "d", "e", "ab", "cd", "abc", "ac", "ax"]
    closer = closing.Closer(Vocabulary([text.encode() for text in texts]))
    assert closer.rest([*map(texts.index, way)], texts.index(token)) == [*map(texts.index, rest)]


def test_a_library_that_fails_on_the_way_behind_a_gate_is_no_way_out() -> None:
    """The name "tag" cannot be spelt to its end, and llguidance gives up when it comes there."""
    letters = [bytes([byte]) for byte in range(128) if byte != ord("g")]
    vocabulary = Vocabulary([*letters, b""])
    properties: dict[str, object] = {"a": {"type": "boolean"}, "tag": {"enum": [1]}}
    schema = {"type": "object", "properties": properties, "required": ["a", "tag"]}
    backends = Backends(vocabulary)
    chosen = backends.compile(JsonSchema.of(schema | {"additionalProperties": False}))
    gate = Gates(Pieces(vocabulary)).get(Marker(b"</t>"))
    matcher = GatedMatcher(gate, chosen.grammar.new_matcher())
    walk = Walk(chosen.backend, matcher, UNKNOWN, bitmask.full(vocabulary.size))
    assert backends.closer.way_out(walk, 40) is None
