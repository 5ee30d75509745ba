"""The constraints whose masks `overlap.py` measures, from easy to costly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from structgen.constraints import Constraint, Ebnf, JsonObject, JsonSchema, Whitespace

# Of MaskBench: large or intricate schemas whose masks cost most, and that compile in seconds.
SCHEMAS = (
    "WashingtonPost---wp_8_Normalized",
    "Github_medium---o42029",
    "Snowplow---sp_302_Normalized",
    "Snowplow---sp_303_Normalized",
    "JsonSchemaStore---1.0.schema",
    "Github_hard---o9831",
)

# A token of letters may lie across any number of borders between the two rules, so xgrammar must
# try every such token at every step; the more consonants there are, the more tokens.
AMBIGUOUS = """
root ::= (consonants vowels)* "."
consonants ::= [{first}-z]+
vowels ::= [aeiou]+
"""


class MaskKind(msgspec.Struct, frozen=True):
    """Constraints of one cost; the rows of a batch take them in turn.

    max_rows: a larger batch would take too long, and a cheaper kind has the same share.
    """

    name: str
    constraints: tuple[Constraint, ...]
    max_rows: int = 256


def kinds(schemas: Path) -> list[MaskKind]:
    """Return all kinds.  Without the file of real schemas, a generated one stands in for them."""
    real = _real(schemas)
    return [
        MaskKind("easy", (JsonSchema.of(_list_of({"name": "string", "count": "integer"})),)),
        MaskKind("recursive", (JsonObject(Whitespace.FLEXIBLE), JsonSchema.of(_recursive()))),
        MaskKind("schemas", real) if real else MaskKind("generated", (JsonSchema.of(_large()),)),
        MaskKind("ambiguous", (Ebnf(AMBIGUOUS.format(first="t")),)),
        MaskKind("more_ambiguous", (Ebnf(AMBIGUOUS.format(first="q")),), max_rows=1),
    ]


def _list_of(properties: Mapping[str, str]) -> dict[str, object]:
    return {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        },
    }


def _recursive() -> dict[str, object]:
    """Any JSON object, spelled as a schema that refers to itself."""
    value = {"$ref": "#/$defs/value"}
    return {
        "$defs": {
            "value": {
                "anyOf": [
                    {"type": ["string", "number", "boolean", "null"]},
                    {"type": "array", "items": value},
                    {"type": "object", "additionalProperties": value},
                ]
            }
        },
        "type": "object",
        "additionalProperties": value,
    }


def _large() -> dict[str, object]:
    """A list of objects of two dozen kinds with overlapping optional keys."""
    kinds = [
        {"type": "object", "properties": {f"field_{i % 7}_{j}": {"type": "string"} for j in "abcd"}}
        for i in range(24)
    ]
    return {"type": "array", "items": {"anyOf": kinds}}


def _real(path: Path) -> tuple[Constraint, ...]:
    if not path.is_file():
        return ()
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        by_id = {row["id"]: row["schema"] for row in map(json.loads, lines)}
    return tuple(JsonSchema.of(by_id[name]) for name in SCHEMAS if name in by_id)
