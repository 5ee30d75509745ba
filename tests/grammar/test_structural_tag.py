"""Structural tags: what they allow, and what is refused where."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from feeding import Judge, byte_vocabulary

from structgen.constraints import Backend, StructuralTag
from structgen.errors import ConstraintError, ConstraintTooLarge, Unsupported
from structgen.grammar import bitmask, build_backend
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends
from structgen.grammar.endings import endings
from structgen.keywords import Treatment

BYTES = byte_vocabulary()
CALL = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": CALL}
DIGITS = {"type": "regex", "pattern": "^\\d+$"}
TEXT = {"type": "any_text"}
WORD = {"type": "const_string", "value": "ab"}


def tag(begin: object, content: object, end: object) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of(format: object) -> StructuralTag:
    return StructuralTag(json.dumps({"type": "structural_tag", "format": format}))


TAGS = [tag("<f=weather>", SCHEMA, "</f>"), tag("<f=add>", DIGITS, ["</f>", "</add>"])]
CALLS = {"type": "triggered_tags", "triggers": ["<f="], "tags": TAGS}
LIST = {"type": "tags_with_separator", "tags": TAGS, "separator": ", "}


@pytest.mark.parametrize(
    ("format", "accepts", "rejects"),
    [
        (WORD, ["ab"], ["", "abc", "a"]),
        (TEXT, ["", "é\n<"], []),
        (TEXT | {"excludes": ["bad"]}, ["ba d"], ["bad", "xbadx"]),
        (SCHEMA, ['{"city": "é", "days": -3}'], ['{"city":"é"}', "{}", '{"city": "0123456789"}']),
        (DIGITS, ["0", "12"], ["", "٣", "1a"]),
        ({"type": "regex", "pattern": "[a&&b]\\x41B?/"}, ["&AB/", "aA/"], ["bA", "c"]),
        (
            {"type": "grammar", "grammar": 'root ::= "(" root ")" | top\ntop ::= "x"'},
            ["((x))"],
            ["(x"],
        ),
        (
            {"type": "grammar", "grammar": 'start: "a" start | "b"', "syntax": "lark"},
            ["aab"],
            ["a"],
        ),
        ({"type": "sequence", "elements": [WORD, DIGITS, WORD]}, ["ab12ab"], ["abab", "ab1"]),
        ({"type": "or", "elements": [WORD, DIGITS]}, ["ab", "7"], ["", "ab7"]),
        ({"type": "optional", "content": WORD}, ["", "ab"], ["abab"]),
        ({"type": "star", "content": WORD}, ["", "abab"], ["aba"]),
        ({"type": "plus", "content": WORD}, ["ab", "abab"], ["", "aba"]),
        ({"type": "repeat", "min": 1, "max": 2, "content": WORD}, ["ab", "abab"], ["", "ababab"]),
        ({"type": "repeat", "min": 2, "max": -1, "content": WORD}, ["ababab"], ["ab"]),
        (tag("<a>", TEXT, "</a>"), ["<a>x</a>", "<a></a>"], ["<a>x", "x", "<a>x</a>y"]),
        (tag("<a>", TEXT, ["</a>", "</b>"]), ["<a>x</b>"], ["<a>x</c>"]),
        (
            CALLS,
            ["", "so < <f", 'call <f=weather>{"city": "a"}</f> and <f=add>1</add>, done'],
            ["<f=", "<f=none>", '<f=weather>{"city": "a"', "<f=add>x</f>", "<f=add>1"],
        ),
        (CALLS | {"at_least_one": True}, ["<f=add>1</f>."], ["", "x<f=add>1</f>"]),
        (CALLS | {"stop_after_first": True}, ["", "x<f=add>1</f>"], ["<f=add>1</f>."]),
        (CALLS | {"excludes": ["no"]}, ["n", "<f=add>1</f>n"], ["no", "<f=add>1</f>no"]),
        (
            LIST,
            ["", "<f=add>1</f>, <f=add>2</f>"],
            ["<f=add>1</f>, ", "x", "<f=add>1</f><f=add>2</f>"],
        ),
        (LIST | {"at_least_one": True, "separator": ""}, ["<f=add>1</f><f=add>2</f>"], [""]),
        (
            {"type": "sequence", "elements": [tag("<think>", TEXT, "</think>"), CALLS]},
            ["<think>a <f= b</think>", "<think></think>x<f=add>1</f>"],
            ["<think>", "x", "<think></think><f=x"],
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
def test_a_text_is_allowed_as_its_formats_say(
    format: object, accepts: list[str], rejects: list[str]
) -> None:
    judge = Judge(of(format), BYTES)
    assert [text for text in accepts if not judge.obeys(text)] == []
    assert [text for text in rejects if judge.obeys(text)] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "at /: type is missing"),
        ({"type": "tag"}, '/type: must be "structural_tag"'),
        ({"type": "structural_tag"}, "at /: format is missing"),
        ({"type": "structural_tag", "format": WORD, "x": 1}, "at /: x is not supported"),
        (TEXT | {"max_tokens": 3}, "/format: max_tokens is not supported"),
        ({"type": "token", "token": 3}, "/format: the format token is not supported"),
        ({"type": "any_tokens"}, "/format: the format any_tokens is not supported"),
        ({"type": "nope"}, "/format/type: there is no format 'nope'; there are const_string"),
        ({"type": 3}, "/format/type: has the wrong type, a number"),
        ({"type": "const_string", "value": ""}, "/format/value: must not be empty"),
        ({"type": "const_string"}, "/format: value is missing"),
        ({"type": "or", "elements": []}, "/format/elements: must not be empty"),
        (
            {"type": "or", "elements": [WORD, 3]},
            "/format/elements/1: must be an object, got",
        ),
        (
            tag({"type": "token", "token": 1}, TEXT, "x"),
            "/format/begin: has the wrong type",
        ),
        (tag("a", TEXT, []), "/format/end: must not be empty"),
        (tag("a", TEXT, ["b", ""]), "/format/end/1: must not be empty"),
        (tag("a", {"type": "star", "content": []}, "b"), "/format/content/content: has the wrong"),
        (
            {"type": "repeat", "min": 3, "max": 2, "content": WORD},
            "/format: min and max are",
        ),
        ({"type": "repeat", "min": True, "max": 2, "content": WORD}, "/format/min: has the wrong"),
        (CALLS | {"triggers": ["<g"]}, "/format/tags/0/begin: must begin with exactly one of the"),
        (CALLS | {"triggers": ["<f", "<f="]}, "with exactly one of the triggers, but does with 2"),
        (
            CALLS | {"triggers": ["<f=", "<g"]},
            "/format/triggers/1: no tag begins with this",
        ),
        (CALLS | {"excludes": ["<f"]}, "/format/triggers/0: begins with an excluded text"),
        (CALLS | {"tags": [WORD]}, '/format/tags/0/type: must be "tag"'),
        (SCHEMA | {"style": "qwen_xml"}, "/format/style: only the style json is supported"),
        (SCHEMA | {"any_order": True}, "/format: any_order is not supported"),
        (
            {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}},
            "/format/json_schema/uniqueItems (uniqueItems): cannot be enforced",
        ),
        ({"type": "json_schema", "json_schema": {"type": "x"}}, "/format/json_schema: json_schema"),
        ({"type": "json_schema", "json_schema": False}, "/format/json_schema: "),
        ({"type": "regex", "pattern": "(?=a)"}, "/format/pattern: regex: look-around is not"),
        ({"type": "regex", "pattern": "(a"}, "/format/pattern: regex: missing )"),
        ({"type": "regex", "pattern": "\\p{L}"}, "/format/pattern: grammar: the Unicode property"),
        (
            {"type": "grammar", "grammar": 'root ::= "a"\nx ::= y'},
            "/format/grammar: grammar 2:7: the rule 'y' is not defined",
        ),
        (
            {"type": "grammar", "grammar": 'root ::= TagDispatch(("a", root))'},
            "/format/grammar: grammar 1:10: the macro TagDispatch is not supported",
        ),
        (
            {"type": "grammar", "grammar": "x", "syntax": "abnf"},
            "/format/syntax: must be ebnf or lark, got 'abnf'",
        ),
    ],
)
def test_what_is_wrong_or_not_promised_is_refused_with_its_pointer(
    given: dict[str, object], message: str
) -> None:
    whole = given.get("type") in (None, "structural_tag") or given == {"type": "tag"}
    constraint = StructuralTag(json.dumps(given)) if whole else of(given)
    with pytest.raises(ConstraintError) as refusal:
        Judge(constraint, BYTES)
    assert message in refusal.value.message
    assert refusal.value.message.startswith("structural_tag at /")
    assert refusal.value.field == "input.constraint.structural_tag"


@pytest.mark.parametrize("text", ["", "[]", '"a"', '{"a": 1, "a": 2}', "{", '{"a": "\\ud800"}'])
def test_what_is_no_json_object_is_refused_when_made(text: str) -> None:
    with pytest.raises(ConstraintError, match="structural_tag") as refusal:
        StructuralTag(text)
    assert refusal.value.field == "input.constraint.structural_tag"


def nested(depth: int) -> dict[str, object]:
    format: dict[str, object] = WORD
    for _ in range(depth):
        format = {"type": "star", "content": format}
    return format


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (nested(40), "the nesting must be at most 32, got 33"),
        ({"type": "or", "elements": [WORD] * 3_000}, "the number of formats must be at most 2000"),
        (
            {"type": "const_string", "value": "a" * 300_000},
            "the size in bytes must be at most",
        ),
        (
            {"type": "repeat", "min": 1, "max": 10**6, "content": WORD},
            "a repetition must be at",
        ),
        (
            {"type": "regex", "pattern": "a" * 20_000},
            "characters must be at most 16384",
        ),
        (
            {"type": "grammar", "grammar": "root ::= " + "(" * 1000},
            "/format/grammar: grammar 1:110: the nesting of groups must be at most 100, got 101",
        ),
    ],
    ids=["depth", "formats", "bytes", "repetition", "pattern", "grammar"],
)
def test_what_is_too_large_is_refused(format: object, message: str) -> None:
    with pytest.raises(ConstraintTooLarge) as refusal:
        Judge(of(format), BYTES)
    assert message in refusal.value.message
    assert refusal.value.field == "input.constraint.structural_tag"


def test_xgrammar_alone_takes_them_and_reports_the_keywords_inside() -> None:
    backends = Backends(BYTES)
    chosen = backends.compile(of({"type": "sequence", "elements": [WORD, SCHEMA]}))
    assert chosen.backend.name == "xgrammar"
    reports = {report.pointer: report.treatment for report in chosen.recipe.keywords}
    assert reports["/format/elements/1/json_schema/required"] is Treatment.ENFORCED
    named = StructuralTag(of(WORD).structural_tag, backend=Backend.LLGUIDANCE)
    with pytest.raises(Unsupported):
        backends.compile(named)


STRINGS = {
    "type": "object",
    "properties": {
        "free": {"type": "string"},
        "bounded": {"type": "string", "minLength": 1, "maxLength": 6},
        "pattern": {"type": "string", "pattern": "^[^a]{1,9}$"},
        "list": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["free", "bounded", "pattern", "list"],
}


def test_json_inside_is_well_formed_whatever_is_drawn() -> None:
    rng = random.Random(3)
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [b"\\u", b"\\ud8", b"\\udc", b"\x01a", b'"</', b'", "', b"\\n", "é".encode()]
    vocabulary = Vocabulary([b"", *pieces])
    backend = build_backend("xgrammar", vocabulary)
    schema = {"type": "json_schema", "json_schema": STRINGS}
    compiled = backend.compile(of(tag("<j>", schema, "</j>")))
    words = bitmask.allocate(1, vocabulary.size)
    complete = 0
    for _ in range(60):
        matcher, text = compiled.new_matcher(), b""
        for _ in range(150):
            backend.fill([matcher], words, [0])
            ids = bitmask.unpack(words[0], vocabulary.size)
            if not ids:
                break
            strange = [id for id in ids if re.search(rb'[^ -~]|[\\"]', vocabulary.token_bytes[id])]
            token = rng.choice(strange if strange and rng.random() < 0.6 else ids)
            matcher.accept(token)
            text += vocabulary.token_bytes[token]
        assert not re.search(rb"[\x00-\x1f]", text), text
        if matcher.accepting:
            complete += 1
            value = json.loads(text.decode().removeprefix("<j>").removesuffix("</j>"))
            json.dumps(value, ensure_ascii=False).encode()
    assert complete > 5


def test_control_tokens_are_in_no_passage() -> None:
    vocabulary = Vocabulary([b"", *BYTES.token_bytes[:256], b""])
    backend = build_backend("xgrammar", vocabulary)
    for format in (CALLS, TEXT, tag("<a>", TEXT, "</a>")):
        matcher = backend.compile(of(format)).new_matcher()
        words = np.full((1, bitmask.num_words(vocabulary.size)), -1, dtype=np.int32)
        backend.fill([matcher], words, [0])
        assert not {0, 257} & set(bitmask.unpack(words[0], vocabulary.size))


@pytest.mark.parametrize(
    ("format", "begun", "ending"),
    [
        (CALLS, 'x <f=weather>{"city": "a', '"}</f>'),
        (CALLS, '<f=weather>{"ci', 'ty": ""}</f>'),
        (CALLS, "<f=add>1", "</f>"),
        (LIST, "<f=add>1</f>, ", "<f=add>0</f>"),
        (tag("<think>", TEXT, ["</think>", "</t>"]), "<think>a", "</t>"),
        (
            {"type": "sequence", "elements": [tag("<a>", TEXT, "</a>"), WORD, DIGITS]},
            "<",
            "a></a>ab0",
        ),
        ({"type": "repeat", "min": 2, "max": 3, "content": WORD}, "a", "bab"),
        ({"type": "plus", "content": {"type": "or", "elements": [WORD, DIGITS]}}, "", "0"),
        (
            {"type": "json_schema", "json_schema": {"type": "string", "pattern": "^[a-z]{3}$"}},
            '"a',
            '"',  # by the outline, which knows no patterns; the masks do
        ),
    ],
)
def test_the_ways_to_the_end_are_known(format: object, begun: str, ending: str) -> None:
    exit = Backends(BYTES).compile(of(format)).exit
    assert exit is not None
    assert ending in endings(exit.patterns, begun)


FREE = tag("<f=any>", {"type": "json_schema", "json_schema": {"type": "object"}}, "</f>")
FREE_CALLS = {"type": "triggered_tags", "triggers": ["<f="], "tags": [FREE]}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('<f=any>{"a": 1, "b": {"a": 1}}</f> <f=any>{"a": 1}</f>', True),
        ('<f=any>{"a": 1, "a": 2}</f>', False),
        ('<f=any>{"b": [{"a": 1, "a": 2}]}</f>', False),
        ('<f=any>{"a\\n": 1, "a\\n": 2}</f>', False),
        ('<f=any>{"a": 1, "\\u0061": 2}</f>', False),  # no name has two spellings
        ('{ " <f=any>{"a": 1, "a": 2}</f>', False),
        ('{"x": "<f=any>{"a": 1, "a": 2}</f>', False),
        ('<f=any>{"a": "{", "b": "{ , ", "c": "{ , ", "d": ", "}</f>', True),
        ('{"a": x, "a": y}, {a, "a", "a"} and {"a" 1, "a": 1}', True),  # no JSON
    ],
)
def test_objects_in_tags_name_nothing_twice(text: str, allowed: bool) -> None:
    assert Judge(of(FREE_CALLS), BYTES).obeys(text) == allowed
    vocabulary = Vocabulary(
        [*BYTES.token_bytes, b'", "', b'{"a": 1, "', b'"a"', b'a": 1, "a"', b'}{"']
    )
    assert Judge(of(FREE_CALLS), vocabulary).obeys(text) == allowed


def test_of_names_in_tags_the_masks_allow_what_is_accepted() -> None:
    pieces = [
        b'{"a": 1, "a',
        b'{"a": 1, "a": ',
        b'", "',
        b'": ',
        b'"a"',
        b'"a": ',
        b'{"',
        b'"}',
        b'}, "a": {"a": 1',
        b'""',
    ]
    texts = [*(bytes([byte]) for byte in b'<1>/ {}[]",:a'), b"", *pieces]
    vocabulary = Vocabulary(texts)
    chosen = Backends(vocabulary).compile(of(FREE | {"begin": "<1>", "end": "</1>"}))
    objects = 0
    for seed in range(120):
        rng, matcher = random.Random(seed), chosen.grammar.new_matcher()
        words, text = bitmask.allocate(1, vocabulary.size), b""
        while not matcher.accepting and len(text) < 200:
            chosen.backend.fill([matcher], words, [0])
            allowed = list(bitmask.unpack(words[0], vocabulary.size))
            ends = [token for token in allowed if texts[token][-1:] in b'"}]/']
            matcher.accept(token := rng.choice(ends if ends and rng.random() < 0.6 else allowed))
            text += texts[token]
        if matcher.accepting:
            objects += 1
            json.loads(text[3:-4], object_pairs_hook=require_unique)
    assert objects > 20


def require_unique(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), names
