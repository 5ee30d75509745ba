"""Escapes by number, where a library takes them for every control character, and the guard of JSON
text only for those that have no shorter spelling."""

from __future__ import annotations

from collections.abc import Iterator

from structgen.grammar.schema import charset, language
from structgen.grammar.schema.regex import Alternation, Chars, Concat, Node, RegexError, Repeat
from structgen.grammar.schema.values import JsonValue, strings_in

_SHORT = charset.of("\b\t\n\f\r")
_BESIDE = charset.of("\0\1\2\3\4\5\6\7\v\x0e\x0f")  # the others that are spelt \u000 and a digit

_LISTED = ("enum", "const", "required")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs")
_HOLDERS = ("additionalProperties", "items")


def lead_on(schema: JsonValue) -> bool:
    r"""Whether, in every string of a schema in the words that the rewriting uses, \u000 can be
    continued wherever the schema allows it, and no name with \u0000 is taken for one without a
    pattern: sets were written without NUL."""
    if any(_map(inner, "patternProperties") for inner in _schemas(schema)):
        return False
    return not any(
        charset.meet(ranges, _SHORT) and not charset.meet(ranges, _BESIDE)
        for inner in _schemas(schema)
        for ranges in _sets(inner)
    )


def _schemas(schema: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """Yield a schema and all inside it."""
    if isinstance(schema, dict):
        yield schema
        for inner in _inside(schema):
            yield from _schemas(inner)


def _sets(schema: dict[str, JsonValue]) -> Iterator[charset.Ranges]:
    """Yield what single characters of a schema's own strings may be, where they are not free."""
    for word in _LISTED:
        for text in strings_in(schema.get(word)):
            yield from map(charset.of, text)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield from _of_pattern(pattern)
    for name in _map(schema, "properties"):
        yield from map(charset.of, name)


def _inside(schema: dict[str, JsonValue]) -> Iterator[JsonValue]:
    for word in _LISTS:
        value = schema.get(word)
        yield from value if isinstance(value, list) else ()
    for word in _MAPS:
        yield from _map(schema, word).values()
    for word in _HOLDERS:
        yield schema.get(word)


def _map(schema: dict[str, JsonValue], word: str) -> dict[str, JsonValue]:
    value = schema.get(word)
    return value if isinstance(value, dict) else {}


def _of_pattern(pattern: str) -> Iterator[charset.Ranges]:
    try:
        node = language.whole(pattern)
    except RegexError:
        yield _SHORT  # not known
        return
    if node is not None:
        yield from _of_node(node)


def _of_node(node: Node) -> Iterator[charset.Ranges]:
    match node:
        case Chars(ranges, _):
            yield ranges
        case Concat(items) | Alternation(items):
            for item in items:
                yield from _of_node(item)
        case Repeat(item, _, _):
            yield from _of_node(item)
