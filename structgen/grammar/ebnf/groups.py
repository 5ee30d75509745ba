"""The body of a rule while it is read: its open groups, without recursion, so that the depth of a
text is limited by nothing but its limit.
"""

from __future__ import annotations

import msgspec

from structgen.grammar.ebnf.fault import malformed, too_large
from structgen.grammar.ebnf.tree import EMPTY, Alternation, Concat, Node, repeat
from structgen.grammar.limits import MAX_GRAMMAR_DEPTH, MAX_GRAMMAR_REPETITION

Bounds = tuple[int, int | None]

QUANTIFIERS: dict[str, Bounds] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CLOSING = {"(": ")", "[": "]"}


class _Group(msgspec.Struct):
    """options: what was read of it, the last one still open."""

    at: int
    sign: str
    options: list[list[Node]]
    repeatable: bool = False  # whether what was read last is an element, and bare


class Groups:
    """The open groups, innermost last; the first is the body itself.

    empty_options: whether an option may be nothing at all; else the empty text is written "".
    All methods raise ConstraintError or ConstraintTooLarge, with the place.
    """

    def __init__(self, text: str, at: int, *, empty_options: bool) -> None:
        self._text = text
        self._empty_options = empty_options
        self._open = [_Group(at, "", [[]])]

    @property
    def depth(self) -> int:
        return len(self._open) - 1

    def add(self, node: Node) -> None:
        self._open[-1].options[-1].append(node)
        self._open[-1].repeatable = True

    def open(self, at: int, sign: str) -> None:
        self._open.append(_Group(at, sign, [[]]))
        if self.depth > MAX_GRAMMAR_DEPTH:
            raise too_large(self._text, at, "the nesting of groups", self.depth, MAX_GRAMMAR_DEPTH)

    def close(self, at: int, sign: str) -> None:
        """Close a group; one in brackets may be left out."""
        opened = self._open[-1].sign
        if _CLOSING.get(opened) != sign:
            matching = "(" if sign == ")" else "["
            raise malformed(self._text, at, f"a {sign} without its opening {matching}")
        if self._open[-1].options == [[]]:  # () is the empty text
            self.add(EMPTY)
        node = self._finished(at, repr(sign))
        self._open.pop()
        self.add(repeat(node, 0, 1) if sign == "]" else node)

    def next_option(self, at: int) -> None:
        self._require_option(at, "'|'")
        self._open[-1].options.append([])
        self._open[-1].repeatable = False

    def repeat(self, at: int, sign: str, bounds: Bounds) -> None:
        """Repeat what was read last.  sign: as it is written."""
        group = self._open[-1]
        low, high = bounds
        if not group.repeatable:
            raise malformed(self._text, at, f"nothing for {sign} to repeat")
        if high is not None and high < low:
            raise malformed(self._text, at, f"the bounds {low} and {high} are out of order")
        group.options[-1][-1] = repeat(group.options[-1][-1], low, high)
        group.repeatable = False

    def finish(self, at: int, before: str) -> Node:
        """Return the body, which ends here.  before: what comes next, for a message."""
        if self.depth:
            group = self._open[-1]
            raise malformed(
                self._text, group.at, f"a {group.sign} without its closing {_CLOSING[group.sign]}"
            )
        return self._finished(at, before)

    def _finished(self, at: int, before: str) -> Node:
        self._require_option(at, before)
        options = [
            items[0] if len(items) == 1 else Concat(tuple(items)) if items else EMPTY
            for items in self._open[-1].options
        ]
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def _require_option(self, at: int, before: str) -> None:
        if not self._open[-1].options[-1] and not self._empty_options:
            raise malformed(
                self._text, at, f'expected an element before {before}; "" is the empty text'
            )


def count(text: str, at: int, digits: str) -> int:
    """Read the number of a repetition.  Raises ConstraintTooLarge."""
    number = int(digits[:20])  # Python converts no number of thousands of digits
    if number > MAX_GRAMMAR_REPETITION or len(digits) > 20:
        raise too_large(text, at, "a repetition", number, MAX_GRAMMAR_REPETITION)
    return number
