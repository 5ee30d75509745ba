"""Patterns: read as ECMA-262 has them, written without anchors inside, compared by automata."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structgen.grammar.schema import LLGUIDANCE, XGRAMMAR, patterns
from structgen.grammar.schema.language import anchored, excluding, whole
from structgen.grammar.schema.regex import RegexError, RegexUnsupported, parse

TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("abc", repeat=size)]

atoms = st.sampled_from(["a", "b", "[^a]", "[ab]", ".", r"[\s\S]", r"\w", "^", "$"])
expressions: st.SearchStrategy[str] = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


def found_by_python(pattern: str, text: str) -> bool:
    return re.search(pattern.replace("$", r"\Z"), text) is not None


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(pattern=expressions)
def test_a_pattern_is_found_where_the_whole_expression_matches(pattern: str) -> None:
    try:
        node = whole(pattern)
    except RegexUnsupported:
        return
    for text in TEXTS:
        expected = found_by_python(pattern, text)
        assert (node is not None and bool(re.fullmatch(anchored(node), text))) == expected, text
        assert patterns.found_in(pattern, text) == expected, text


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(pair=st.tuples(expressions, expressions))
def test_patterns_are_called_disjoint_only_if_no_text_has_both(pair: tuple[str, str]) -> None:
    try:
        apart = patterns.disjoint(pair)
    except RegexUnsupported:
        return
    common = [text for text in TEXTS if all(found_by_python(one, text) for one in pair)]
    assert not (apart and common), common


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("^ab$", "^ab$"),
        ("ab", r"^[\s\S]*ab[\s\S]*$"),
        ("^a", r"^a[\s\S]*$"),
        ("^a|b$", r"^(?:a[\s\S]*|[\s\S]*b)$"),
        ("(^a|b)c", r"^(?:ac[\s\S]*|[\s\S]*bc[\s\S]*)$"),
        ("^$|^x$", "^(?:|x)$"),
        (".*", r"^[\s\S]*$"),
        ("", r"^[\s\S]*$"),
        (r"^\d\w\s$", None),
        (r"^(a|b|$)*$", "^(?:a|b)*$"),
        ("^.$", r"^[^\u000a\u000d\u2028\u2029]$"),
        (r"^\u0041\x42\t\/$", r"^AB\u0009\/$"),
        (r"^\ud83d\ude00$", "^😀$"),
        (r"^(?<n>a){2,3}?$", "^a{2,3}$"),
        (r"^[\w.-]+$", r"^[\-.0-9A-Z_a-z]+$"),
        (r"^\p{L}[\p{N}_]$", r"^\p{L}[\p{N}_]$"),
    ],
)
def test_patterns_are_written_with_anchors_at_the_ends_alone(
    pattern: str, written: str | None
) -> None:
    text = patterns.written(pattern, LLGUIDANCE)
    assert text is not None
    if written is not None:
        assert text == written


def test_a_pattern_that_nothing_has_is_known() -> None:
    assert whole("/^a$/") is None
    assert patterns.found_in("a^b", "ab") is False


@pytest.mark.parametrize("pattern", ["(?=a)", "(?!a)b", "(?<=a)", r"\bx", r"(a)\1", "(?i)a", "[]"])
def test_what_no_automaton_has_is_not_supported(pattern: str) -> None:
    assert not patterns.supported(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[a", "*", "a{2,1}", "a{,2}", "[b-a]", r"\q", r"\u12", "a**", "{"]
)
def test_what_is_no_expression_is_told_apart(pattern: str) -> None:
    with pytest.raises(RegexError) as caught:
        parse(pattern)
    assert not isinstance(caught.value, RegexUnsupported) or pattern == "a**"


@given(words=st.lists(st.text("ab", max_size=3), min_size=1, max_size=4, unique=True))
@settings(derandomize=True, deadline=None, database=None)
def test_the_texts_but_for_some_are_all_others(words: list[str]) -> None:
    regex = excluding(tuple(words))
    for text in TEXTS:
        assert bool(re.fullmatch(regex, text)) == (text not in words)


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"^a\x01$", None),
        (r"^(a|\x01b|[\x01\x02]c|[\x00-z]d)$", r"^(?:a|[\u0000-z]d)$"),
        (r"^a\x7f*b\x1f+|c$", r"^[\s\S]*c$"),
        (r"^a\x7f*\n$", r"^a\u000a$"),
    ],
)
def test_what_needs_an_escape_by_number_is_left_out_for_llguidance(
    pattern: str, written: str | None
) -> None:
    assert patterns.written(pattern, LLGUIDANCE) == written


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "^a",
        "b$",
        "^a$",
        "^(a|b)$",
        "^.$",
        ".*",
        "^[ab]+$",
        "^a|b$",
        "$^",
        "^(a.*b|b.*a)$",
        "^b{1,2}$",
    ],
)
def test_a_complement_is_found_where_the_pattern_is_not(pattern: str) -> None:
    other = patterns.complement(pattern)
    assert other is not None
    for text in TEXTS:
        assert bool(re.search(other, text)) != bool(re.search(pattern, text)), text


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?!a)b",
        "^(?=.*b)a+",
        "^(?!ab$)[ab]*$",
        "^(?!(a|[)b]))(?=..)",
        "^(?!.*aa).*$",
        "^(?!a)",
        "^(?=b)a",
    ],
)
def test_look_aheads_at_the_beginning_are_carried_out(pattern: str) -> None:
    other = patterns.without_looks(pattern)
    assert "(?!" not in other
    assert "(?=" not in other
    for text in TEXTS:
        assert bool(re.search(other, text)) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize("pattern", ["^(?!a)b|c", "a(?=b)", "(?=a)b", "^(?!a", "^(?<!a)b", "^a"])
def test_other_patterns_are_left_as_they_are(pattern: str) -> None:
    assert patterns.without_looks(pattern) == pattern


def test_patterns_are_parted_into_every_way_to_be_found() -> None:
    both = ("^.{1,2}$", "a")
    found = patterns.parted(both)
    assert found is not None
    for text in TEXTS:
        way = tuple(bool(re.search(pattern, text)) for pattern in both)
        assert [hits for hits, one in found.items() if re.search(one, text)] == [way]


@pytest.mark.parametrize("pattern", [r"^\p{L}$", "^(a|b)*a(a|b){9}$", "(?=a)b"])
def test_what_is_too_large_or_not_known_has_no_complement(pattern: str) -> None:
    assert patterns.complement(pattern) is None


def test_long_texts_are_excluded_without_nesting_too_deeply() -> None:
    words = ("x" * 180 + "y", "x" * 90 + "z" * 70)
    regex = excluding(words)
    texts = [word[:end] + more for word in words for end in (0, 1, 89, 90, 160) for more in "xyz"]
    texts += [words[0] + "x", words[1][:-1]]
    assert all(patterns.found_in(regex, text) for text in texts)
    assert not any(patterns.found_in(regex, word) for word in words)


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("^[a-z]{0,255}$", True),
        ("^(?:a|b){0,3}$", True),
        ("^(?:a|b){0,300}$", False),
        ("^(?:ab|ac)$", True),
        ("^a(?:b(?:c)?|b)$", False),
        ("^a(?:bc?|cb?)$", True),
        (r"^\p{L}$", False),
    ],
)
def test_xgrammar_is_given_only_what_it_matches_rightly(pattern: str, taken: bool) -> None:
    assert (patterns.written(pattern, XGRAMMAR) is not None) == taken


@pytest.mark.parametrize("text", ["٣", "é", "a\u00a0", "\ufeff", "_", "\n", "\u2028", "7", " "])
@pytest.mark.parametrize("pattern", [r"\d", r"\w", r"\s", r"\S", ".", r"[^\w]", r"^.$"])
def test_classes_are_those_of_the_validator(pattern: str, text: str) -> None:
    validator: Any = jsonschema_rs.validator_for({"pattern": pattern})
    assert patterns.found_in(pattern, text) == validator.is_valid(text)
