"""A Lark grammar's text as rules; its dialect is described where the package begins."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from structgen.errors import ConstraintError
from structgen.grammar.ebnf.fault import malformed, too_large
from structgen.grammar.ebnf.groups import QUANTIFIERS, Bounds, Groups, count
from structgen.grammar.ebnf.tree import Chars, Grammar, Literal, Node, Reference, Rule, references
from structgen.grammar.lark.common import COMMON
from structgen.grammar.lark.patterns import pattern_node, regex_node, text_node
from structgen.grammar.lark.tokens import Kind, Token, tokens
from structgen.grammar.limits import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_RULES

_MODIFIERS = ("?", "!")
_DIRECTIVES = ("%import", "%ignore")


class LarkGrammar(msgspec.Struct, frozen=True):
    """ignored: what may stand between terminals."""

    grammar: Grammar
    ignored: list[Node]


def is_terminal(name: str) -> bool:
    return name.isupper()


def parse(text: str, start: str) -> LarkGrammar:
    """Parse the rules; whether they make sense is for `check` to say.

    Raises ConstraintError, ConstraintTooLarge: with the place.
    """
    size = len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise too_large(text, 0, "the size in bytes", size, MAX_GRAMMAR_BYTES)
    parser = _Parser(text)
    parser.read()
    terminals = [rule.body for rule in parser.rules.values() if is_terminal(rule.name)]
    for node in [*terminals, *parser.ignored]:
        for reference in references(node):
            if not is_terminal(reference.name):
                raise malformed(
                    text, reference.at, f"a terminal must not use the rule {reference.name!r}"
                )
    return LarkGrammar(Grammar(text, parser.rules, start), parser.ignored)


class _Parser:
    def __init__(self, text: str) -> None:
        self.rules: dict[str, Rule] = {}
        self.ignored: list[Node] = []
        self._text = text
        self._tokens = list(tokens(text))
        self._next = 0
        self._in_terminal = False

    def read(self) -> None:
        while self._peek().kind is not Kind.END:
            if self._peek().kind is Kind.DIRECTIVE:
                self._directive(self._take())
            else:
                self._rule()

    # ---- rules

    def _rule(self) -> None:
        start = self._peek()
        if not self._begins_statement():
            raise self._error(start.at, f"expected a rule, as in name: ..., got {start.shown}")
        while self._peek().spelling in _MODIFIERS:
            self._take()
        name = self._take()
        if self._take().spelling != ":":
            raise self._foreign_head(name)
        self._in_terminal = is_terminal(name.spelling)
        self._define(Rule(name.spelling, name.at, self._body(name.at)))

    def _define(self, rule: Rule) -> None:
        if rule.name in self.rules:
            raise self._error(rule.at, f"{rule.name!r} is defined twice")
        self.rules[rule.name] = rule
        if len(self.rules) > MAX_GRAMMAR_RULES:
            raise too_large(
                self._text, rule.at, "the number of rules", len(self.rules), MAX_GRAMMAR_RULES
            )

    def _begins_statement(self) -> bool:
        """Whether a rule or directive comes next, which it can only where a line begins."""
        token = self._peek()
        before = self._tokens[self._next - 1] if self._next else None
        end = before.at + len(before.spelling) if before else 0
        if before and not {"\n", "\r"} & set(self._text[end : token.at]):
            return False
        if token.kind is Kind.DIRECTIVE:
            return True
        ahead = 0
        while self._peek(ahead).spelling in _MODIFIERS:
            ahead += 1
        if self._peek(ahead).kind not in (Kind.RULE, Kind.TERMINAL):
            return False
        return self._peek(ahead + 1).spelling == ":" or self._is_foreign_head(ahead + 1)

    def _is_foreign_head(self, ahead: int) -> bool:
        """Whether priorities, parameters or attributes, and then a colon, follow a name."""
        sign = self._peek(ahead).spelling
        if sign == ".":
            return self._peek(ahead + 2).spelling == ":"
        closing = {"{": "}", "[": "]"}.get(sign)
        while closing and self._peek(ahead).kind is not Kind.END:
            if self._peek(ahead).spelling == closing:
                return self._peek(ahead + 1).spelling == ":"
            if self._peek(ahead).spelling == ":":
                return False
            ahead += 1
        return False

    def _foreign_head(self, name: Token) -> ConstraintError:
        sign = self._tokens[self._next - 1]
        what = {".": "priorities", "{": "templates", "[": "attributes of a rule"}[sign.spelling]
        return self._error(sign.at, f"{what} are not supported, at {name.spelling!r}")

    def _body(self, at: int) -> Node:
        groups = Groups(self._text, at, empty_options=True)
        while self._peek().kind is not Kind.END and not self._begins_statement():
            self._element(self._take(), groups)
        after = self._peek()
        return groups.finish(after.at, after.shown)

    def _element(self, token: Token, groups: Groups) -> None:
        match token.kind:
            case Kind.TEXT:
                groups.add(self._terminal(token, self._text_or_range(token)))
            case Kind.REGEX:
                groups.add(self._terminal(token, regex_node(token, self._text)))
            case Kind.RULE | Kind.TERMINAL:
                groups.add(Reference(token.spelling, token.at))
            case Kind.SIGN:
                self._sign(token, groups)
            case Kind.DIRECTIVE:
                raise self._error(token.at, f"{token.spelling} is not supported here")
            case _:
                raise self._error(token.at, f"unexpected {token.shown}")

    def _terminal(self, token: Token, node: Node) -> Node:
        """Name a terminal without a name that stands in a rule, so that it stays one."""
        if self._in_terminal or isinstance(node, Literal | Chars):
            return node
        rule = Rule(f"@{token.at}A", token.at, node)
        self._define(rule)
        return Reference(rule.name, token.at)

    def _text_or_range(self, low: Token) -> Node:
        if self._peek().spelling != "..":
            return text_node(low, self._text)
        self._take()
        high = self._take()
        ends = [text_node(low, self._text)]
        ends += [text_node(high, self._text)] if high.kind is Kind.TEXT else []
        match ends:
            case [Literal(first), Literal(last)] if len(first) == len(last) == 1:
                if first <= last:
                    return Chars(((ord(first), ord(last)),))
                raise self._error(low.at, f"the range {first}..{last} is out of order")
        raise self._error(low.at, 'a range must be of two characters, as in "a".."z"')

    def _sign(self, token: Token, groups: Groups) -> None:
        match token.spelling:
            case "(" | "[":
                groups.open(token.at, token.spelling)
            case ")" | "]":
                groups.close(token.at, token.spelling)
            case "|":
                groups.next_option(token.at)
            case "*" | "+" | "?":
                groups.repeat(token.at, token.spelling, QUANTIFIERS[token.spelling])
            case "~" if self._peek().kind is not Kind.NUMBER:
                raise self._error(token.at, "the complement ~ of a terminal is not supported")
            case "~":
                groups.repeat(token.at, "~", self._bounds(".."))
            case "{" if self._peek().kind is not Kind.NUMBER:
                raise self._error(token.at, "templates are not supported")
            case "{":
                groups.repeat(token.at, "{", self._braces())
            case "->":
                self._alias(token, groups)
            case _:
                raise self._error(token.at, f"unexpected {token.shown}")

    def _alias(self, arrow: Token, groups: Groups) -> None:
        """Pass over a name for a branch of the parse tree, which no text depends on."""
        name = self._take()
        at_end = self._peek().spelling == "|" or self._peek().kind is Kind.END
        if name.kind is not Kind.RULE or groups.depth or not (at_end or self._begins_statement()):
            raise self._error(arrow.at, "expected -> name at the end of an alternative")

    def _braces(self) -> Bounds:
        bounds = self._bounds(",")
        end = self._take()
        if end.spelling != "}":
            raise self._error(end.at, f"expected a repetition, as in {{2,5}}, got {end.shown}")
        return bounds

    def _bounds(self, separator: str) -> Bounds:
        """Read n, or n and m; in braces m may be left out."""
        low = self._number()
        if self._peek().spelling != separator:
            return low, low
        self._take()
        if separator == "," and self._peek().kind is not Kind.NUMBER:
            return low, None
        return low, self._number()

    def _number(self) -> int:
        token = self._take()
        if token.kind is not Kind.NUMBER:
            raise self._error(token.at, f"expected a number, got {token.shown}")
        return count(self._text, token.at, token.spelling)

    # ---- directives

    def _directive(self, token: Token) -> None:
        if token.spelling not in _DIRECTIVES:
            raise self._error(token.at, f"{token.spelling} is not supported")
        if token.spelling == "%ignore":
            self._in_terminal = True
            self.ignored.append(self._body(token.at))
            return
        if self._take().spelling != "common":
            raise self._error(token.at, "%import is supported from common only")
        for name, alias in self._imported():
            if name.spelling not in COMMON:
                raise self._error(
                    name.at, f"common has no {name.shown}; it has {', '.join(COMMON)}"
                )
            node = pattern_node(COMMON[name.spelling], self._text, name.at)
            self._define(Rule(alias.spelling, alias.at, node))

    def _imported(self) -> Iterator[tuple[Token, Token]]:
        """Yield the names that an import lists, and what each is called here."""
        sign = self._take()
        if sign.spelling == ".":
            name = self._take()
            yield name, self._new_name(name)
            return
        while sign.spelling in ("(", ","):
            name = self._take()
            yield name, name
            sign = self._take()
        if sign.spelling != ")":
            raise self._error(
                sign.at, f"expected common.NAME or common (NAME, ...), got {sign.shown}"
            )

    def _new_name(self, name: Token) -> Token:
        if self._peek().spelling != "->":
            return name
        self._take()
        alias = self._take()
        if alias.kind is not Kind.TERMINAL:
            raise self._error(alias.at, f"expected the name of a terminal, got {alias.shown}")
        return alias

    # ---- tokens

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _error(self, at: int, what: str) -> ConstraintError:
        return malformed(self._text, at, what)
