"""EBNF grammars in the GBNF dialect: parsed, checked, and written for the libraries.

`load` refuses what makes no sense, with line and column; `to_gbnf`, `to_regex` and `to_lexemes`
write what is left, so that a library never sees a client's text.
"""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.ebnf.checks import check
from structgen.grammar.ebnf.lexemes import to_lexemes
from structgen.grammar.ebnf.parser import parse
from structgen.grammar.ebnf.printing import to_gbnf
from structgen.grammar.ebnf.regular import to_regex
from structgen.grammar.ebnf.tree import Grammar

__all__ = ["Grammar", "load", "to_gbnf", "to_lexemes", "to_regex"]


@lru_cache(maxsize=4)  # AUTO asks one library after the other
def load(text: str, root: str) -> Grammar:
    """Parse and check.  Raises ConstraintError, ConstraintTooLarge."""
    grammar = parse(text, root)
    check(grammar)
    return grammar
