"""How large a constraint may be before a library sees it, where the text alone does not say.

Schemas and grammars are measured by those who read them; both are here, by what they spell out.
"""

from __future__ import annotations

from structgen.constraints import Constraint, Regex
from structgen.errors import ConstraintTooLarge
from structgen.grammar.base import field_of
from structgen.grammar.limits import MAX_REGEX_CHARACTERS, MAX_REGEX_REPETITIONS
from structgen.grammar.schema.regex import Alternation, Concat, Node, RegexError, Repeat, parse


def require_size(constraint: Constraint) -> None:
    """Raises ConstraintTooLarge: it is beyond a limit."""
    if isinstance(constraint, Regex):
        _require_regex_size(constraint)


def _require_regex_size(constraint: Regex) -> None:
    _within(constraint, "the number of characters", len(constraint.pattern), MAX_REGEX_CHARACTERS)
    try:
        node = parse(constraint.pattern)
    except RegexError:
        return  # whoever translates it says what is wrong
    _within(
        constraint,
        "the repetitions within each other, multiplied,",
        repetitions(node),
        MAX_REGEX_REPETITIONS,
    )


def repetitions(node: Node) -> int:
    """Return how often what is repeated most is, where repetitions stand within repetitions."""
    match node:
        case Repeat(item, low, high):
            return max(1, low if high is None else high) * repetitions(item)
        case Concat(parts) | Alternation(parts):
            return max(map(repetitions, parts), default=1)
    return 1


def _within(constraint: Regex, what: str, size: int, limit: int) -> None:
    if size > limit:
        raise ConstraintTooLarge(
            f"regex: {what} must be at most {limit}, got {size}", field=field_of(constraint)
        )
