"""What is wrong with a grammar, and where: "line:column: what", both counted from 1."""

from __future__ import annotations

import re

from structgen.constraints import FIELD
from structgen.errors import ConstraintError, ConstraintTooLarge

GRAMMAR_FIELD = f"{FIELD}.grammar.text"

_LINE_END = re.compile(r"\r\n|\r|\n")


def place(text: str, at: int) -> str:
    """Return "line:column" of a character."""
    line, begins = 1, 0
    for end in _LINE_END.finditer(text, 0, at):
        line, begins = line + 1, end.end()
    return f"{line}:{at - begins + 1}"


def malformed(text: str, at: int, what: str) -> ConstraintError:
    return ConstraintError(f"grammar {place(text, at)}: {what}", field=GRAMMAR_FIELD)


def too_large(text: str, at: int, name: str, value: int, limit: int) -> ConstraintTooLarge:
    return ConstraintTooLarge(
        f"grammar {place(text, at)}: {name} must be at most {limit}, got {value}",
        field=GRAMMAR_FIELD,
    )
