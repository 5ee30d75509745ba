"""The GBNF dialect of EBNF, as xgrammar reads it, parsed.

    root ::= pair ("," pair)*        # a comment
    pair ::= [a-z]+ "=" [^,\\n]{1,9}

A rule begins on a line of its own and goes on up to the next.  Not taken, because they are no part
of a grammar's language or of no other library's: lookahead `(= ...)`, the macros of xgrammar
(TagDispatch, Token, ...), attributes of rules.
"""

from __future__ import annotations

import msgspec

from structgen.errors import ConstraintError
from structgen.grammar.ebnf.fault import malformed, too_large
from structgen.grammar.ebnf.tokens import Kind, Token, class_of, text_of, tokens
from structgen.grammar.ebnf.tree import (
    EMPTY,
    Alternation,
    Chars,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Rule,
    repeat,
)
from structgen.grammar.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_DEPTH,
    MAX_GRAMMAR_REPETITION,
    MAX_GRAMMAR_RULES,
)
from structgen.grammar.schema import charset

_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MACROS = {"TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch", "Regex"}
_ANY = "."


def parse(text: str, root: str) -> Grammar:
    """Parse the rules; whether they make sense is for `check` to say.

    Raises ConstraintError, ConstraintTooLarge: with the place.
    """
    size = len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise too_large(text, 0, "the size in bytes", size, MAX_GRAMMAR_BYTES)
    return Grammar(text, _Parser(text).rules(), root)


class _Group(msgspec.Struct):
    """An open group, or a whole rule.  options: what was read of it, the last one still open."""

    at: int
    options: list[list[Node]]
    repeatable: bool = False  # whether what was read last is an element, and bare

    def add(self, node: Node) -> None:
        self.options[-1].append(node)
        self.repeatable = True

    def close(self) -> Node:
        nodes = [items[0] if len(items) == 1 else Concat(tuple(items)) for items in self.options]
        return nodes[0] if len(nodes) == 1 else Alternation(tuple(nodes))


class _Parser:
    """Without recursion, so that the depth of the text is limited by nothing but its limit."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens(text))
        self._next = 0
        self._groups: list[_Group] = []

    def rules(self) -> dict[str, Rule]:
        rules: dict[str, Rule] = {}
        while self._peek().kind is not Kind.END:
            rule = self._rule()
            if rule.name in rules:
                raise self._error(rule.at, f"the rule {rule.name!r} is defined twice")
            rules[rule.name] = rule
            if len(rules) > MAX_GRAMMAR_RULES:
                raise too_large(
                    self._text, rule.at, "the number of rules", len(rules), MAX_GRAMMAR_RULES
                )
        return rules

    def _rule(self) -> Rule:
        name = self._peek()
        if not self._begins_rule():
            raise self._error(
                name.at, f"expected a rule, as in name ::= ..., got {_shown(name.spelling)}"
            )
        self._next += 2
        return Rule(name.spelling, name.at, self._body(name))

    def _begins_rule(self) -> bool:
        """Whether a rule comes next.  Raises ConstraintError: not where a line begins."""
        name, after = self._peek(), self._peek(1)
        if name.kind is not Kind.NAME:
            return False
        if after.kind is Kind.CLASS and self._peek(2).kind is Kind.ASSIGN:
            raise self._error(after.at, "attributes of a rule are not supported")
        if after.kind is not Kind.ASSIGN:
            return False
        before = self._tokens[self._next - 1] if self._next else None
        if before and not {"\n", "\r"} & set(
            self._text[before.at + len(before.spelling) : name.at]
        ):
            raise self._error(name.at, f"the rule {name.spelling!r} must begin on its own line")
        return True

    def _body(self, name: Token) -> Node:
        self._groups = [_Group(name.at, [[]])]
        while self._peek().kind is not Kind.END and not self._begins_rule():
            self._element(self._take())
        if len(self._groups) > 1:
            raise self._error(self._groups[-1].at, "a ( without its closing )")
        self._require_option(self._peek())
        return self._groups[0].close()

    def _element(self, token: Token) -> None:
        match token.kind:
            case Kind.TEXT:
                self._groups[-1].add(Literal(text_of(token, self._text)))
            case Kind.CLASS:
                self._groups[-1].add(Chars(class_of(token, self._text)))
            case Kind.NAME:
                self._groups[-1].add(self._reference(token))
            case Kind.SIGN:
                self._sign(token)
            case _:
                raise self._error(token.at, f"unexpected {token.spelling}")

    def _reference(self, token: Token) -> Node:
        if token.spelling == _ANY:
            return Chars(charset.EVERY)
        if token.spelling in _MACROS and self._peek().spelling == "(":
            raise self._error(token.at, f"the macro {token.spelling} is not supported")
        return Reference(token.spelling, token.at)

    def _sign(self, token: Token) -> None:
        match token.spelling:
            case "(":
                self._open(token)
            case ")":
                self._close(token)
            case "|":
                self._require_option(token)
                self._groups[-1].options.append([])
                self._groups[-1].repeatable = False
            case "(=":
                raise self._error(token.at, "a lookahead (= is not supported")
            case "{":
                self._repeat(token, self._bounds(token))
            case "*" | "+" | "?":
                self._repeat(token, _QUANTIFIERS[token.spelling])
            case _:
                raise self._error(token.at, f"unexpected {token.spelling}")

    def _open(self, token: Token) -> None:
        self._groups.append(_Group(token.at, [[]]))
        depth = len(self._groups) - 1
        if depth > MAX_GRAMMAR_DEPTH:
            raise too_large(self._text, token.at, "the nesting of groups", depth, MAX_GRAMMAR_DEPTH)

    def _close(self, token: Token) -> None:
        if len(self._groups) == 1:
            raise self._error(token.at, "a ) without its opening (")
        if self._groups[-1].options == [[]]:  # () is the empty text
            self._groups[-1].add(EMPTY)
        self._require_option(token)
        node = self._groups.pop().close()
        self._groups[-1].add(node)

    def _require_option(self, token: Token) -> None:
        if not self._groups[-1].options[-1]:
            raise self._error(
                token.at,
                f'expected an element before {_shown(token.spelling)}; "" is the empty text',
            )

    def _repeat(self, token: Token, bounds: tuple[int, int | None]) -> None:
        group = self._groups[-1]
        if not group.repeatable:
            raise self._error(token.at, f"nothing for {token.spelling} to repeat")
        group.options[-1][-1] = repeat(group.options[-1][-1], *bounds)
        group.repeatable = False

    def _bounds(self, brace: Token) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._peek().spelling == ",":
            self._take()
            high = self._number() if self._peek().kind is Kind.NUMBER else None
        end = self._take()
        if end.spelling != "}":
            raise self._error(
                end.at, f"expected a repetition, as in {{2,5}}, got {_shown(end.spelling)}"
            )
        if high is not None and high < low:
            raise self._error(brace.at, f"the bounds of {{{low},{high}}} are out of order")
        return low, high

    def _number(self) -> int:
        token = self._take()
        if token.kind is not Kind.NUMBER:
            raise self._error(token.at, f"expected a number, got {_shown(token.spelling)}")
        number = int(token.spelling[:20])  # Python converts no number of thousands of digits
        if number > MAX_GRAMMAR_REPETITION or len(token.spelling) > 20:
            raise too_large(self._text, token.at, "a repetition", number, MAX_GRAMMAR_REPETITION)
        return number

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _error(self, at: int, what: str) -> ConstraintError:
        return malformed(self._text, at, what)


def _shown(spelling: str) -> str:
    return repr(spelling[:40]) if spelling else "the end"
