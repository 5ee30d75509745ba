"""A grammar as text again, in the notation that xgrammar reads.

Nothing of the client's text comes through but the language: rules have names of our own, which
are no macros, and every character that could be syntax is a number.
"""

from __future__ import annotations

from structgen.errors import BeyondBackend
from structgen.grammar.ebnf.fault import GRAMMAR_FIELD
from structgen.grammar.ebnf.tree import (
    Alternation,
    Chars,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Repeat,
)
from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges

_QUANTIFIERS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_SCALARS = charset.complement(((0xD800, 0xDFFF),))


def to_gbnf(grammar: Grammar) -> str:
    """Return the rules; the one to start from is named root.

    Raises BeyondBackend: a class of the grammar has no such notation.
    """
    names = {name: f"rule{index}" for index, name in enumerate(grammar.rules)}
    names[grammar.root] = "root"
    lines = [
        f"{names[name]} ::= {_write(rule.body, names)}" for name, rule in grammar.rules.items()
    ]
    return "\n".join(lines)


def _write(node: Node, names: dict[str, str]) -> str:
    match node:
        case Literal(text):
            return f'"{"".join(map(_number, text))}"'
        case Chars(ranges, ""):
            return _class(charset.meet(ranges, _SCALARS))
        case Chars(_, property):
            raise BeyondBackend(
                f"grammar: the Unicode property {property} is more than xgrammar takes",
                field=GRAMMAR_FIELD,
            )
        case Reference(name, _):
            return names[name]
        case Concat(()):
            return '""'
        case Concat(items):
            return " ".join(_group(item, names) for item in items)
        case Alternation(options):
            return " | ".join(_write(option, names) for option in options)
        case Repeat(_, _, 0):
            return '""'
        case Repeat(item, low, high):
            inside = f"({_write(item, names)})" if isinstance(item, Repeat) else _group(item, names)
            return inside + (_QUANTIFIERS.get((low, high)) or _bounds(low, high))
    raise AssertionError(node)


def _group(node: Node, names: dict[str, str]) -> str:
    text = _write(node, names)
    return f"({text})" if isinstance(node, Alternation | Concat) else text


def _bounds(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _class(ranges: Ranges) -> str:
    ends = [(_number(chr(low)), _number(chr(high))) for low, high in ranges]
    return f"[{''.join(low if low == high else f'{low}-{high}' for low, high in ends)}]"


def _number(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
