"""A schema document: parsed, within its limits, well formed, with every name in it found.

Pointers are JSON pointers into the document as the client sent it; "" is the document.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar
from urllib.parse import unquote, urldefrag, urljoin

from structgen.errors import ConstraintError, ConstraintTooLarge
from structgen.grammar import limits
from structgen.grammar.schema import drafts
from structgen.grammar.schema.drafts import Draft
from structgen.grammar.schema.fault import fault
from structgen.grammar.schema.values import JsonValue, dump

T = TypeVar("T")

_NO_BASE = "https://schema.invalid/"  # the base of a document that has no id


class Document:
    """Raises ConstraintError: not JSON, not a JSON Schema.  ConstraintTooLarge: beyond a limit."""

    def __init__(self, root: JsonValue, draft: Draft) -> None:
        self.root = root
        self._drafts: dict[str, Draft] = {"": draft}  # of the schemas that name one, by pointer
        self._bases: dict[str, str] = {"": _NO_BASE}  # of the schemas with an id, by pointer
        self._by_uri: dict[str, str] = {_NO_BASE: ""}
        # Of the anchors of dynamic references: where in the outermost resource; how many in all.
        self._outermost: dict[tuple[str, str], str] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._walk(root, "", _NO_BASE, draft)

    @classmethod
    def of(cls, text: str) -> Document:
        """Parse a schema.  One that does not say its draft is of the first that it is well formed
        in: of the latest, of 2019-09 (for array `items`), of 4 (for `exclusiveMinimum: true`)."""
        root = _parse(text)
        named = drafts.named_by(root)
        candidates = [named] if named else [Draft.DRAFT_2020, Draft.DRAFT_2019, Draft.DRAFT_4]
        first, *others = candidates
        try:
            return cls(root, first)
        except ConstraintError as error:
            for draft in () if isinstance(error, ConstraintTooLarge) else others:
                with contextlib.suppress(ConstraintError):
                    return cls(root, draft)
            raise

    def draft(self, pointer: str) -> Draft:
        """Return the draft that the schema at a pointer is read by."""
        return _nearest(self._drafts, pointer)

    def count(self, keyword: str, value: JsonValue) -> int:
        """Return in how many schemas `keyword` has this value."""
        return self._seen[keyword, dump(value)]

    def in_outermost(self, keyword: str, value: JsonValue) -> str | None:
        """Return where `keyword` has this value in the outermost resource."""
        return self._outermost.get((keyword, dump(value)))

    def at(self, pointer: str) -> JsonValue:
        """Return what stands at a pointer.  Raises KeyError."""
        value = self.root
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value[name]
            elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise KeyError(pointer)
        return value

    def resolve(self, reference: str, pointer: str) -> str:
        """Return the pointer that a `$ref`, whose keyword stands at `pointer`, leads to.

        Raises ConstraintError: it leads out of the document, or nowhere.
        """
        target = self._target(reference, pointer)
        try:
            found = self.at(target)
        except KeyError:
            raise fault(f"nothing at {reference!r}", pointer) from None
        if not isinstance(found, dict | bool):
            raise fault(f"no schema at {reference!r}", pointer)
        return target

    def _target(self, reference: str, pointer: str) -> str:
        uri = _joined(_nearest(self._bases, pointer), reference)
        if uri in self._by_uri:
            return self._by_uri[uri]
        document, fragment = urldefrag(uri)
        if document not in self._by_uri:
            raise fault(f"{reference!r} leads to another document", pointer)
        if fragment and not fragment.startswith("/"):
            raise fault(f"nothing is called {reference!r}", pointer)
        return self._by_uri[document] + unquote(fragment)

    def _walk(self, schema: JsonValue, pointer: str, base: str, draft: Draft) -> None:
        """Note the names in a schema and below it, and check the values of its keywords."""
        if not isinstance(schema, dict):
            return
        named = drafts.named_by(schema, pointer)
        if named not in (None, draft) and pointer:
            draft = self._drafts[pointer] = named
        base = self._named(schema, pointer, base, draft)
        _check_sizes(schema, pointer)
        hidden = "$ref" in schema and draft.reference_hides_siblings
        for keyword, value in schema.items():
            place = f"{pointer}/{escaped(keyword)}"
            asserted = drafts.asserts(draft, keyword) and (not hidden or keyword == "$ref")
            if asserted or keyword in ("$defs", "definitions"):
                drafts.check(draft, keyword, value, place)
            for inner, at in _subschemas(keyword, value, place):
                if asserted and not isinstance(inner, dict | bool):
                    raise fault("must be a schema", at)
                self._walk(inner, at, base, draft)

    def _named(self, schema: dict[str, JsonValue], pointer: str, base: str, draft: Draft) -> str:
        id = schema.get(draft.id_keyword)
        if isinstance(id, str) and ("$ref" not in schema or draft >= Draft.DRAFT_2019):
            uri = _joined(base, id)
            if id.startswith("#"):
                self._by_uri.setdefault(uri, pointer)
            else:
                base = urldefrag(uri)[0]
                self._bases[pointer] = base
                self._by_uri.setdefault(base, pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._by_uri.setdefault(f"{base}#{anchor}", pointer)
        for keyword in ("$dynamicAnchor", "$recursiveAnchor"):
            if keyword in schema:
                key = (keyword, dump(schema[keyword]))
                self._seen[key] += 1
                if base == self._bases[""]:
                    self._outermost.setdefault(key, pointer)
        return base


def _nearest(by_pointer: Mapping[str, T], pointer: str) -> T:
    """Return what is noted for the innermost schema around a pointer, or at it."""
    while pointer not in by_pointer:
        pointer = pointer.rpartition("/")[0]
    return by_pointer[pointer]


def escaped(token: str) -> str:
    """Return a name as one token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def _parse(text: str) -> JsonValue:
    try:
        limits.within("its size in bytes", len(text.encode()), limits.MAX_SCHEMA_BYTES)
        root: JsonValue = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise fault("nested too deeply", "") from None
    except UnicodeEncodeError:
        raise fault("holds a lone surrogate", "") from None
    except ValueError as error:
        raise fault(f"not JSON: {error}", "") from None
    if not isinstance(root, dict | bool):
        raise fault("must be an object or a boolean", "")
    _check_depth(root)
    if "\\ud" in text.lower() and not _encodable(root):
        raise fault("holds a lone surrogate", "")
    return root


def _encodable(root: JsonValue) -> bool:
    try:
        dump(root).encode()
    except UnicodeEncodeError:
        return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a double holds")
    return value


def _check_depth(root: JsonValue) -> None:
    level = [root]
    depth = 0
    while level:
        limits.within("its depth", depth, limits.MAX_DEPTH)
        level = [inner for value in level for inner in _inside(value)]
        depth += 1


def _inside(value: JsonValue) -> list[JsonValue]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]


def _check_sizes(schema: dict[str, JsonValue], pointer: str) -> None:
    match schema.get("enum"):
        case list(values):
            limits.within("the number of values", len(values), limits.MAX_ENUM_VALUES, pointer)
    for value in [*_listed(schema.get("enum")), schema.get("const")]:
        if isinstance(value, str):
            size = len(value.encode())
            limits.within("the bytes of a value", size, limits.MAX_ENUM_BYTES, pointer)
    match schema.get("patternProperties"):
        case dict(patterns):
            most = limits.MAX_PATTERN_PROPERTIES
            limits.within("the number of patternProperties", len(patterns), most, pointer)
    match schema.get("properties"):
        case dict(properties):
            required = {name for name in _listed(schema.get("required")) if isinstance(name, str)}
            optional = len(properties.keys() - required)
            most = limits.MAX_OPTIONAL_PROPERTIES
            limits.within("the number of optional properties", optional, most, pointer)
    match schema.get("multipleOf"):
        case int() | float() as multiple:
            limits.within("multipleOf", multiple, limits.MAX_MULTIPLE, pointer)
    match schema.get("pattern"):
        case str(pattern):
            most = limits.MAX_PATTERN_CHARACTERS
            limits.within("the length of pattern", len(pattern), most, pointer)


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _subschemas(keyword: str, value: JsonValue, pointer: str) -> Iterator[tuple[JsonValue, str]]:
    """Yield what a keyword holds in places of schemas, and where."""
    if keyword in drafts.HOLD_SCHEMA or (keyword == "items" and not isinstance(value, list)):
        yield value, pointer
    elif isinstance(value, list) and (keyword in drafts.HOLD_LIST or keyword == "items"):
        for index, inner in enumerate(value):
            yield inner, f"{pointer}/{index}"
    elif isinstance(value, dict) and (keyword in drafts.HOLD_MAP or keyword == "dependencies"):
        for name, inner in value.items():
            if keyword != "dependencies" or not isinstance(inner, list):
                yield inner, f"{pointer}/{escaped(name)}"


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        uri = urldefrag(base)[0] + reference
    else:
        try:
            uri = urljoin(base, reference)
        except ValueError:
            uri = reference
    return uri.rstrip("#") if uri.endswith("#") else uri
