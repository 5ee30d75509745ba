"""The drafts of JSON Schema: which keywords each asserts, and what their values look like.

A keyword that a draft does not have is an annotation there, as for the validator.
"""

from __future__ import annotations

from enum import IntEnum

from structgen.grammar.schema.fault import fault
from structgen.grammar.schema.values import TYPES, JsonValue


class Draft(IntEnum):
    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019 = 2019
    DRAFT_2020 = 2020

    @property
    def id_keyword(self) -> str:
        return "id" if self is Draft.DRAFT_4 else "$id"

    @property
    def reference_hides_siblings(self) -> bool:
        return self <= Draft.DRAFT_7


_URIS = {
    "json-schema.org/draft-04/schema": Draft.DRAFT_4,
    "json-schema.org/draft-06/schema": Draft.DRAFT_6,
    "json-schema.org/draft-07/schema": Draft.DRAFT_7,
    "json-schema.org/draft/2019-09/schema": Draft.DRAFT_2019,
    "json-schema.org/draft/2020-12/schema": Draft.DRAFT_2020,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEW = {
    Draft.DRAFT_4: """
        type enum multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength
        pattern format items additionalItems maxItems minItems uniqueItems maxProperties
        minProperties required properties patternProperties additionalProperties dependencies
        allOf anyOf oneOf not $ref
    """,
    Draft.DRAFT_6: "const contains propertyNames",
    Draft.DRAFT_7: "if then else",
    Draft.DRAFT_2019: """
        dependentRequired dependentSchemas minContains maxContains unevaluatedItems
        unevaluatedProperties $recursiveRef
    """,
    Draft.DRAFT_2020: "prefixItems $dynamicRef",
}
SINCE = {keyword: draft for draft, keywords in _NEW.items() for keyword in keywords.split()}
_UNTIL = {"$recursiveRef": Draft.DRAFT_2019, "additionalItems": Draft.DRAFT_2019}

# Older drafts leave it open whether they assert; the validator is told that they do not.
CONTENT = _words("contentEncoding contentMediaType contentSchema")

# Keywords that hold: one schema, a list of them, a map of them.  `items` and `dependencies` are
# both, and looked at where they are used.
HOLD_SCHEMA = _words(
    """
    additionalProperties additionalItems contains propertyNames not if then else unevaluatedItems
    unevaluatedProperties
    """
)
HOLD_LIST = _words("allOf anyOf oneOf prefixItems")
HOLD_MAP = _words("properties patternProperties dependentSchemas $defs definitions")

_COUNTS = _words(
    "maxLength minLength maxItems minItems maxProperties minProperties minContains maxContains"
)
_NUMBERS = _words("multipleOf maximum exclusiveMaximum minimum exclusiveMinimum")
_TEXTS = _words("pattern format $ref $dynamicRef $recursiveRef")


def named_by(schema: JsonValue, pointer: str = "") -> Draft | None:
    """Return the draft that a schema says it is of.

    Raises ConstraintError: a `$schema` that is not known.
    """
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return None
    key = str(name).rstrip("#").partition("://")[2]
    if key not in _URIS:
        raise fault(f"unknown dialect {name!r}", f"{pointer}/$schema")
    return _URIS[key]


def asserts(draft: Draft, keyword: str) -> bool:
    """Whether a schema of this draft asserts something with the keyword."""
    return keyword in SINCE and SINCE[keyword] <= draft <= _UNTIL.get(keyword, draft)


def check(draft: Draft, keyword: str, value: JsonValue, pointer: str) -> None:
    """Raises ConstraintError: the keyword cannot have this value.  Sub-schemas are not entered."""
    problem = _problem(draft, keyword, value)
    if problem:
        raise fault(f"{keyword} {problem}", pointer)


def _problem(draft: Draft, keyword: str, value: JsonValue) -> str | None:
    if keyword in HOLD_SCHEMA:
        return None if _is_schema(draft, value, keyword) else "must be a schema"
    if keyword in HOLD_LIST:
        listed = isinstance(value, list) and value
        return None if listed else "must be a non-empty list of schemas"
    if keyword in HOLD_MAP or keyword in ("dependencies", "dependentRequired"):
        return None if isinstance(value, dict) else "must be an object"
    if keyword in _COUNTS:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        return None if whole and float(value).is_integer() else "must be a whole number from 0"  # type: ignore[arg-type]
    if keyword in _NUMBERS:
        return _number_problem(draft, keyword, value)
    if keyword in _TEXTS:
        return None if isinstance(value, str) else "must be a string"
    return _other_problem(draft, keyword, value)


def _number_problem(draft: Draft, keyword: str, value: JsonValue) -> str | None:
    if keyword.startswith("exclusive") and draft is Draft.DRAFT_4:
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if keyword == "multipleOf" and value <= 0:
        return "must be above 0"
    return None


def _other_problem(draft: Draft, keyword: str, value: JsonValue) -> str | None:
    match keyword:
        case "type":
            return _type_problem(value)
        case "enum":
            if not isinstance(value, list):
                return "must be a list"
            return None if value else "must not be empty: no value would be allowed"
        case "uniqueItems":
            return None if isinstance(value, bool) else "must be true or false"
        case "required":
            return None if _are_names(value, draft) else "must be a list of different names"
        case "items":
            if isinstance(value, list) and draft < Draft.DRAFT_2020:
                return None
            return None if _is_schema(draft, value, keyword) else "must be a schema"
    return None


def _type_problem(value: JsonValue) -> str | None:
    names = value if isinstance(value, list) else [value]
    unknown = [name for name in names if not isinstance(name, str) or name not in TYPES]
    if unknown:
        return f"names no type: {unknown[0]!r}"
    if not names or len(set(map(str, names))) != len(names):
        return "must be a type, or a list of different ones"
    return None


def _is_schema(draft: Draft, value: JsonValue, keyword: str) -> bool:
    old = draft is Draft.DRAFT_4 and not keyword.startswith("additional")
    return isinstance(value, dict) or (isinstance(value, bool) and not old)


def _are_names(value: JsonValue, draft: Draft) -> bool:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(map(str, value))) == len(value) and (bool(value) or draft is not Draft.DRAFT_4)
