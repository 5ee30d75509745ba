"""How the strings that a constraint describes by patterns, and the texts of a grammar, can end.

Where a string must hold "wifi" somewhere, masks allow every letter until it does, and do not show
the way.  The automata of the patterns do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from structgen.constraints import Constraint, Ebnf, JsonSchema, Lark, Regex, StructuralTag
from structgen.grammar.ebnf import Grammar
from structgen.grammar.ebnf.completion import Completion
from structgen.grammar.notations import grammar_of
from structgen.grammar.schema import language
from structgen.grammar.schema.automaton import Automaton, TooLarge, shortest_ending
from structgen.grammar.schema.regex import RegexError

MAX_PATTERNS = 16
MAX_STATES = 4_000  # of all automata: some milliseconds
MAX_ENDINGS = 3  # of a grammar, which may have more texts than the constraint
MAX_CHARACTERS = 1024  # of a string that is looked at

Patterns = list[Automaton | Completion]


def patterns_of(constraint: Constraint, tag_outline: Grammar | None = None) -> Patterns:
    """Return what knows the endings of the first patterns in a constraint as a library is given it,
    or of its texts.  tag_outline: of a structural tag.
    """
    match constraint:
        case Ebnf() | Lark():
            return [Completion(grammar_of(constraint))]
        case StructuralTag():
            return [Completion(tag_outline)] if tag_outline is not None else []
        case Regex(pattern=pattern):
            texts = [f"^(?:{pattern})$"]  # it matches the whole text
        case JsonSchema(schema=schema):
            texts = list(dict.fromkeys(_patterns(json.loads(schema))))[:MAX_PATTERNS]
        case _:
            texts = []
    found: list[Automaton] = []
    for text in texts:
        automaton = _automaton(text)
        if automaton is not None:
            found.append(automaton)
        if sum(one.num_states for one in found) > MAX_STATES:
            break
    return list(found)


def endings(
    patterns: Patterns, text: str, is_over: Callable[[], bool] = lambda: False
) -> list[str]:
    """Return the shortest endings, shortest first, with which patterns match a text.

    is_over: asked now and then; once it says so, no more are looked for.
    """
    if len(text) > MAX_CHARACTERS:
        return []
    found: set[str] = set()
    for automaton in patterns:
        if is_over():
            break
        try:
            found |= set(_endings(automaton, text))
        except TooLarge:
            continue
    return sorted(found, key=lambda ending: (len(ending), ending))


def _endings(pattern: Automaton | Completion, text: str) -> list[str]:
    if isinstance(pattern, Completion):
        return pattern.endings(text, MAX_ENDINGS)
    ending = shortest_ending(pattern, text)
    return [] if ending is None else [ending]


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
