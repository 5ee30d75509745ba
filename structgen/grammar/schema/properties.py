"""Properties of objects, written in the JSON Schema of one dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from structgen.grammar.schema import fields as objects
from structgen.grammar.schema import language, patterns
from structgen.grammar.schema.assertions import Fields, Schema, is_nothing
from structgen.grammar.schema.dialect import Dialect, PatternProperties, Sizes
from structgen.grammar.schema.group import Group
from structgen.grammar.schema.report import Places
from structgen.grammar.schema.values import BY_NUMBER, JsonValue

JsonObject = dict[str, JsonValue]
Lower = Callable[[Schema], JsonValue]


# Patterns that have names in common: of n there are 2^n - 1 ways to be found.
MAX_PARTED = 3


class Properties:
    """Writes `properties`, `patternProperties`, `additionalProperties` and `required`."""

    def __init__(self, dialect: Dialect, lower: Lower, give_up: Callable[[Places], None]) -> None:
        self._give_up = give_up
        self._dialect = dialect
        self._lower = lower

    def written(self, fields: Fields, group: Group) -> JsonObject:
        if self._dialect.pattern_properties is PatternProperties.APART:
            fields = _parted(fields)
        rest: JsonValue = self._lower(fields.rest)
        named = self._named(fields, group)
        patterned = {regex: self._lower(schema) for regex, schema in fields.patterned}
        if rest is False:
            patterned = {
                regex: schema for regex, schema in patterned.items() if schema is not False
            }
        absent = [name for name, schema in named.items() if schema is False]
        plainly = group.size is not None and self._dialect.sizes is Sizes.PLAIN
        if absent and (plainly or not self._dialect.forbidden_properties):
            named = {name: schema for name, schema in named.items() if schema is not False}
            if rest is not False or patterned:
                patterned, rest = self._excluding(fields, patterned, rest)
        texts = {regex: patterns.written(regex, self._dialect) for regex in patterned}
        if not self._has_names(named, is_open=rest is not False or bool(patterned)):
            self._give_up(fields.places)
        if None in texts.values() or not self._takes(fields, named, patterned, rest):
            self._give_up(fields.places)
            patterned, rest = {}, True
        patterned = {str(texts[regex]): schema for regex, schema in patterned.items()}
        return _as_object(named, patterned, rest, group.needed)

    def _has_names(self, names: Iterable[str], is_open: bool) -> bool:
        """Whether the dialect has these names, beside others or not."""
        if not self._dialect.numbered_escapes:
            return all(BY_NUMBER.isdisjoint(name) for name in names)
        return self._dialect.any_names or not is_open or all(map(_is_plain, names))

    def _named(self, fields: Fields, group: Group) -> dict[str, JsonValue]:
        named = {name: self._lower(schema) for name, schema in fields.named}
        if not self._dialect.combines:
            for name in group.needed:
                if name not in named:
                    schema = objects.of_name(fields, name)
                    named[name] = True if schema is None else self._lower(schema)
        return named

    def _excluding(
        self, fields: Fields, patterned: dict[str, JsonValue], rest: JsonValue
    ) -> tuple[dict[str, JsonValue], JsonValue]:
        """Say by a pattern that the other properties have other names."""
        names = [name for name, _ in fields.named]
        if patterned or sum(map(len, names)) > language.MAX_EXCLUDED_CHARACTERS:
            self._give_up(fields.places)
            return patterned, rest
        return {language.excluding(tuple(names)): rest}, False

    def _takes(
        self,
        fields: Fields,
        named: dict[str, JsonValue],
        patterned: dict[str, JsonValue],
        rest: JsonValue,
    ) -> bool:
        """Whether the dialect, for which patterns also apply to named properties, takes these."""
        if not patterned:
            return True
        match self._dialect.pattern_properties:
            case PatternProperties.NONE:
                return False
            case PatternProperties.ALONE:
                return not named and rest is False and len(patterned) == 1
        return _apart(list(patterned)) and all(
            _included(schema, fields) for schema in _overlaid(fields, named)
        )


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and not {'"', "\\"} & set(name)


def _overlaid(fields: Fields, named: Iterable[str]) -> Iterable[tuple[Schema, Schema, bool | None]]:
    """Yield for each name and each pattern: the schemas of both, and whether they match."""
    own = dict(fields.named)
    for name in named:
        for regex, schema in fields.patterned:
            yield own.get(name, ()), schema, patterns.found_in(regex, name)


def _included(overlaid: tuple[Schema, Schema, bool | None], fields: Fields) -> bool:
    of_name, of_pattern, hit = overlaid
    return hit is False or is_nothing(of_name) or set(of_pattern) <= set(of_name)


def _parted(fields: Fields) -> Fields:
    """Return the same with patterns that have no name in common, if that can be said."""
    regexes = tuple(regex for regex, _ in fields.patterned)
    if len(regexes) > MAX_PARTED or _apart(list(regexes)):
        return fields
    found = patterns.parted(regexes)
    if found is None:
        return fields
    schemas = [schema for _, schema in fields.patterned]
    patterned = []
    for hits, regex in found.items():
        if any(hits):
            schema: Schema = ()
            for one, hit in zip(schemas, hits, strict=True):
                schema = objects.both(schema, one) if hit else schema
            patterned.append((regex, schema))
    return msgspec.structs.replace(fields, patterned=tuple(patterned))


def _apart(regexes: list[str]) -> bool:
    return all(
        patterns.disjoint((one, other))
        for index, one in enumerate(regexes)
        for other in regexes[:index]
    )


def _as_object(
    named: dict[str, JsonValue],
    patterned: dict[str, JsonValue],
    rest: JsonValue,
    required: tuple[str, ...],
) -> JsonObject:
    part: JsonObject = {}
    if named:
        part["properties"] = dict(named)
    if patterned:
        part["patternProperties"] = dict(patterned)
    if rest is not True:
        part["additionalProperties"] = rest
    if required:
        part["required"] = list(required)
    return part
