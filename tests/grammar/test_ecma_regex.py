"""Patterns are rewritten character by character, and refused by name where they cannot be."""

from __future__ import annotations

import re

import pytest

from structgen.grammar.ecma_regex import Style, escape, translate


@pytest.mark.parametrize(
    ("pattern", "ecma", "rust"),
    [
        ("a/b\n", r"a\u{2F}b\u{A}", r"a\x{2F}b\x{A}"),
        (r"\x41B", "AB", "AB"),
        (r"[\d_]", r"[0-9\u{5F}]", r"[0-9\x{5F}]"),
        ("[[a&&b]", r"[\u{26}\u{5B}a-b]", r"[\x{26}\x{5B}a-b]"),
        ("a*?", "(?:a){0,}", "(?:a){0,}"),
        (r"\ud83d\ude00", r"\u{1F600}", r"\x{1F600}"),
        ("^a$|^b$", "(?:a|b)", "(?:a|b)"),
    ],
)
def test_a_pattern_is_rewritten_for_each_dialect(pattern: str, ecma: str, rust: str) -> None:
    assert translate(pattern, Style.ECMA).text == ecma
    assert translate(pattern, Style.RUST).text == rust


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "look-around is not supported"),
        (r"(a)\1", "a back-reference is not supported"),
        (r"a\b", "a word boundary is not supported"),
        ("(?i)a", "group options is not supported"),
        ("a^b", "anchors rule out every text"),
        ("(", "missing )"),
        ("a)", "unmatched )"),
        ("a{2,1}", "out of order"),
        (r"[^\s\S]", "no character"),
        (r"\ud800", "no character"),
    ],
)
def test_what_cannot_be_matched_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        translate(pattern, Style.RUST)


def test_reserved_characters_are_left_out_or_refused() -> None:
    assert translate("[^b]", Style.RUST, "\0").text == (
        r"[\x{1}-a c-\x{D7FF}\x{E000}-\x{10FFFF}]".replace(" ", "")
    )
    with pytest.raises(ValueError, match="no character"):
        translate(r"a\0", Style.RUST, "\0")


def test_repetitions_are_spelt_out_in_the_counts() -> None:
    counted = translate("(?:ab[0-9]{3}){2,5}c+", Style.RUST)
    assert (counted.characters, counted.classes) == (12, 15)


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        (r"[a-z]\d é", True),
        ('[^"\\\\\x00-\x1f]*', True),
        (".", False),
        ('a"', False),
        (r"\s", False),
    ],
)
def test_it_is_known_whether_json_would_escape(pattern: str, plain: bool) -> None:
    assert translate(pattern, Style.RUST).plain is plain


def test_an_escaped_text_is_itself() -> None:
    assert escape("a/[日]\\", Style.RUST) == r"a\x{2F}\x{5B}日\x{5D}\x{5C}"
