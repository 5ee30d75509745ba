"""Writing once what stands in several places of a schema."""

from __future__ import annotations

from structgen.grammar import limits
from structgen.grammar.schema.values import JsonValue, dump

DEFINITIONS = "$defs"

# Text that is repeated is only worth a reference if it is long.
MIN_CHARACTERS = 60


class Sharing:
    """Finds the objects that occur, as the same object, more than once.

    refer: replace them by references; else the schema must not be too long without.
    """

    def __init__(self, refer: bool) -> None:
        self._refer = refer
        self._uses: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._shared: dict[str, JsonValue] = {}

    def document(self, root: JsonValue, definitions: dict[str, JsonValue]) -> JsonValue:
        """Return the schema with its definitions.  Raises ConstraintTooLarge."""
        total = sum(self._measure(part) for part in (root, *definitions.values()))
        if not self._refer:
            most = limits.MAX_REWRITTEN_CHARACTERS
            limits.within("the number of characters of its rewriting", total, most)
        written = self._with_references(root, top=True)
        assert isinstance(written, dict)
        parts = {name: self._with_references(part, top=True) for name, part in definitions.items()}
        parts.update(self._shared)
        return {**written, DEFINITIONS: parts} if parts else written

    def _measure(self, value: JsonValue) -> int:
        """Count the uses of every object and return how long it is when written out."""
        if not isinstance(value, dict | list):
            return len(dump(value))
        key = id(value)
        self._uses[key] = self._uses.get(key, 0) + 1
        if key not in self._sizes:
            inner = value.values() if isinstance(value, dict) else value
            names = sum(len(name) + 4 for name in value) if isinstance(value, dict) else 0
            self._sizes[key] = 2 + names + sum(self._measure(one) for one in inner)
        return self._sizes[key]

    def _with_references(self, value: JsonValue, top: bool = False) -> JsonValue:
        if isinstance(value, list):
            return [self._with_references(one) for one in value]
        if not isinstance(value, dict):
            return value
        key = id(value)
        often = self._uses[key] > 1 and self._sizes[key] > MIN_CHARACTERS
        if top or not often or not self._refer or not _is_schema(value):
            return {name: self._with_references(one) for name, one in value.items()}
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            content = {name: self._with_references(one) for name, one in value.items()}
            self._shared[self._names[key]] = content
        return {"$ref": f"#/{DEFINITIONS}/{self._names[key]}"}


def _is_schema(value: dict[str, JsonValue]) -> bool:
    return bool(value.keys() & {"type", "anyOf", "enum", "const", "allOf"})
