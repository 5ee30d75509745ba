"""One schema of a document, seen through its draft."""

from __future__ import annotations

from structgen.grammar import limits
from structgen.grammar.schema import drafts, patterns
from structgen.grammar.schema.assertions import (
    Interval,
    Reference,
    Schema,
    nothing,
)
from structgen.grammar.schema.document import Document, escaped
from structgen.grammar.schema.fault import fault
from structgen.grammar.schema.regex import RegexError
from structgen.grammar.schema.report import Place, Places, Treatment
from structgen.grammar.schema.values import JsonValue

# No text is longer: a higher upper bound is none.
LONGEST = 2**31


def child(document: Document, pointer: str, places: Places, shared: bool = False) -> Schema:
    """Return the schema at a pointer without reading it, unless it is trivial."""
    match document.at(pointer):
        case True:
            return ()
        case False:
            return nothing(places)
        case dict(content) if not content:
            return ()
    return (Reference(target=pointer, shared=shared),)


class Keywords:
    """The keywords of one schema, for what they are worth in its draft.

    treatments: of those that were noted.
    """

    def __init__(self, document: Document, pointer: str, raw: dict[str, JsonValue]) -> None:
        self.treatments: dict[Place, Treatment] = {}
        self.document = document
        self.draft = document.draft(pointer)
        self.pointer = pointer
        self.keywords = raw

    def asserts(self, keyword: str) -> bool:
        if "$ref" in self.keywords and self.draft.reference_hides_siblings:
            return keyword == "$ref"
        return drafts.asserts(self.draft, keyword)

    def at(self, keyword: str, *tokens: str | int) -> str:
        """Return the pointer of a keyword of this schema, or of something in its value."""
        return "/".join([self.pointer, *(escaped(str(token)) for token in (keyword, *tokens))])

    def place(self, keyword: str) -> Place:
        return Place(self.at(keyword), keyword)

    def note(self, keyword: str, treatment: Treatment) -> None:
        self.treatments[self.place(keyword)] = treatment

    def places(self, *keywords: str) -> Places:
        present = [keyword for keyword in keywords if keyword in self.keywords]
        return tuple(self.place(keyword) for keyword in present if self.asserts(keyword))

    def value(self, keyword: str) -> JsonValue:
        """Return the value of a keyword; None: it is not there, or asserts nothing."""
        return self.keywords.get(keyword) if self.asserts(keyword) else None

    def list(self, keyword: str) -> list[JsonValue]:
        value = self.value(keyword)
        return value if isinstance(value, list) else []

    def map(self, keyword: str) -> dict[str, JsonValue]:
        value = self.value(keyword)
        return value if isinstance(value, dict) else {}

    def child(self, keyword: str, *tokens: str | int) -> Schema:
        return child(self.document, self.at(keyword, *tokens), self.places(keyword))

    def children(self, keyword: str) -> tuple[Schema, ...]:
        return tuple(self.child(keyword, index) for index in range(len(self.list(keyword))))

    def number(self, keyword: str) -> int | float | None:
        value = self.value(keyword)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number else None  # type: ignore[return-value]

    def interval(self, low: str, high: str, default: int = 0) -> Interval:
        lowest, highest = self.number(low), self.number(high)
        if lowest is not None:
            limits.within(low, lowest, LONGEST, self.at(low))
        upper = None if highest is None or highest >= LONGEST else int(highest)
        return Interval(default if lowest is None else int(lowest), upper)

    def supported(self, regex: str, pointer: str) -> bool:
        try:
            return patterns.supported(regex)
        except RegexError as error:
            raise fault(f"not a regular expression of ECMA-262: {error}", pointer) from None
