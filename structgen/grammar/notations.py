"""The grammars of all notations as one kind of tree."""

from __future__ import annotations

from typing import assert_never

from structgen.constraints import Ebnf, Lark
from structgen.grammar import ebnf, lark
from structgen.grammar.ebnf.tree import Grammar


def grammar_of(constraint: Ebnf | Lark) -> Grammar:
    """Parse and check.  Raises ConstraintError, ConstraintTooLarge: with the place."""
    match constraint:
        case Ebnf(text=text, root=root):
            return ebnf.load(text, root)
        case Lark(text=text, start=start):
            return lark.load(text, start)
        case _:
            assert_never(constraint)
