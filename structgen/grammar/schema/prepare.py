"""A client's schema made ready for one library."""

from __future__ import annotations

import msgspec

from structgen.errors import ConstraintTooLarge
from structgen.grammar import limits
from structgen.grammar.schema import settling
from structgen.grammar.schema.algebra import Algebra
from structgen.grammar.schema.assertions import Schema
from structgen.grammar.schema.dialect import Dialect
from structgen.grammar.schema.document import Document
from structgen.grammar.schema.fault import fault
from structgen.grammar.schema.group import group
from structgen.grammar.schema.lowering import Lowering
from structgen.grammar.schema.reader import Reader
from structgen.grammar.schema.report import KeywordReport, Place, Treatment
from structgen.grammar.schema.values import dump

# If one of these is given up, nothing inside it counts.
_DROPPED_WHOLE = frozenset(
    [
        "not",
        "if",
        "contains",
        "propertyNames",
        "dependencies",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)


class Prepared(msgspec.Struct, frozen=True):
    """schema_text: what the library is given, and enforces; reports: every assertion of the
    client's schema that can apply; unenforced: those of them that schema_text does not say."""

    schema_text: str
    reports: list[KeywordReport]
    unenforced: list[KeywordReport]


def prepare(schema_text: str, dialect: Dialect) -> Prepared:
    """Rewrite a schema into an equivalent one that a library enforces in full.

    Raises ConstraintError: it is not a JSON Schema, refers to something outside of it, or allows
    nothing.  ConstraintTooLarge: it is beyond a limit, or its rewriting would be.
    """
    try:
        return _prepare(schema_text, dialect)
    except RecursionError:
        # The other limits bound what is nested; this one is the interpreter's.
        raise ConstraintTooLarge(
            "json_schema: its rewriting is nested too deeply", field=limits.SCHEMA_FIELD
        ) from None


def _prepare(schema_text: str, dialect: Dialect) -> Prepared:
    document = Document.of(schema_text)
    reader = Reader(document)
    algebra = Algebra(reader)
    root = reader.root()
    lowering = Lowering(algebra, dialect)
    written = lowering.document(root)
    if written is False:
        raise _unsatisfiable(root, algebra)
    text = dump({} if written is True else written)
    most = limits.MAX_REWRITTEN_CHARACTERS
    limits.within("the number of characters of its rewriting", len(text), most)
    reports = _reports(reader, lowering)
    return Prepared(
        schema_text=text,
        reports=reports,
        unenforced=[report for report in reports if report.treatment is Treatment.IGNORED],
    )


def _reports(reader: Reader, lowering: Lowering) -> list[KeywordReport]:
    lost, verified = lowering.leaf.unenforced, lowering.leaf.verified
    whole = tuple(f"{place.pointer}/" for place in lost if place.keyword in _DROPPED_WHOLE)

    def treatment(place: Place, read: Treatment) -> Treatment:
        if read is Treatment.ANNOTATION:
            return read
        if place in lost or (whole and place.pointer.startswith(whole)):
            return Treatment.IGNORED
        return Treatment.VERIFIED if place in verified else read

    found = {**reader.treatments}
    for place in lost:
        found.setdefault(place, Treatment.IGNORED)
    return [
        KeywordReport(place.pointer, place.keyword, treatment(place, read))
        for place, read in found.items()
    ]


def _unsatisfiable(root: Schema, algebra: Algebra) -> Exception:
    """Return the error that says which keywords leave nothing."""
    found = group(algebra.expand(root))
    settling.settle(found, algebra, depth=3)
    pointers = [place.pointer or "/" for place in found.types.places]
    return fault("no value is allowed", ", ".join(pointers[:4]))
