"""What a regular expression finds, said as what the whole text is.

Libraries differ in whether a pattern is searched for and in what an anchor inside means.  They
agree on expressions without anchors that match a text from end to end: `whole` makes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations

from structgen.grammar.schema import charset
from structgen.grammar.schema.regex import (
    ANY,
    ANYTHING,
    EMPTY,
    Alternation,
    Chars,
    Concat,
    End,
    Node,
    RegexUnsupported,
    Repeat,
    Start,
    nullable,
    parse,
)

MAX_ALTERNATIVES = 64
MAX_SPELT_NODES = 1_000
MAX_OPTIONAL = 30  # copies of a repeated expression, one in the other

# Texts to be excluded: together no longer than this, or the expression grows too large.
MAX_EXCLUDED_CHARACTERS = 400
MAX_EXCLUDED_LEVELS = 40  # of alternatives, one in the other

# at_start, what matches, at_end: the match begins (ends) where the text does.
Alternative = tuple[bool, Node, bool]


@lru_cache(maxsize=1024)
def whole(text: str) -> Node | None:
    """Return an expression without anchors for the texts in which `text` is found; None: there
    are none.

    Raises RegexUnsupported, RegexError.
    """
    options = []
    for at_start, core, at_end in _alternatives(parse(text)):
        if nullable(core) and not (at_start and at_end):
            return ANYTHING
        options.append(
            join(*([] if at_start else [ANYTHING]), core, *([] if at_end else [ANYTHING]))
        )
    if not options:
        return None
    return either(*options)


def anchored(node: Node) -> str:
    """Write an expression that matches whole texts, with both anchors."""
    return f"^{_written(node, inside=True)}$" if node != EMPTY else "^$"


def spelt_out(node: Node) -> Node | None:
    """Return the expression without counted repetitions; None: it grows beyond MAX_SPELT_NODES.

    xgrammar takes some groups with a "?" or a count for optional character by character; where
    there are no alternatives and no groups, it counts well.
    """
    if _counts_plainly(node):
        return node
    budget = [MAX_SPELT_NODES]
    found = _spelt_out(node, budget)
    return found if budget[0] >= 0 else None


def _counts_plainly(node: Node) -> bool:
    match node:
        case Concat(items):
            return all(_counts_plainly(item) for item in items)
        case Repeat(item, _, _):
            return isinstance(item, Chars)
    return isinstance(node, Chars)


def distinct(node: Node) -> bool:
    """Whether nothing may be left out of alternatives that begin alike.

    xgrammar 0.2 takes too much there: of a(?:b(?:|c)|b) also "abcc".
    """
    match node:
        case Alternation(options):
            firsts = [_firsts(option) for option in options]
            apart = all(not charset.meet(one, two) for one, two in combinations(firsts, 2))
            return (apart or all(map(_solid, options))) and all(map(distinct, options))
        case Concat(items):
            return all(map(distinct, items))
        case Repeat(item, _, _):
            return distinct(item)
    return True


def _solid(node: Node) -> bool:
    """Whether no part may be empty."""
    if nullable(node):
        return False
    match node:
        case Alternation(items) | Concat(items):
            return all(map(_solid, items))
        case Repeat(item, _, _):
            return _solid(item)
    return True


def _firsts(node: Node) -> charset.Ranges:
    """Return the characters that a match may begin with."""
    match node:
        case Chars(ranges, _):
            return ranges
        case Alternation(options):
            return charset.normal(pair for option in options for pair in _firsts(option))
        case Repeat(item, _, _):
            return _firsts(item)
        case Concat(items):
            found: list[tuple[int, int]] = []
            for item in items:
                found += _firsts(item)
                if not nullable(item):
                    break
            return charset.normal(found)
    raise AssertionError(node)


def everything(node: Node | None) -> bool:
    return node == ANYTHING


@lru_cache(maxsize=256)
def excluding(words: tuple[str, ...]) -> str:
    """Write an expression that matches every text but these."""
    return anchored(none_of(words))


def none_of(words: Sequence[str]) -> Node:
    """Return an expression for every text but these."""
    longest = max(map(len, words), default=0)
    return _none_of(words, stem=1 + longest // MAX_EXCLUDED_LEVELS)


def _none_of(words: Sequence[str], stem: int) -> Node:
    """stem: how many letters that all words begin with are taken before a level is opened.

    With one, the next letter always tells which alternative is meant.
    """
    options: list[Node] = []
    common: list[Node] = []
    while True:
        options += [] if "" in words else [join(*common)]
        firsts = sorted({word[0] for word in words if word})
        others = Chars(charset.complement(charset.of("".join(firsts))))
        options.append(join(*common, others, ANYTHING))
        if len(firsts) != 1 or len(common) + 1 >= stem:
            break
        common.append(Chars(charset.of(firsts[0])))
        words = [word[1:] for word in words if word]
    for first in firsts:
        rest = _none_of([word[1:] for word in words if word.startswith(first)], stem)
        options.append(join(*common, Chars(charset.of(first)), rest))
    return either(*options)


def words(node: Node, most: int) -> list[str] | None:
    """Return every text of an expression; None: they are more, or not known."""
    match node:
        case Chars(ranges, class_text):
            if class_text or sum(high - low + 1 for low, high in ranges) > most:
                return None
            return [chr(code) for low, high in ranges for code in range(low, high + 1)]
        case Alternation(options):
            found = [words(option, most) for option in options]
            listed = None if None in found else [word for part in found for word in part or ()]
        case Concat(items):
            listed = _combinations(items, most)
        case Repeat(item, low, high) if high is not None and high <= most:
            runs = [_combinations((item,) * times, most) for times in range(low, high + 1)]
            listed = None if None in runs else [word for run in runs for word in run or ()]
        case _:
            return None
    unique = list(dict.fromkeys(listed or ()))
    return None if listed is None or len(unique) > most else unique


def _combinations(items: Sequence[Node], most: int) -> list[str] | None:
    found = [""]
    for item in items:
        ends = words(item, most)
        if ends is None or len(found) * len(ends) > most:
            return None
        found = [begin + end for begin in found for end in ends]
    return found


def without(node: Node, characters: charset.Ranges) -> Node | None:
    """Return the expression but for alternatives that need one of these characters; None: all do.

    A set that has others too is left as it is.
    """
    others = charset.complement(characters)

    def change(of: Chars) -> Chars | None:
        return of if of.class_text or charset.meet(of.ranges, others) else None

    return _with_sets(node, change)


def keeping_quotes_out(node: Node) -> Node | None:
    """Return the expression without NUL in sets that lack a quote or a backslash, which then do not
    have all control characters; None: nothing is left."""
    return _with_sets(node, _keeping_quotes_out)


_QUOTES = charset.of('"\\')
_NUL = charset.of("\0")
# Of Unicode's properties, categories and scripts that have no control characters.
_WITHOUT_CONTROLS = re.compile(
    r"((General_Category|gc)=)?([LMNPSZ][a-z]?|Letter|Mark|Number|Punctuation|Symbol|Separator"
    r"|[A-Z][a-z]+_(Letter|Mark|Number|Punctuation|Symbol|Separator))"
    r"|Alphabetic|Lowercase|Uppercase|(Script|sc)=(?!Common|Zyyy).*"
)


def _keeping_quotes_out(of: Chars) -> Chars | None:
    text = of.class_text
    if text.startswith("[^"):
        return Chars(of.ranges, r"[^\u0000" + ("\\" if text[2] == "-" else "") + text[2:])
    if text.startswith(r"\P"):
        return Chars(of.ranges, rf"[^\u0000\p{text[2:]}]")
    if text:
        names = re.findall(r"\\p\{(.*?)\}", text)
        plain = r"\P{" not in text and all(map(_WITHOUT_CONTROLS.fullmatch, names))
        return of if plain else None
    if charset.meet(of.ranges, _QUOTES) == _QUOTES or not charset.meet(of.ranges, _NUL):
        return of
    rest = charset.meet(of.ranges, charset.complement(_NUL))
    return Chars(rest) if rest else None


def _with_sets(node: Node, change: Callable[[Chars], Chars | None]) -> Node | None:
    """Return the expression with every set changed, and without what needs one that is dropped
    (None); None: all does."""
    match node:
        case Chars():
            return change(node)
        case Concat(items):
            parts = [_with_sets(item, change) for item in items]
            return None if None in parts else join(*(part for part in parts if part))
        case Alternation(options):
            found = [one for option in options if (one := _with_sets(option, change))]
            return either(*found) if found else None
        case Repeat(item, low, high):
            inner = _with_sets(item, change)
            if inner is None:
                return None if low else EMPTY
            return Repeat(inner, low, high)
    return node


def one_of(words: list[str]) -> Node:
    return either(*(join(*(Chars(charset.of(letter)) for letter in word)) for word in words))


def sized(low: int, high: int | None) -> Node:
    """Return an expression for the texts of this many characters."""
    return Repeat(ANY, low, high)


def join(*nodes: Node) -> Node:
    items: list[Node] = []
    for node in nodes:
        items += node.items if isinstance(node, Concat) else [node]
    return items[0] if len(items) == 1 else Concat(tuple(items))


def either(*nodes: Node) -> Node:
    unique = tuple(dict.fromkeys(nodes))
    return unique[0] if len(unique) == 1 else Alternation(unique)


def _spelt_out(node: Node, budget: list[int]) -> Node:
    """budget: how many nodes may still be made; not kept to once it is below 0."""
    budget[0] -= 1
    match node:
        case _ if budget[0] < 0:
            return node
        case Concat(items):
            return join(*(_spelt_out(item, budget) for item in items))
        case Alternation(options):
            return either(*(_spelt_out(option, budget) for option in options))
        case Repeat(item, low, high):
            budget[0] -= low if high is None else high
            if high is not None and high - low > MAX_OPTIONAL:
                budget[0] = -1  # nested too deeply
            return node if budget[0] < 0 else _repeated_out(item, low, high, budget)
    return node


def _repeated_out(item: Node, low: int, high: int | None, budget: list[int]) -> Node:
    tail: Node = EMPTY if high is not None else Repeat(_spelt_out(item, budget), 0, None)
    for _ in range(0 if high is None else high - low):
        tail = either(EMPTY, join(_spelt_out(item, budget), tail))
    return join(*(_spelt_out(item, budget) for _ in range(low)), tail)


def _alternatives(node: Node) -> list[Alternative]:
    match node:
        case Start():
            return [(True, EMPTY, False)]
        case End():
            return [(False, EMPTY, True)]
        case _ if not _has_anchor(node):
            return [(False, node, False)]
        case Alternation(options):
            return [found for option in options for found in _alternatives(option)]
        case Concat(items):
            return _sequence([_alternatives(item) for item in items])
        case Repeat(item, low, high):
            return _repeated(_alternatives(item), low, high)
    raise AssertionError(node)


def _sequence(parts: list[list[Alternative]]) -> list[Alternative]:
    result: list[Alternative] = [(False, EMPTY, False)]
    for part in parts:
        result = [
            joined
            for left in result
            for right in part
            if (joined := _joined(left, right)) is not None
        ]
        if len(result) > MAX_ALTERNATIVES:
            raise RegexUnsupported("anchors in too many places")
    return result


def _joined(left: Alternative, right: Alternative) -> Alternative | None:
    """Return left then right; None: it never matches, as something stands beyond an anchor."""
    first, second = left[1], right[1]
    if right[0] and first != EMPTY:
        if not nullable(first):
            return None
        first = EMPTY
    if left[2] and second != EMPTY:
        if not nullable(second):
            return None
        second = EMPTY
    return left[0] or right[0], join(first, second), left[2] or right[2]


def _repeated(found: list[Alternative], low: int, high: int | None) -> list[Alternative]:
    """Repeat what has an anchor on one side at most: that one comes last, or first."""
    once = [] if low else [(False, EMPTY, False)]
    if high == 1:
        return once + found
    if high is not None or low > 1:
        raise RegexUnsupported("a repeated anchor")
    free = [core for start, core, end in found if not start and not end]
    star: list[Alternative] = [(False, Repeat(either(*free), 0, None) if free else EMPTY, False)]
    firsts = [one for one in found if one[0] and not one[2]]
    lasts = [one for one in found if one[2] and not one[0]]
    both = [one for one in found if one[0] and one[2]]
    middle = _sequence([[(False, EMPTY, False), *firsts], star, [(False, EMPTY, False), *lasts]])
    result = middle + both
    return result if low == 0 else _sequence([found, result])


def _has_anchor(node: Node) -> bool:
    match node:
        case Start() | End():
            return True
        case Concat(items) | Alternation(items):
            return any(_has_anchor(item) for item in items)
        case Repeat(item, _, _):
            return _has_anchor(item)
    return False


def _written(node: Node, inside: bool = False) -> str:
    """inside: it has to be one item of a sequence, so an alternation needs a group."""
    match node:
        case Chars(ranges, class_text):
            return class_text or _written_set(ranges)
        case Concat(items):
            return "".join(_written(item, inside=True) for item in items)
        case Alternation(options):
            text = "|".join(_written(option) for option in options)
            return f"(?:{text})" if inside else text
        case Repeat(item, low, high):
            text = _written(item, inside=True)
            if not isinstance(item, Chars | Alternation):
                text = f"(?:{text})"
            return text + _quantifier(low, high)
    raise AssertionError(node)


def _quantifier(low: int, high: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in known:
        return known[low, high]
    return f"{{{low},}}" if high is None else f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _written_set(ranges: charset.Ranges) -> str:
    if ranges == charset.EVERY:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _escaped(ranges[0][0], r"\.*+?()[]{}|^$/")
    inverted = ranges[-1][1] == charset.LAST
    listed = charset.complement(ranges) if inverted else ranges
    return f"[{'^' if inverted else ''}{''.join(_written_range(*one) for one in listed)}]"


def _written_range(low: int, high: int) -> str:
    ends = [_escaped(code, r"\]^-[") for code in (low, high)]
    return ends[0] if low == high else "-".join(ends) if high > low + 1 else "".join(ends)


def _escaped(code: int, special: str) -> str:
    if 0xD800 <= code < 0xE000 or code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029):
        return f"\\u{code:04x}"
    return f"\\{chr(code)}" if chr(code) in special else chr(code)
