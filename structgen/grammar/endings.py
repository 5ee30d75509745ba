"""How the strings that a constraint describes by patterns can end.

Where a string must hold "wifi" somewhere, masks allow every letter until it does, and do not show
the way.  The automata of the patterns do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from structgen.constraints import Constraint, JsonSchema, Regex
from structgen.grammar.schema import language
from structgen.grammar.schema.automaton import Automaton, TooLarge, shortest_ending
from structgen.grammar.schema.regex import RegexError

MAX_PATTERNS = 16
MAX_STATES = 4_000  # of all automata: some milliseconds
MAX_CHARACTERS = 1024  # of a string that is looked at

Patterns = list[Automaton]


def patterns_of(constraint: Constraint) -> Patterns:
    """Return the automata of the first patterns in a constraint as a library is given it."""
    match constraint:
        case Regex(pattern=pattern):
            texts = [f"^(?:{pattern})$"]  # it matches the whole text
        case JsonSchema(schema=schema):
            texts = list(dict.fromkeys(_patterns(json.loads(schema))))[:MAX_PATTERNS]
        case _:
            texts = []
    found: Patterns = []
    for text in texts:
        automaton = _automaton(text)
        if automaton is not None:
            found.append(automaton)
        if sum(one.num_states for one in found) > MAX_STATES:
            break
    return found


def endings(patterns: Patterns, text: str) -> list[str]:
    """Return the shortest endings, shortest first, with which patterns match a text."""
    if len(text) > MAX_CHARACTERS:
        return []
    found: set[str] = set()
    for automaton in patterns:
        try:
            ending = shortest_ending(automaton, text)
        except TooLarge:
            continue
        if ending is not None:
            found.add(ending)
    return sorted(found, key=lambda ending: (len(ending), ending))


def _patterns(schema: object) -> Iterator[str]:
    todo = [schema]
    while todo:
        match todo.pop():
            case dict() as members:
                if isinstance(pattern := members.get("pattern"), str):
                    yield pattern
                todo += members.values()
            case list() as items:
                todo += items


def _automaton(pattern: str) -> Automaton | None:
    try:
        node = language.whole(pattern)
        return None if node is None else Automaton(node)
    except (RegexError, TooLarge, RecursionError):
        return None
