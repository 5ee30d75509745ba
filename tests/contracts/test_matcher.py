"""What every grammar backend promises, over vocabularies of every make."""

from __future__ import annotations

import codecs
import itertools
import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from matching import (
    BYTE_LEVEL,
    CONTROL,
    SENTENCE_PIECES,
    TINY,
    Bench,
    large_vocabulary,
)

from structgen.constraints import (
    FIELD,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import BeyondBackend, ConstraintError
from structgen.grammar import BACKENDS, bitmask, build_backend
from structgen.grammar.base import GrammarError, Matcher, Vocabulary

VOCABULARIES = {"tiny": TINY, "bytes": BYTE_LEVEL, "pieces": SENTENCE_PIECES}

STRING = JsonSchema('{"type": "string"}')
BOUNDED = JsonSchema('{"type": "string", "minLength": 1, "maxLength": 30}')
PATTERN = JsonSchema('{"type": "string", "pattern": "^[a-z0-9]{1,30}$"}')
PERSON = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tag": {"enum": ["a", "ab", None, 1, 12]},
            "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        },
        "required": ["name", "tag", "list"],
        "additionalProperties": False,
    }
)
ANYTHING = Regex("[^a]*")


@cache
def bench_of(backend: str, vocabulary: str) -> Bench:
    return Bench(backend, VOCABULARIES[vocabulary])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tiny(backend: str) -> Bench:
    return bench_of(backend, "tiny")


@pytest.fixture
def by_byte(backend: str) -> Bench:
    return bench_of(backend, "bytes")


@pytest.fixture(params=["bytes", "pieces"])
def bench(backend: str, request: pytest.FixtureRequest) -> Bench:
    return bench_of(backend, request.param)


# Masks written out, over TINY: 1 a, 2 b, 3 c, 4 ab, 5 bc, 6 abc, 7 cc.


def test_masks_are_as_written_by_hand(tiny: Bench) -> None:
    matcher = tiny.start(Regex("abc*|b"))
    assert (tiny.allowed(matcher), matcher.accepting) == ({1, 2, 4, 6}, False)
    matcher.accept(1)
    assert (tiny.allowed(matcher), matcher.accepting) == ({2, 5}, False)
    matcher.accept(2)
    assert (tiny.allowed(matcher), matcher.accepting) == ({3, 7}, True)
    matcher.accept(7)
    assert (tiny.allowed(matcher), matcher.accepting) == ({3, 7}, True)


def test_a_text_that_may_only_end_allows_nothing_and_accepts(tiny: Bench) -> None:
    matcher = tiny.start(Regex("abc*|b"))
    matcher.accept(2)
    assert (tiny.allowed(matcher), matcher.accepting) == (set(), True)


def test_a_text_may_be_complete_before_it_begins(tiny: Bench) -> None:
    matcher = tiny.start(Regex("c*"))
    assert (tiny.allowed(matcher), matcher.accepting) == ({3, 7}, True)


def test_an_option_that_begins_another_keeps_both_open(tiny: Bench) -> None:
    matcher = tiny.start(Choice(("a", "abc", "ab")))
    assert tiny.allowed(matcher) == {1, 4, 6}
    matcher.accept(1)
    assert (tiny.allowed(matcher), matcher.accepting) == ({2, 5}, True)
    matcher.accept(2)
    assert (tiny.allowed(matcher), matcher.accepting) == ({3}, True)
    matcher.accept(3)
    assert (tiny.allowed(matcher), matcher.accepting) == (set(), True)


def test_an_ordinary_token_spelt_like_a_control_token_is_ordinary(tiny: Bench) -> None:
    matcher = tiny.start(Regex("a(<eos>)?"))
    matcher.accept(1)
    assert (tiny.allowed(matcher), matcher.accepting) == ({8}, True)
    matcher.accept(8)
    assert (tiny.allowed(matcher), matcher.accepting) == (set(), True)


def test_the_words_are_as_written_by_hand(tiny: Bench) -> None:
    words = np.full((2, 1), -1, dtype=np.int32)
    tiny.backend.fill([tiny.start(Regex("[ab]b"))], words, [1])
    real = (1 << tiny.vocabulary.size) - 1
    assert words[1, 0] & real == 0b0000_010110
    assert words[0, 0] == -1, "another row was touched"


# Masks by the dullest code: prefixes of a finite language.

OPTIONS = (
    "ab",
    "abc",
    "a",
    "é",
    "ée",
    "日本",
    "日本a",
    "😀",
    '"a\\"/',
    "-12",
    "<|endoftext|>",
    "\n\n",
)
PARTS = [["a", "日", "é"], ["", "b", "😀"], ["", "/", "//"]]
PRODUCT = tuple(a + b + c for a in PARTS[0] for b in PARTS[1] for c in PARTS[2])


@pytest.mark.parametrize(
    ("constraint", "language"),
    [
        pytest.param(Choice(OPTIONS), OPTIONS, id="choice"),
        pytest.param(Regex("[a日é](b|😀)?/{0,2}"), PRODUCT, id="regex"),
        pytest.param(Regex("^(?:a|é|日)(?:b|\\u{1F600}|)\\/?\\/??$"), PRODUCT, id="ecma regex"),
        pytest.param(
            Ebnf('root ::= [a日é] ("b" | x)? "/"{0,2}\nx ::= "\\U0001F600"'), PRODUCT, id="ebnf"
        ),
        pytest.param(
            Lark('start: ("a" | "日" | "é") ["b" | x] "/"~0..2\nx: /\\u{1F600}/'),
            PRODUCT,
            id="lark",
        ),
        pytest.param(
            JsonSchema.of({"enum": ["a", "ab", "日本", 'b"', 1, 12, None]}),
            ('"a"', '"ab"', '"日本"', '"b\\""', "1", "12", "null"),
            id="enum",
        ),
    ],
)
def test_masks_are_exact(bench: Bench, constraint: Constraint, language: tuple[str, ...]) -> None:
    texts = [text.encode() for text in language]
    for prefix, matcher in walk_everywhere(bench, bench.start(constraint)):
        expected = {
            token
            for token, text in enumerate(bench.vocabulary.token_bytes)
            if text and any(whole.startswith(prefix + text) for whole in texts)
        }
        assert bench.allowed(matcher) == expected, prefix
        assert matcher.accepting == (prefix in texts), prefix


def walk_everywhere(bench: Bench, start: Matcher) -> Iterator[tuple[bytes, Matcher]]:
    """Yield a matcher at each text that masks allow, once however it is spelt."""
    seen = set()
    todo = [(b"", start)]
    while todo:
        text, matcher = todo.pop()
        if text in seen:
            continue
        seen.add(text)
        yield text, matcher
        for token in bench.allowed(matcher):
            after = matcher.fork()
            after.accept(token)
            todo.append((text + bench.vocabulary.token_bytes[token], after))


def test_a_bounded_string_allows_the_tokens_that_fit_however_long(backend: str) -> None:
    """Libraries may allow the tokens of a length without a look at each."""
    endings = ("", "é", '"')
    parts = itertools.product(("", " "), range(1, 16), endings)
    words = [f"{blank}{'ab' * size}{ending}" for blank, size, ending in parts]
    bench = Bench(backend, Vocabulary([*BYTE_LEVEL.token_bytes, *map(str.encode, words)]))
    matcher = bench.start(JsonSchema('{"type": "string", "maxLength": 24}'))
    matcher.accept(ord('"'))
    long = {bench.ids[word.encode()]: word for word in words}
    for written in range(25):
        rest = 24 - written
        fitting = {token for token, word in long.items() if len(word.rstrip('"')) <= rest}
        assert bench.allowed(matcher) & long.keys() == fitting, f"{rest} characters left"
        if rest:
            matcher.accept(ord("a"))


def test_a_large_vocabulary_is_masked_alike(backend: str) -> None:
    bench = Bench(backend, large_vocabulary())
    matcher = bench.start(Regex('"[a-z ]{0,40}" [0-9]+'))
    for byte, pattern in (
        (b'"', r'"[a-z ]*("( [0-9]*)?)?'),
        (b"e", r'[a-z ]*("( [0-9]*)?)?'),
        (b'"', r'[a-z ]*("( [0-9]*)?)?'),
        (b" ", r" [0-9]*"),
        (b"7", r"[0-9]+"),
    ):
        expected = {
            token
            for token, text in enumerate(bench.vocabulary.token_bytes)
            if text and re.fullmatch(pattern, text.decode("latin-1"))
        }
        wrong = bench.allowed(matcher) ^ expected
        assert not wrong, sorted(wrong)[:10]
        matcher.accept(bench.ids[byte])


# Accepting and refusing.


def test_a_refused_token_raises_and_hurts_no_other_matcher(tiny: Bench) -> None:
    compiled = tiny.compile(Regex("abc"))
    first, second = compiled.new_matcher(), compiled.new_matcher()
    fork = first.fork()
    with pytest.raises(GrammarError):
        first.accept(2)
    for matcher in (second, fork, compiled.new_matcher()):
        assert tiny.follow(matcher, [1, 2, 3])


def test_nothing_is_accepted_after_the_end(tiny: Bench) -> None:
    matcher = tiny.start(Regex("ab"))
    matcher.accept(4)
    with pytest.raises(GrammarError):
        matcher.accept(1)


def test_control_tokens_are_never_allowed_and_never_accepted(bench: Bench) -> None:
    control = {token for token, text in enumerate(bench.vocabulary.token_bytes) if text == CONTROL}
    for constraint in (ANYTHING, STRING, BOUNDED, PATTERN, Choice(("<|im_start|>", '"'))):
        matcher = bench.start(constraint)
        assert not control & bench.allowed(matcher)
        if constraint is not ANYTHING:
            matcher.accept(bench.ids[b'"'])
            assert not control & bench.allowed(matcher)
        for token in control:
            with pytest.raises(GrammarError):
                matcher.fork().accept(token)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_very_long_token_is_a_token_like_any_other(backend: str) -> None:
    """B4.6: a run of one character, beside its shortest beginnings."""
    run = b"-" * 300
    texts = [bytes([byte]) for byte in range(256)] + [run[:2], run[:16], run, CONTROL]
    run_id = texts.index(run)
    compiled = build_backend(backend, Vocabulary(texts)).compile(STRING)
    matcher = compiled.new_matcher()
    for token in (ord('"'), run_id, ord('"')):
        matcher.accept(token)
    assert matcher.accepting


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ['root ::= "a"{0} "b"', 'root ::= ("a" "c"){0,0} "b"'])
def test_what_may_come_no_times_at_all_is_empty(backend: str, text: str) -> None:
    """B9.7: it neither comes nor goes on for ever."""
    vocabulary = Vocabulary([b"a", b"b", b"c", CONTROL])
    matcher = build_backend(backend, vocabulary).compile(Ebnf(text)).new_matcher()
    with pytest.raises(GrammarError):
        matcher.fork().accept(0)
    matcher.accept(1)
    assert matcher.accepting


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^[\]\-\[^]{2}$", "]-", "ab"),
        (r'^"/\\\/$', r"\"/\\/", "a/"),
        (r"^(::=|<#>|~){1,2}$", "::=<#>", "a"),
        (r"^\u00e9\x41\cA?$", "éA", "aA"),
        (r"^\{a\}[{}]$", "{a}}", "a}"),
        (r"^(?:)a{0}$", "", "a"),
        (r"^\S\W\D$", "a-b", "a11"),
    ],
)
def test_a_pattern_hard_to_convert_is_refused_or_enforced(
    by_byte: Bench, pattern: str, right: str, wrong: str
) -> None:
    """B4.11: right, wrong: what stands between the quotes of JSON."""
    schema = JsonSchema(json.dumps({"type": "string", "pattern": pattern}))
    try:
        matcher = by_byte.start(schema)
    except ConstraintError:
        return
    assert not matcher.fork().is_completed_by([*f'"{wrong}"'.encode()])
    assert matcher.is_completed_by([*f'"{right}"'.encode()])


def test_filling_leaves_matchers_as_they_are(bench: Bench) -> None:
    matcher = bench.start(PERSON)
    for byte in b'{"name": "a":':
        once = bench.allowed(matcher)
        assert bench.allowed(matcher) == once
        if bench.ids[bytes([byte])] in once:
            matcher.accept(bench.ids[bytes([byte])])


def test_a_batch_is_filled_as_its_rows_alone(bench: Bench) -> None:
    constraints = [PERSON, Regex("[^a]{3,9}"), STRING, BOUNDED, Choice(("ab", '"')), PERSON]
    matchers = [bench.start(constraint) for constraint in constraints]
    matchers[-1].accept(bench.ids[b"{"])
    for matcher in (matchers[2], matchers[3]):
        matcher.accept(bench.ids[b'"'])
    words = bitmask.allocate(8, bench.vocabulary.size)
    rows = [5, 0, 7, 1, 3, 2]
    bench.backend.fill(matchers, words, rows)
    for matcher, row in zip(matchers, rows, strict=True):
        assert set(bitmask.unpack(words[row], bench.vocabulary.size)) == bench.allowed(matcher)
    assert not words[[4, 6]].any()


def test_matchers_of_one_constraint_are_independent(bench: Bench) -> None:
    compiled = bench.compile(Regex("ab*"))
    first, second = compiled.new_matcher(), compiled.new_matcher()
    first.accept(bench.ids[b"a"])
    assert b"a" in bench.texts(second)
    assert b"a" not in bench.texts(first)
    assert (first.accepting, second.accepting) == (True, False)


def test_a_fork_starts_where_its_matcher_is_and_goes_its_own_way(bench: Bench) -> None:
    matcher = bench.start(PERSON)
    for byte in b'{"name":':
        matcher.accept(bench.ids[bytes([byte])])
    before = bench.allowed(matcher)
    fork = matcher.fork()
    assert bench.allowed(fork) == before
    rest = b' "\xe6\x97\xa5", "tag": 12, "list": []}'
    assert bench.follow(fork, (bench.ids[bytes([byte])] for byte in rest))
    assert bench.allowed(matcher) == before
    assert bench.follow(matcher, (bench.ids[bytes([byte])] for byte in rest))


@pytest.mark.parametrize("constraint", [PERSON, ANYTHING, Regex("[^a]{3,90}x|b*")])
def test_tokens_taken_back_were_never_there(bench: Bench, constraint: Constraint) -> None:
    rng = random.Random(0)
    matcher = bench.start(constraint)
    masks = [(bench.allowed(matcher), matcher.accepting)]
    for _ in range(40):
        allowed = sorted(masks[-1][0])
        if not allowed or rng.random() < 0.3:
            count = rng.randrange(len(masks))
            matcher.rollback(count)
            del masks[len(masks) - count :]
        else:
            matcher.accept(rng.choice(allowed))
            masks.append((bench.allowed(matcher), matcher.accepting))
        assert (bench.allowed(matcher), matcher.accepting) == masks[-1]


def test_what_completes_a_text_is_told_without_moving(bench: Bench) -> None:
    matcher = bench.start(Regex("abc?"))
    matcher.accept(bench.ids[b"a"])
    before = bench.allowed(matcher)
    b, c = bench.ids[b"b"], bench.ids[b"c"]
    answers = [matcher.is_completed_by(tokens) for tokens in ([], [b], [b, c], [c], [b, c, c])]
    assert answers == [False, True, True, False, False]
    assert bench.allowed(matcher) == before


# Text that is well-formed whatever the constraint lets through.


@pytest.mark.parametrize(
    "constraint",
    [
        pytest.param(ANYTHING, id="regex"),
        pytest.param(Regex(r"[^\s]*\W*[\u0800-\uffff\u{10000}-\u{10ffff}]*"), id="classes"),
        pytest.param(STRING, id="string"),
        pytest.param(BOUNDED, id="bounded string"),
        pytest.param(PERSON, id="object"),
    ],
)
def test_no_walk_leaves_well_formed_text(bench: Bench, constraint: Constraint) -> None:
    rng = random.Random(str(constraint))
    compiled = bench.compile(constraint)
    for _ in range(25):
        text, complete = random_walk(bench, compiled.new_matcher(), rng)
        codecs.getincrementaldecoder("utf-8")().decode(text, final=complete)
        if isinstance(constraint, JsonSchema):
            assert not re.search(rb"[\x00-\x1f]", text)
            if complete:
                json.dumps(json.loads(text), ensure_ascii=False).encode()


def random_walk(bench: Bench, matcher: Matcher, rng: random.Random) -> tuple[bytes, bool]:
    """Take up to 60 tokens, longer and stranger ones sooner; return the text, and if complete."""
    text = b""
    for _ in range(60):
        allowed = sorted(bench.allowed(matcher))
        if not allowed:
            assert matcher.accepting, f"a dead end after {text!r}"
            break
        strange = [
            token
            for token in allowed
            if re.search(rb"[^ -~]|\\", bench.vocabulary.token_bytes[token])
        ]
        token = rng.choice(strange if strange and rng.random() < 0.5 else allowed)
        matcher.accept(token)
        text += bench.vocabulary.token_bytes[token]
    return text, matcher.accepting


@pytest.mark.parametrize(
    "constraint",
    [ANYTHING, Regex(".*"), STRING, BOUNDED],
    ids=["class", "dot", "string", "bounded"],
)
@pytest.mark.parametrize(
    "text",
    [
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
    ],
    ids=["C0", "E0 80", "ED A0", "F0 80", "F4 90", "FF"],
)
def test_ill_formed_utf8_is_never_allowed(
    bench: Bench, constraint: Constraint, text: bytes
) -> None:
    quote = b'"' if isinstance(constraint, JsonSchema) else b""
    assert not bench.obeys(constraint, quote + text + quote)


@pytest.mark.parametrize("schema", [STRING, BOUNDED], ids=["string", "bounded"])
@pytest.mark.parametrize(
    "text", [rb"\ud83d", rb"\uD83Dx", rb"\ude00", rb"\ud83d\ud83d", rb"\ud83d\n", rb"\udFFF"]
)
def test_a_lone_surrogate_escape_is_never_allowed(
    bench: Bench, schema: JsonSchema, text: bytes
) -> None:
    assert not bench.obeys(schema, b'"' + text + b'"')


@pytest.mark.parametrize("whitespace", Whitespace)
@pytest.mark.parametrize("character", ["\n", "\t", "\r", "\0", "\x1f"])
def test_raw_control_characters_are_never_in_json(
    by_byte: Bench, character: str, whitespace: Whitespace
) -> None:
    for schema in (STRING, BOUNDED, JsonSchema('{"type": "string", "pattern": "[a-z]"}')):
        assert not by_byte.obeys(JsonSchema(schema.schema, whitespace), f'"a{character}"')
    assert not by_byte.obeys(JsonSchema(PERSON.schema, whitespace), f"{{{character}")


# Kinds.


def test_compact_json_has_one_blank_after_commas_and_colons(bench: Bench) -> None:
    text = '{"name": "日 , :", "tag": null, "list": [1, -20]}'
    assert bench.obeys(PERSON, text)
    assert not bench.obeys(PERSON, text.replace('": ', '":'))
    assert not bench.obeys(PERSON, text.replace("1, ", "1,"))
    assert not bench.obeys(PERSON, text.replace("1, ", "1,  "))
    assert not bench.obeys(PERSON, text.replace("{", "{ "))


@pytest.mark.parametrize("required", [[], ["a"], ["c"], ["a", "c"], ["b"], ["a", "b", "c"]])
def test_compact_json_has_the_same_blanks_whichever_properties_are_there(
    by_byte: Bench, required: list[str]
) -> None:
    schema = JsonSchema.of(
        {
            "type": "object",
            "properties": {name: {"enum": [1]} for name in "abc"},
            "required": required,
            "additionalProperties": False,
        }
    )
    for size in range(4):
        for names in itertools.combinations("abc", size):
            text = json.dumps(dict.fromkeys(names, 1))
            assert by_byte.obeys(schema, text) == (set(required) <= set(names)), text
            for other in (text.replace(", ", ","), text.replace("{", "{ ")):
                assert other == text or not by_byte.obeys(schema, other), other


def test_flexible_json_has_a_bounded_number_of_blanks(bench: Bench) -> None:
    flexible = JsonSchema(PERSON.schema, Whitespace.FLEXIBLE)
    text = '{"name": "日 , :", "tag": null, "list": [1, -20]}'
    for variant in (text, text.replace(", ", ","), text.replace("{", "{  ").replace(": ", "  : ")):
        assert bench.obeys(flexible, variant)
    for variant in (text.replace("1, ", "1,   "), text.replace("{", "{   "), text + "   "):
        assert not bench.obeys(flexible, variant)


def test_any_json_object_is_an_object(by_byte: Bench) -> None:
    if not by_byte.backend.supports(JsonObject()):
        pytest.skip("this backend has no such kind")
    for text in ("{}", '{"é": [1, {"b": "\\n"}], "c": null}'):
        assert by_byte.obeys(JsonObject(), text)
    for text in ("[]", "1", '{"a":1}', '{"a": \t1}'):
        assert not by_byte.obeys(JsonObject(), text)


def test_a_recursive_grammar_is_followed_or_refused(by_byte: Bench) -> None:
    for pairs in (Ebnf('root ::= "a" root "b" | "c"'), Lark('start: "a" start "b" | "c"')):
        if by_byte.backend.name == "outlines_core":
            with pytest.raises(BeyondBackend):
                by_byte.compile(pairs)
            continue
        assert by_byte.obeys(pairs, "aacbb")
        assert not by_byte.obeys(pairs, "aacb")


@pytest.mark.parametrize(
    ("pattern", "accepts", "rejects"),
    [
        (r"\d+", "0123456789", "٣"),
        (r"\w+", "aZ_9", "é"),
        (r"^a+$", "aa", "aab"),
        (r"^a$|^b$", "b", "ab"),
        (r"(?<year>\d{4})-\d{2}", "2024-01", "2024-1"),
        (r"(a|ab)(c|bcd)?", "abcd", "acd"),
        (r"a+?b*?", "aabb", "b"),
        (r"[\]\-\\^]+", "]-\\^", "["),
        (r"\x41B\t", "AB\t", "AB "),
        (r"a/b\/c", "a/b/c", "a/b"),
        (r"[[a&&b]+", "[&ab", "]"),
        (r"(^a|b$)|c", "b", "ab"),
        (r".", "é", "\n"),
        (r"[^\d\s]\S", "aé", "a "),
        ("a\nb", "a\nb", "anb"),
        ("(^a)+", "a", "aa"),
        ("x*^a|b$y*", "a", "xa"),
        ("(|a){2}", "", "aaa"),
        (r"\s", "\u2003", "\u200b"),
        (r"\u{1F600}\ud83d\ude01", "😀😁", "😀"),
        (r"[\w-]+", "a-_", "é"),
    ],
)
def test_a_regex_is_ecma_and_matches_the_whole(
    by_byte: Bench, pattern: str, accepts: str, rejects: str
) -> None:
    assert by_byte.obeys(Regex(pattern), accepts)
    assert not by_byte.obeys(Regex(pattern), rejects)


# Refusals.


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (Regex("("), "regex"),
        (Regex("a{2,1}"), "regex"),
        (Regex(r"(a)\1"), "regex"),
        (Regex("(?=a)a"), "regex"),
        (Regex(r"a\b"), "regex"),
        (Regex("(?!a)b"), "regex"),
        (Regex("(?<=a)b"), "regex"),
        (Regex(r"(?<x>a)\k<x>"), "regex"),
        (Regex("(?i)a"), "regex"),
        (Regex("a$b"), "regex"),
        (Regex("[]"), "regex"),
        (Regex(r"[\ud800-\udfff]"), "regex"),
        (Regex("a^b"), "regex"),
        (JsonSchema('{"type": "frobnicate"}'), "json_schema"),
        (JsonSchema("false"), "json_schema"),
        (JsonSchema('{"type": "string", "pattern": "("}'), "json_schema"),
        (JsonSchema('{"$ref": "#/$defs/missing"}'), "json_schema"),
        (Ebnf("root ::= undefined"), "grammar.text"),
        (Lark("start: undefined"), "grammar.text"),
        (StructuralTag('{"type": "structural_tag"}'), "structural_tag"),
        (Lark('start: %json {"type": "null"}'), "grammar.text"),
    ],
    ids=str,
)
def test_a_bad_constraint_is_refused_with_its_field(
    by_byte: Bench, constraint: Constraint, field: str
) -> None:
    with pytest.raises(ConstraintError) as refusal:
        by_byte.compile(constraint)
    assert refusal.value.field == f"{FIELD}.{field}"
    assert refusal.value.message
    assert not re.search(r"\.cc:|\.rs:|<\w+>|backtrace|panic|%llg|x-g|\n\n", refusal.value.message)


@pytest.mark.parametrize(
    "constraint",
    [
        Regex(r"[^\s\S]"),
        Choice(("日",)),
        JsonSchema('{"const": "é"}'),
        Ebnf('root ::= "é"'),
        Lark("start: /日/"),
    ],
    ids=str,
)
def test_an_empty_language_is_refused(tiny: Bench, constraint: Constraint) -> None:
    """Over the tiny vocabulary, so is one that its tokens cannot spell."""
    with pytest.raises(ConstraintError):
        tiny.compile(constraint)


def test_a_kind_that_is_not_supported_is_refused(by_byte: Bench) -> None:
    for constraint in (
        Ebnf('root ::= "a"'),
        Lark('start: "a"'),
        JsonObject(),
        STRING,
        Choice(("a",)),
        Regex("a"),
    ):
        if by_byte.backend.supports(constraint):
            by_byte.compile(constraint)
        else:
            with pytest.raises(ConstraintError):
                by_byte.compile(constraint)


def test_options_of_a_library_inside_a_schema_do_nothing(by_byte: Bench) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
    options = {"x-guidance": {"item_separator": "@@", "whitespace_pattern": "!*", "lenient": True}}
    assert by_byte.obeys(JsonSchema.of(schema | options), "[1, 2]")
    assert not by_byte.obeys(JsonSchema.of(schema | options), "[1@@2]")


def test_threads_compile_side_by_side(backend: str) -> None:
    bench = Bench(backend, SENTENCE_PIECES)
    patterns = [f"a{{{n},{n + 2}}}" for n in range(1, 25)]
    with ThreadPoolExecutor(4) as pool:
        compiled = list(pool.map(lambda pattern: bench.compile(Regex(pattern)), patterns))
    for n, grammar in enumerate(compiled, start=1):
        assert bench.follow(grammar.new_matcher(), [bench.ids[b"a"]] * (n + 2))
        assert not bench.follow(grammar.new_matcher(), [bench.ids[b"a"]] * (n - 1))


def test_a_compiled_constraint_has_a_size(by_byte: Bench) -> None:
    small, large = by_byte.compile(STRING), by_byte.compile(PERSON)
    assert 0 < small.size_bytes < large.size_bytes
