"""Real schemas in a random order, for benchmarks that want ever new ones."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from structgen.constraints import JsonSchema
from structgen.errors import ConstraintError

NUM_GENERATED = 64


def shuffled(path: Path, seed: int = 0) -> list[JsonSchema]:
    """Read the schemas of a MaskBench-style file; without one, make some that differ."""
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found = [_constraint(json.loads(line)["schema"]) for line in lines]
    else:
        found = [_constraint(_generated(index)) for index in range(NUM_GENERATED)]
    schemas = [schema for schema in found if schema is not None]
    random.Random(seed).shuffle(schemas)
    return schemas


def _constraint(schema: object) -> JsonSchema | None:
    try:
        return JsonSchema.of(schema)
    except ConstraintError:
        return None


def _generated(index: int) -> dict[str, object]:
    kinds = ("string", "integer", "number", "boolean")
    properties = {f"field_{index}_{i}": {"type": kinds[(index + i) % 4]} for i in range(8)}
    return {"type": "object", "properties": properties, "required": list(properties)[:4]}
