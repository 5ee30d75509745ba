"""A finished text against its schema, by a validator that knows nothing of masks.

The validator says None where it cannot tell: the schema refers to what is outside of it, is no
schema, or would take too long.  It neither reads files nor opens connections.  Any thread may call
these functions.  jsonschema-rs holds the interpreter's lock, so what it is given must be bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache, partial

import jsonschema_rs

from structgen.constraints import JsonObject, JsonSchema
from structgen.frontend.schema_size import expanded_size

Verifiable = JsonSchema | JsonObject

MAX_CACHED = 64  # validators
MAX_CACHED_CHARS = 2**16  # of a schema whose validator is kept
MAX_EXPANDED_SIZE = 2**16  # evaluations of the whole schema: some milliseconds
MAX_DIGITS = 4000  # of a number; Python converts no more, and exact arithmetic takes its time
BACKTRACK_LIMIT = 2**14  # steps of a pattern for one text: under a millisecond

ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

# Formats that schemas of older drafts use too; there the library takes them for annotations.
FORMATS: Mapping[str, Callable[[str], bool]] = {
    name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True).is_valid
    for name in (
        *("date", "time", "duration", "uuid", "idn-hostname", "uri-reference", "iri"),
        *("iri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
}

# Drafts that one means who does not say so, besides the latest: it refuses what they allow.  They
# are those in which the constraint was read.
OLDER_DRAFTS: tuple[Callable[..., jsonschema_rs.Validator], ...] = (
    jsonschema_rs.Draft201909Validator,
    jsonschema_rs.Draft4Validator,
)

_GAVE_UP = (
    jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded,
    jsonschema_rs.ValidationErrorKind.RegexEngineFailure,
)


class Unverifiable(Exception):
    """The text is JSON, but more than we look at."""


def is_met(constraint: Verifiable, text: str) -> bool | None:
    """Return whether `text` is strict JSON that obeys the constraint; None: cannot tell."""
    try:
        value = _parse(text)
    except (Unverifiable, RecursionError):
        return None
    except ValueError:
        return False
    if isinstance(constraint, JsonObject):
        return isinstance(value, dict)
    return _is_valid(constraint.schema, value)


def _is_valid(schema: str, value: object) -> bool | None:
    build = _cached_validator if len(schema) <= MAX_CACHED_CHARS else _validator
    validator = build(schema)
    if validator is None:
        return None
    if validator.is_valid(value):
        return True
    gave_up = any(isinstance(error.kind, _GAVE_UP) for error in validator.iter_errors(value))
    return None if gave_up else False


# ---- validators

# Drafts 6 and 7 leave it open whether these assert; the later ones do not.
ANNOTATIONS = ("contentEncoding", "contentMediaType")


class _Annotation:
    """A keyword that every value obeys."""

    def __init__(self, schema: object, value: object, path: object) -> None: ...

    def validate(self, instance: object) -> None: ...


def _validator(schema: str) -> jsonschema_rs.Validator | None:
    parsed = json.loads(schema)
    try:
        if expanded_size(parsed) > MAX_EXPANDED_SIZE:
            return None
    except RecursionError:
        return None
    for build in _builders(parsed):
        try:
            return build(
                parsed,
                validate_formats=True,
                formats=dict(FORMATS),
                keywords=dict.fromkeys(ANNOTATIONS, _Annotation),
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
                offline=True,
            )
        except (ValueError, jsonschema_rs.ReferencingError):
            continue
    return None


_cached_validator = lru_cache(MAX_CACHED)(_validator)


def _builders(schema: object) -> Iterator[Callable[..., jsonschema_rs.Validator]]:
    yield jsonschema_rs.validator_for
    if isinstance(schema, dict) and "$schema" not in schema:
        yield from OLDER_DRAFTS


# ---- JSON


def _parse(text: str) -> object:
    """Parse what RFC 8259 calls JSON, with unique keys and texts of whole characters.

    Raises ValueError: it is not that.  Unverifiable, RecursionError: it is too much.
    """
    value = _loads(text)
    if ESCAPED_SURROGATE.search(text):  # those of a pair are one character by now
        json.dumps(value, ensure_ascii=False, default=str).encode()
    return value


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unverifiable
    return int(digits)


def _decimal(number: str) -> Decimal:
    """Read it exactly: a float would make 1e400 infinite."""
    try:
        value = Decimal(number)
    except ArithmeticError:  # an exponent beyond what even a Decimal has
        raise Unverifiable from None
    if len(number) > MAX_DIGITS or abs(value.adjusted()) > MAX_DIGITS:
        raise Unverifiable
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result


_loads = partial(
    json.loads,
    parse_constant=_constant,
    parse_int=_integer,
    parse_float=_decimal,
    object_pairs_hook=_unique,
)
