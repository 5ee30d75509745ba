"""What must hold of a grammar before a library sees it: all of these compile there, and then hang,
loop or allow nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from structgen.grammar.ebnf.fault import malformed, too_large
from structgen.grammar.ebnf.graph import Graph, components
from structgen.grammar.ebnf.tree import (
    Alternation,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Repeat,
    children,
    references,
)
from structgen.grammar.limits import MAX_GRAMMAR_COPIES

MAX_SHOWN = 6  # rules of a cycle that a message names


def check(grammar: Grammar, *, left_recursion: bool = False) -> None:
    """Refuse what makes no sense; left_recursion: whether a rule may begin with itself.

    Raises ConstraintError: there is no root, a rule is undefined, left-recursive or endless.
    ConstraintTooLarge: repetitions in each other are too many.
    """
    if grammar.root not in grammar.rules:
        raise malformed(grammar.text, 0, f"there is no rule {grammar.root!r} to start from")
    for rule in grammar.rules.values():
        for reference in references(rule.body):
            if reference.name not in grammar.rules:
                raise malformed(
                    grammar.text, reference.at, f"the rule {reference.name!r} is not defined"
                )
    _refuse_endless(grammar)
    if not left_recursion:
        _refuse_left_recursive(grammar)
    _refuse_towers(grammar)


def _refuse_endless(grammar: Grammar) -> None:
    finite = closure(grammar, _can_end)
    for rule in grammar.rules.values():
        if rule.name not in finite:
            raise malformed(
                grammar.text, rule.at, f"the rule {rule.name!r} has no text: it can never end"
            )


def _refuse_left_recursive(grammar: Grammar) -> None:
    empty = closure(grammar, nullable)
    corners: Graph = {
        name: list(dict.fromkeys(_left_corners(rule.body, empty)))
        for name, rule in grammar.rules.items()
    }
    for component in components(corners):
        if len(component) > 1 or component[0] in corners[component[0]]:
            first = min((grammar.rules[name] for name in component), key=lambda rule: rule.at)
            cycle = " -> ".join(_cycle(corners, first.name, set(component)))
            raise malformed(
                grammar.text, first.at, f"the rule {first.name!r} is left-recursive: {cycle}"
            )


def _refuse_towers(grammar: Grammar) -> None:
    """Refuse repetitions in each other, through rules too, that multiply to more than one may."""
    graph = {
        name: list(dict.fromkeys(reference.name for reference in references(rule.body)))
        for name, rule in grammar.rules.items()
    }
    copies: dict[str, int] = {}
    for component in components(graph):
        for name in component:
            rule = grammar.rules[name]
            copies[name] = _copies(rule.body, copies)
            if copies[name] > MAX_GRAMMAR_COPIES:
                what = f"the repetitions within each other in {name!r}, multiplied,"
                raise too_large(grammar.text, rule.at, what, copies[name], MAX_GRAMMAR_COPIES)


def _copies(node: Node, rules: dict[str, int]) -> int:
    """Return how often the most repeated part is there at most, or at least where it has no most.

    rules: the same, for those that are known; a recursive one counts once.
    """
    if isinstance(node, Reference):
        return rules.get(node.name, 1)
    inside = max((_copies(child, rules) for child in children(node)), default=1)
    if not isinstance(node, Repeat):
        return inside
    return inside * max(1, node.low if node.high is None else node.high)


def closure(grammar: Grammar, holds: Callable[[Node, set[str]], bool]) -> set[str]:
    """Return the rules for which something holds, which may hold because it does for others."""
    users: dict[str, list[str]] = {}
    for rule in grammar.rules.values():
        for reference in references(rule.body):
            users.setdefault(reference.name, []).append(rule.name)
    found: set[str] = set()
    todo = list(grammar.rules)
    while todo:
        name = todo.pop()
        if name not in found and holds(grammar.rules[name].body, found):
            found.add(name)
            todo += users.get(name, [])
    return found


def nullable(node: Node, rules: set[str]) -> bool:
    """Whether a node has the empty text; rules: those that have it."""
    match node:
        case Literal(text):
            return not text
        case Reference(name, _):
            return name in rules
        case Concat(items):
            return all(nullable(item, rules) for item in items)
        case Alternation(options):
            return any(nullable(option, rules) for option in options)
        case Repeat(item, low, _):
            return low == 0 or nullable(item, rules)
    return False


def _can_end(node: Node, rules: set[str]) -> bool:
    match node:
        case Reference(name, _):
            return name in rules
        case Concat(items):
            return all(_can_end(item, rules) for item in items)
        case Alternation(options):
            return any(_can_end(option, rules) for option in options)
        case Repeat(item, low, _):
            return low == 0 or _can_end(item, rules)
    return True


def _left_corners(node: Node, empty: set[str]) -> Iterator[str]:
    """Yield the rules that a node may begin with; empty: those that have the empty text."""
    match node:
        case Reference(name, _):
            yield name
        case Concat(items):
            for item in items:
                yield from _left_corners(item, empty)
                if not nullable(item, empty):
                    break
        case Alternation(options):
            for option in options:
                yield from _left_corners(option, empty)
        case Repeat(item, _, high) if high != 0:
            yield from _left_corners(item, empty)


def _cycle(graph: Graph, start: str, inside: set[str]) -> list[str]:
    """Return a shortest way from a node back to itself, cut where it is long."""
    came_from: dict[str, str] = {}
    todo = [start]
    for name in todo:
        for after in graph[name]:
            if after == start:
                way = [start]
                while name != start:
                    way.append(name)
                    name = came_from[name]
                way = [start, *reversed(way)]
                return way if len(way) <= MAX_SHOWN else [*way[: MAX_SHOWN - 2], "...", start]
            if after in inside and after not in came_from:
                came_from[after] = name
                todo.append(after)
    raise AssertionError(f"{start} is in no cycle")
