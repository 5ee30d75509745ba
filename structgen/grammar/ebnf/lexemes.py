"""A grammar in Lark's notation as llguidance reads it, for grammars that are not regular.

Its lexer takes the longest terminal, so that one which may end before the next begins with what
could continue it would lose texts.  So every terminal is one character, and all else is rules: then
no terminal is longer than another, and the parser, of Earley's kind, follows every reading.
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
from structgen.grammar.ecma_regex import Style, Writer
from structgen.grammar.limits import MAX_GRAMMAR_LEXEMES

_QUANTIFIERS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def to_lexemes(grammar: Grammar) -> str:
    """Return rules that begin with `start`.

    Raises BeyondBackend: it would be too large.  ValueError: a class has no character.
    """
    return _Lexemes(grammar).text()


class _Lexemes:
    """terminals: a character, as a regex -> its name."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._writer = Writer(Style.RUST)
        self._terminals: dict[str, str] = {}
        self._names = {name: f"rule{index}" for index, name in enumerate(grammar.rules)}
        self._names[grammar.root] = "start"

    def text(self) -> str:
        rules, size = [], 0
        for rule in self._grammar.rules.values():
            rules.append(f"{self._names[rule.name]}: {self._write(rule.body)}")
            size += len(rules[-1])
            if size > MAX_GRAMMAR_LEXEMES:
                raise BeyondBackend(
                    f"grammar: character by character it would have more than "
                    f"{MAX_GRAMMAR_LEXEMES} characters",
                    field=GRAMMAR_FIELD,
                )
        rules += [f"{name}: /{pattern}/" for pattern, name in self._terminals.items()]
        return "\n".join(rules)

    def _write(self, node: Node) -> str:
        match node:
            case Literal("") | Repeat(_, _, 0) | Concat(()):
                return '""'
            case Literal(text):
                return " ".join(self._terminal(self._writer.text(one).text) for one in text)
            case Chars():
                return self._terminal(self._writer.write(node).text)
            case Reference(name, _):
                return self._names[name]
            case Concat(items):
                return " ".join(map(self._write, items))
            case Alternation(options):
                return f"({' | '.join(map(self._write, options))})"
            case Repeat(item, low, high):
                bounds = f"{{{low},{'' if high is None else high}}}"
                return f"({self._write(item)}){_QUANTIFIERS.get((low, high), bounds)}"
        raise AssertionError(node)

    def _terminal(self, pattern: str) -> str:
        return self._terminals.setdefault(pattern, f"T{len(self._terminals)}")
