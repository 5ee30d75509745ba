"""Lark grammars: read into the same tree as EBNF, checked, and written by the same hand.

The dialect.  Rules in lower case and terminals in upper case, `name: ...`, alternatives on lines of
their own, `"text"`, `"text"i`, `/regex/` with the flags i and s, `"a".."z"`, groups `( )`, optional
parts `[ ]`, `* + ? ~n ~n..m {n} {n,m}`, aliases `-> name`, `?` and `!` before a rule, comments
`//` and `#`, `%import common.NAME`, `%ignore`.  Regexes are ECMA-262's.

What a grammar allows.  A terminal is any text that it matches, wherever a rule has it: as in Lark's
own Earley parser with the lexer dynamic_complete, there is no longest match, and no precedence of
one terminal over another.  What is ignored may stand between two terminals, but neither before the
first nor after the last.  Rules may begin with themselves.

Not taken, and refused by name: templates, priorities, `%declare`, `%override`, `%extend`, imports
of anything but common, and all that other systems added: `%json`, `%regex`, `%lark`, `%llguidance`,
special tokens `<...>`, `@grammar`, attributes of rules, `&` and `~` between terminals.
"""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.ebnf.checks import check
from structgen.grammar.ebnf.tree import Grammar
from structgen.grammar.lark.ignoring import without_ignored
from structgen.grammar.lark.parser import parse

__all__ = ["load"]


@lru_cache(maxsize=4)  # AUTO asks one library after the other
def load(text: str, start: str) -> Grammar:
    """Parse and check.  Raises ConstraintError, ConstraintTooLarge."""
    found = parse(text, start)
    check(found.grammar, left_recursion=True)
    return without_ignored(found.grammar, found.ignored)
