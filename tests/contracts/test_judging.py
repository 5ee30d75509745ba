"""Judging a text by masks: one verdict, whatever makes the masks and whatever tokens they have."""

from __future__ import annotations

import json
import random
import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching import BYTE_LEVEL, SENTENCE_PIECES, TINY, Bench

from structgen.constraints import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.errors import InternalError, LimitExceeded
from structgen.grammar import BACKENDS
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.judging import judge
from structgen.grammar.spelling import Spelling
from structgen.messages import TextVerdict

VOCABULARIES = {"tiny": TINY, "bytes": BYTE_LEVEL, "pieces": SENTENCE_PIECES}

TAGS = ['"é"', '"è"', '"日本"', "true", "null"]
PERSON = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "tag": {"enum": [json.loads(tag) for tag in TAGS]},
        },
        "required": ["name", "tag"],
        "additionalProperties": False,
    }
)


@cache
def place(backend: str, vocabulary: str) -> tuple[Bench, Spelling]:
    return Bench(backend, VOCABULARIES[vocabulary]), Spelling(VOCABULARIES[vocabulary])


class Court:
    """Judges by one backend over one vocabulary."""

    def __init__(self, backend: str, vocabulary: str) -> None:
        self._bench, self._spelling = place(backend, vocabulary)

    def judge(self, constraint: Constraint, text: str | bytes, **options: object) -> TextVerdict:
        return judge(
            self._bench.compile(constraint),
            self._bench.backend,
            self._spelling,
            text.encode() if isinstance(text, str) else text,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["bytes", "pieces"])
def court(backend: str, request: pytest.FixtureRequest) -> Court:
    return Court(backend, request.param)


@pytest.fixture
def tiny(backend: str) -> Court:
    return Court(backend, "tiny")


# ---- the verdict


def test_a_whole_text_is_accepted_and_nothing_may_follow(court: Court) -> None:
    verdict = court.judge(PERSON, '{"name": "Ada", "tag": "é"}')
    assert verdict.accepted
    assert not verdict.is_prefix
    assert verdict.expected == []


def test_an_accepted_text_may_go_on(court: Court) -> None:
    verdict = court.judge(Regex("(ab)*c?"), "abab")
    assert verdict.accepted
    assert verdict.expected == ["ab", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ['{"name": "']),
        ('{"na', ['me": "']),
        ('{"name": "Adaaa', [f'", "tag": {value}}}' for value in TAGS]),
        ('{"name": "Ada", "tag": ', [f"{value}}}" for value in TAGS]),
        ('{"name": "Ada", "tag": "', ['日本"}', 'é"}', 'è"}']),
        ('{"name": "Ada", "tag": null', ["}"]),
    ],
)
def test_a_beginning_is_a_prefix_and_what_must_follow_is_told(
    court: Court, text: str, expected: list[str]
) -> None:
    verdict = court.judge(PERSON, text)
    assert verdict.is_prefix
    assert not verdict.accepted
    assert set(expected) == set(verdict.expected)


@pytest.mark.parametrize(
    ("text", "offset", "expected"),
    [
        ("x", 0, {'{"name": "'}),
        ('{"name":"Ada"', 8, {' "'}),
        ('{"name": "Adaaaa"', 15, {f'", "tag": {value}}}' for value in TAGS}),
        ('{"name": "Ada", "tag": nil}', 24, {"ull}"}),
        ('{"name": "Ada", "tag": 7}', 23, {f"{value}}}" for value in TAGS}),
    ],
)
def test_the_first_byte_that_cannot_stand_is_found(
    court: Court, text: str, offset: int, expected: set[str]
) -> None:
    verdict = court.judge(PERSON, text)
    assert verdict.error_offset == offset
    assert not verdict.accepted
    assert not verdict.is_prefix
    assert not verdict.may_end
    assert set(verdict.expected) == expected


def test_a_complete_text_with_something_after_it_could_have_ended(court: Court) -> None:
    verdict = court.judge(PERSON, '{"name": "Ada", "tag": null}\n')
    assert verdict.error_offset == 28
    assert verdict.may_end
    assert verdict.expected == []


def test_an_offset_inside_a_character_tells_whole_characters(court: Court) -> None:
    text = '{"name": "Ada", "tag": "ê"}'  # é, è and ê begin with the same byte
    verdict = court.judge(PERSON, text)
    assert verdict.error_offset == text.encode().index("ê".encode()) + 1
    assert set(verdict.expected) == {'é"}', 'è"}', '日本"}'}


def test_inside_a_string_the_end_is_told_before_what_may_fill_it(court: Court) -> None:
    verdict = court.judge(PERSON, '{"name": "A')
    assert verdict.expected[0] == '", "tag": '
    assert 1 < len(verdict.expected) <= 8
    assert all(len(text) == 1 for text in verdict.expected[1:])


def test_a_text_that_is_not_utf8_is_refused_where_it_breaks(court: Court) -> None:
    assert court.judge(Regex("é*"), "éé".encode() + b"\xc3\xff").error_offset == 5
    assert court.judge(Regex("é*"), "éé".encode() + b"\xff").error_offset == 4


@pytest.mark.parametrize("backend", ["xgrammar"])
def test_a_grammar_is_judged_like_anything_else(court: Court) -> None:
    nested = Ebnf('root ::= "(" root ")" | "é"')
    assert court.judge(nested, "((é))").accepted
    assert court.judge(nested, "((é)").expected == [")"]
    assert court.judge(nested, "(é))").error_offset == 4


# ---- spelling


def test_a_vocabulary_without_some_bytes_still_spells_what_its_tokens_do(tiny: Court) -> None:
    """`<eos>` is a token; its characters are none."""
    letters = Regex("(<eos>|a|bc)*")
    assert tiny.judge(letters, "a<eos>bc").accepted
    within = tiny.judge(letters, "a<eo")
    assert within.is_prefix
    assert within.expected == ["s>"]
    beyond = tiny.judge(letters, "a<eox")
    assert beyond.error_offset == 4
    assert beyond.expected == ["s>"]
    assert tiny.judge(letters, "ax").error_offset == 1


# outlines-core refuses what leads nowhere.
@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_the_longest_token_is_given_up_where_it_leads_nowhere(backend: str) -> None:
    """Only "ab" + "cd" spells the text: no token is a "d" alone, so "abc" is no good."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"c", b"ab", b"abc", b"cd", b"cdab"])
    bench, spelling = Bench(backend, vocabulary), Spelling(vocabulary)
    grammar = bench.compile(Regex("(abcd)*"))

    def verdict(text: str) -> TextVerdict:
        return judge(grammar, bench.backend, spelling, text.encode())

    assert verdict("abcd").accepted
    assert verdict("abcdabcd" * 20).accepted
    assert verdict("abcdabc").is_prefix
    assert verdict("abcdabca").error_offset == 7
    assert verdict("abcdabdd").error_offset == 6


TEXTS = st.one_of(
    st.text(alphabet='ab{}[]": ,0é日😀\\u\n', max_size=12),
    st.builds(
        lambda name, tag, cut, more: f'{{"name": "{name}", "tag": {tag}}}'[:cut] + more,
        st.text(alphabet="abé日\\n", max_size=6),
        st.sampled_from(['"é"', '"日本"', "true", "nil", '"日"']),
        st.integers(0, 40),
        st.sampled_from(["", "", "a", '"', "}", "é"]),
    ),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_verdict_does_not_depend_on_the_tokens(backend: str, text: str) -> None:
    verdicts = [Court(backend, name).judge(PERSON, text) for name in ("bytes", "pieces")]
    assert verdicts[0].error_offset == verdicts[1].error_offset
    assert verdicts[0].may_end == verdicts[1].may_end


CALLS = StructuralTag(
    json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<f="],
                "tags": [
                    {
                        "type": "tag",
                        "begin": f"<f={name}>",
                        "content": {"type": "json_schema", "json_schema": {"enum": ["é", 1]}},
                        "end": "</f>",
                    }
                    for name in "ab"
                ],
            },
        }
    )
)


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (CALLS, '< é <f=a>"é"</f> and <f=b>1</f> <f'),
        (Ebnf('root ::= "(" root ")" | [a-z]+ "é"?'), "((abcé))"),
        (Lark('start: "(" start ")" | /[a-z]+/ "é"?'), "((abcé))"),
    ],
)
def test_nor_does_it_of_grammars_and_tags(constraint: Constraint, text: str) -> None:
    rng = random.Random(0)
    pieces = {text[i : i + size].encode() for size in range(2, 6) for i in range(len(text))}
    vocabulary = Vocabulary([*BYTE_LEVEL.token_bytes, *sorted(pieces)])
    courts = [(Bench("xgrammar", one), Spelling(one)) for one in (BYTE_LEVEL, vocabulary)]
    grammars = [bench.compile(constraint) for bench, _ in courts]
    accepted = 0
    for _ in range(60):
        at, left_out = rng.randrange(len(text) + 1), rng.randrange(3)
        garbled = text[:at] + rng.choice(["", "", "<", "é", '"', "f=", ")"]) + text[at + left_out :]
        one, other = (
            judge(grammar, bench.backend, spelling, garbled.encode())
            for grammar, (bench, spelling) in zip(grammars, courts, strict=True)
        )
        assert (one.error_offset, one.may_end) == (other.error_offset, other.may_end), garbled
        accepted += one.accepted
    assert 0 < accepted < 60


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_expected_may_indeed_follow(backend: str, text: str) -> None:
    court = Court(backend, "pieces")
    verdict = court.judge(PERSON, text)
    data = text.encode()
    legal = data if verdict.error_offset is None else data[: verdict.error_offset]
    whole = legal.decode(errors="ignore").encode()
    for expected in verdict.expected:
        assert court.judge(PERSON, whole + expected.encode()).error_offset is None, expected


def test_a_random_walk_over_masks_is_accepted(backend: str) -> None:
    """What the masks let be generated, token by token, is what judging accepts."""
    bench, _ = place(backend, "pieces")
    rng = random.Random(0)
    for constraint in (PERSON, Regex("([a-c]{2}|é)+,?"), Choice(("hello", "help", "日本"))):
        for _ in range(10):
            matcher, text = bench.start(constraint), b""
            while not matcher.accepting:
                token = rng.choice(sorted(bench.allowed(matcher)))
                matcher.accept(token)
                text += bench.vocabulary.token_bytes[token]
            assert Court(backend, "pieces").judge(constraint, text).accepted


# ---- bounds


def test_judging_ends_when_its_time_is_over(court: Court) -> None:
    began = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"more than 0.02 s, for \d+ of its 200000 bytes"):
        court.judge(Regex("a*"), "a" * 200_000, limit_s=0.02)
    assert time.monotonic() - began < 5


def test_a_library_that_fails_is_our_error(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise GrammarError("out of fuel")

    bench, spelling = place(backend, "bytes")
    grammar = bench.compile(Regex("a*"))
    monkeypatch.setattr(bench.backend, "fill", fail)
    with pytest.raises(InternalError, match="no mask for the constraint: out of fuel"):
        judge(grammar, bench.backend, spelling, b"aa")
