"""What can be known of patterns, each by its text; every answer is right or "not known"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from structgen.grammar.schema import charset, language
from structgen.grammar.schema.automaton import Automaton, TooLarge, shortest_common
from structgen.grammar.schema.deterministic import Deterministic
from structgen.grammar.schema.dialect import Dialect
from structgen.grammar.schema.regex import Alternation, RegexError, RegexUnsupported, parse


@lru_cache(maxsize=1024)
def supported(pattern: str) -> bool:
    """Whether the pattern can be said without anchors inside, look-around and the like.

    Raises RegexError: not a regular expression.
    """
    try:
        parse(pattern)
        language.whole(pattern)
    except RegexUnsupported:
        return False
    return True


def written(pattern: str, dialect: Dialect) -> str | None:
    """Return the pattern in words of a dialect, with both anchors; None: it has none for it."""
    node = language.whole(pattern)
    if node is not None:
        node = language.without(node, charset.of("".join(dialect.not_in_patterns)))
    if node is not None and dialect.quotes_slip_in:
        node = language.keeping_quotes_out(node)
    if node is not None and not dialect.intricate_patterns:
        node = language.spelt_out(node)
    if node is None or not (dialect.intricate_patterns or language.distinct(node)):
        return None
    text = language.anchored(node)
    special = "\\p{" in text or "\\P{" in text
    return None if special and not dialect.unicode_properties else text


@lru_cache(maxsize=1024)
def listed(pattern: str, most: int) -> list[str] | None:
    """Return the texts that have the pattern; None: more than so many, or not known."""
    node = language.whole(pattern)
    return [] if node is None else language.words(node, most)


@lru_cache(maxsize=4096)
def found_in(pattern: str, text: str) -> bool | None:
    automaton = _automaton(pattern)
    if automaton is None:
        return None if language.whole(pattern) is not None else False
    if not automaton.accepts(text):
        return False
    return True if automaton.exact else None


def universal(pattern: str) -> bool:
    """Whether the pattern is plainly found in every text."""
    return language.everything(language.whole(pattern))


def disjoint(patterns: Sequence[str], longest: int | None = None) -> bool:
    """Whether provably no text, of at most `longest` characters, has all of the patterns."""
    return _disjoint(tuple(dict.fromkeys(patterns)), longest)


@lru_cache(maxsize=256)
def complement(pattern: str) -> str | None:
    """Write a pattern for the texts in which another is not found; None: it is not known."""
    found = parted((pattern,))
    return None if found is None else found.get((False,), _NOWHERE)


@lru_cache(maxsize=256)
def parted(patterns: tuple[str, ...]) -> dict[tuple[bool, ...], str] | None:
    """Write patterns that no two texts have in common and together all have, one for each way that
    some of the given patterns are found and others are not.  None: they are not known.
    """
    if not all(map(supported, patterns)):
        return None
    nodes = [language.whole(pattern) for pattern in patterns]
    if None in nodes:
        return None
    try:
        automaton = Deterministic([Automaton(node) for node in nodes if node])
        ways = sorted(set(automaton.signatures))
        found = {way: automaton.expression(way.__eq__) for way in ways}
    except TooLarge:
        return None
    texts = {way: language.anchored(node) for way, node in found.items() if node is not None}
    return texts if all(map(supported, texts.values())) else None


@lru_cache(maxsize=1024)
def without_looks(pattern: str) -> str:
    """Return the pattern with the look-aheads that it begins with carried out, if that can be said:
    ^(?!a)b is found where ^b is and ^a is not."""
    looks, rest = _looks(pattern)
    if not looks:
        return pattern
    wanted = (True, *(is_wanted for is_wanted, _ in looks))
    try:
        if isinstance(parse(rest), Alternation):  # the look-aheads are of its first option alone
            return pattern
        nodes = [language.whole(text) for text in (rest, *(text for _, text in looks))]
        automata = [Automaton(node) for node in nodes if node is not None]
        if len(automata) < len(nodes):
            return pattern
        node = Deterministic(automata).expression(wanted.__eq__)
    except (RegexError, TooLarge):
        return pattern
    text = _NOWHERE if node is None else language.anchored(node)
    return text if supported(text) else pattern


def _looks(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """Return the look-aheads that a pattern begins with, as patterns that have to be found (True)
    or must not be, and the pattern without them."""
    looks = []
    rest = pattern[1:]
    while pattern.startswith("^") and rest.startswith(("(?=", "(?!")):
        end = _end_of_group(rest)
        if end is None:
            return [], pattern
        looks.append((rest[2] == "=", f"^(?:{rest[3 : end - 1]})"))
        rest = rest[end:]
    return looks, f"^{rest}"


def _end_of_group(text: str) -> int | None:
    """Return where the group that a text begins with ends."""
    depth = 0
    for mark in _MARKS.finditer(text):
        depth += {"(": 1, ")": -1}.get(mark[0], 0)
        if depth == 0:
            return mark.end()
    return None


_MARKS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)  # escapes and sets are passed over
_NOWHERE = "$a"  # in no text


@lru_cache(maxsize=1024)
def _disjoint(patterns: tuple[str, ...], longest: int | None) -> bool:
    if any(language.whole(pattern) is None for pattern in patterns):
        return True
    automata = [_automaton(pattern) for pattern in patterns]
    known = [automaton for automaton in automata if automaton is not None]
    try:
        return bool(known) and shortest_common(known, longest) is None
    except TooLarge:
        return False


@lru_cache(maxsize=1024)
def _automaton(pattern: str) -> Automaton | None:
    node = language.whole(pattern)
    try:
        return None if node is None else Automaton(node)
    except TooLarge:
        return None
