"""The GBNF dialect of EBNF, as xgrammar reads it, parsed.

    root ::= pair ("," pair)*        # a comment
    pair ::= [a-z]+ "=" [^,\\n]{1,9}

A rule begins on a line of its own and goes on up to the next.  Not taken, because they are no part
of a grammar's language or of no other library's: lookahead `(= ...)`, the macros of xgrammar
(TagDispatch, Token, ...), attributes of rules.
"""

from __future__ import annotations

from structgen.errors import ConstraintError
from structgen.grammar.ebnf.fault import malformed, too_large
from structgen.grammar.ebnf.groups import QUANTIFIERS, Bounds, Groups, count
from structgen.grammar.ebnf.tokens import Kind, Token, class_of, text_of, tokens
from structgen.grammar.ebnf.tree import Chars, Grammar, Literal, Node, Reference, Rule
from structgen.grammar.limits import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_RULES
from structgen.grammar.schema import charset

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


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens(text))
        self._next = 0

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
            raise self._error(name.at, f"expected a rule, as in name ::= ..., got {name.shown}")
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
        groups = Groups(self._text, name.at, empty_options=False)
        while self._peek().kind is not Kind.END and not self._begins_rule():
            self._element(self._take(), groups)
        after = self._peek()
        return groups.finish(after.at, after.shown)

    def _element(self, token: Token, groups: Groups) -> None:
        match token.kind:
            case Kind.TEXT:
                groups.add(Literal(text_of(token, self._text)))
            case Kind.CLASS:
                groups.add(Chars(class_of(token, self._text)))
            case Kind.NAME:
                groups.add(self._reference(token))
            case Kind.SIGN:
                self._sign(token, groups)
            case _:
                raise self._error(token.at, f"unexpected {token.spelling}")

    def _reference(self, token: Token) -> Node:
        if token.spelling == _ANY:
            return Chars(charset.EVERY)
        if token.spelling in _MACROS and self._peek().spelling == "(":
            raise self._error(token.at, f"the macro {token.spelling} is not supported")
        return Reference(token.spelling, token.at)

    def _sign(self, token: Token, groups: Groups) -> None:
        match token.spelling:
            case "(":
                groups.open(token.at, "(")
            case ")":
                groups.close(token.at, ")")
            case "|":
                groups.next_option(token.at)
            case "(=":
                raise self._error(token.at, "a lookahead (= is not supported")
            case "{":
                groups.repeat(token.at, "{", self._bounds())
            case "*" | "+" | "?":
                groups.repeat(token.at, token.spelling, QUANTIFIERS[token.spelling])
            case _:
                raise self._error(token.at, f"unexpected {token.spelling}")

    def _bounds(self) -> Bounds:
        low = self._number()
        high: int | None = low
        if self._peek().spelling == ",":
            self._take()
            high = self._number() if self._peek().kind is Kind.NUMBER else None
        end = self._take()
        if end.spelling != "}":
            raise self._error(end.at, f"expected a repetition, as in {{2,5}}, got {end.shown}")
        return low, high

    def _number(self) -> int:
        token = self._take()
        if token.kind is not Kind.NUMBER:
            raise self._error(token.at, f"expected a number, got {token.shown}")
        return count(self._text, token.at, token.spelling)

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _error(self, at: int, what: str) -> ConstraintError:
        return malformed(self._text, at, what)
