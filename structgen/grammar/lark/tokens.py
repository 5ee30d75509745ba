"""The words of a Lark grammar's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from structgen.grammar.ebnf.words import Word, words


class Kind(Enum):
    RULE = "a rule"
    TERMINAL = "a terminal"
    TEXT = "a text in quotes"
    REGEX = "a regex"
    NUMBER = "a number"
    DIRECTIVE = "a directive"
    SIGN = "a sign"
    END = "the end"


Token = Word[Kind]

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|#[^\r\n]*)*")
_WORD = re.compile(
    r'(?P<TEXT>"(?:[^"\\\r\n]|\\[^\r\n])*"(?:[a-z]+)?)'
    r"|(?P<REGEX>/(?:[^/\\\r\n]|\\[^\r\n])+/(?:[a-z]+)?)"
    r"|(?P<TERMINAL>_*+[A-Z][A-Z0-9_]*+(?![a-z]))|(?P<RULE>_*+[a-z][a-z0-9_]*+(?![A-Z]))"
    r"|(?P<NUMBER>[0-9]+)|(?P<DIRECTIVE>%[A-Za-z_]+)|(?P<SIGN>->|\.\.|[:|()\[\]{}*+?!~.,])"
)
_UNCLOSED = {'"': 'a text without its closing "', "/": "a regex without its closing /"}
_FOREIGN = {
    "<": "a special token <...> is not supported",
    "@": "a reference to another grammar, @name, is not supported",
    "&": "the intersection & of terminals is not supported",
}


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens, and one of kind END.  Raises ConstraintError: something is none."""
    return words(text, Kind, space=_SPACE, word=_WORD, what_is_wrong=_what_is_wrong)


def _what_is_wrong(character: str) -> str:
    if character.isalpha() or character == "_":
        return "a name must be in lower case (a rule) or in upper case (a terminal)"
    return (_FOREIGN | _UNCLOSED).get(character, f"unexpected {character!r}")
