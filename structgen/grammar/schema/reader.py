"""Reads the schemas of a document, on demand, as assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from structgen.grammar.schema import container_keywords as containers
from structgen.grammar.schema import drafts
from structgen.grammar.schema import logic_keywords as logic
from structgen.grammar.schema import value_keywords as values
from structgen.grammar.schema.assertions import Assertion, Schema
from structgen.grammar.schema.document import Document
from structgen.grammar.schema.keywords import Keywords, child
from structgen.grammar.schema.report import Place, Treatment


class Reader:
    """treatments: of the keywords of every schema that was read, in order."""

    def __init__(self, document: Document) -> None:
        self.treatments: dict[Place, Treatment] = {}
        self._document = document
        self._read: dict[str, Schema] = {}

    def schema(self, pointer: str) -> Schema:
        """Raises ConstraintError: a reference leads nowhere, a pattern is none."""
        if pointer not in self._read:
            raw = self._document.at(pointer)
            assert isinstance(raw, dict), pointer
            keywords = Keywords(self._document, pointer, raw)
            self._read[pointer] = tuple(_assertions(keywords))
            self.treatments.update(keywords.treatments)
        return self._read[pointer]

    def root(self) -> Schema:
        return child(self._document, "", (Place("", ""),))


def _assertions(keywords: Keywords) -> Iterator[Assertion]:
    done = set()
    for keyword in keywords.keywords:
        if not keywords.asserts(keyword):
            if keyword in drafts.SINCE or keyword in drafts.CONTENT:
                keywords.note(keyword, Treatment.ANNOTATION)
            continue
        keywords.note(keyword, Treatment.ENFORCED)
        read = _READERS[keyword]
        if read not in done:
            done.add(read)
            yield from read(keywords)


_Read = Callable[[Keywords], Iterator[Assertion]]


def _table(readers: dict[str, _Read]) -> dict[str, _Read]:
    return {keyword: read for keywords, read in readers.items() for keyword in keywords.split()}


# By keyword; those read together are yielded where the first of them stands.
_READERS = _table(
    {
        "type": values.types,
        "enum const": values.members,
        "multipleOf": values.multiple,
        "minimum exclusiveMinimum": values.lows,
        "maximum exclusiveMaximum": values.highs,
        "minLength maxLength": values.lengths,
        "pattern": values.pattern,
        "format": values.format,
        "items prefixItems additionalItems": containers.elements,
        "minItems maxItems": containers.counts,
        "contains minContains maxContains": containers.contains,
        "uniqueItems": containers.unique,
        "properties patternProperties additionalProperties": containers.fields,
        "minProperties maxProperties": containers.sizes,
        "required": containers.required,
        "propertyNames": containers.names,
        "dependencies dependentRequired dependentSchemas": logic.dependencies,
        "unevaluatedProperties unevaluatedItems": containers.unevaluated,
        "allOf": logic.all_of,
        "anyOf": logic.any_of,
        "oneOf": logic.one_of,
        "not": logic.negation,
        "if then else": logic.condition,
        "$ref $dynamicRef $recursiveRef": logic.references,
    }
)
