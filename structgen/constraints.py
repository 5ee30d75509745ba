"""What the caller wants the answer to look like.

A Constraint is frozen and hashable: it is its own key in the compile cache.  Construction checks
only what is cheap and independent of any backend; whether a backend can enforce it is found out by
compiling it.  Field paths in the errors are those of the public contract.
"""

from __future__ import annotations

import hashlib
import json
import math
from enum import StrEnum
from typing import Any

import msgspec

from structgen.errors import ConstraintError, ConstraintTooLarge

FIELD = "input.constraint"

# What is looked at at all, by whoever takes a request in; what is compiled is bounded further.
# Characters of a schema's text, white space included, and bytes of any other.
MAX_SCHEMA_CHARACTERS = 1024 * 1024
MAX_TEXT_BYTES = 256 * 1024
MAX_OPTIONS = 10_000

MAX_DIGITS = 308  # of an integer in a schema: what a double holds


class Whitespace(StrEnum):
    """Optional white space between JSON tokens: none but ", " and ": ", or a bounded amount."""

    COMPACT = "compact"
    FLEXIBLE = "flexible"


class Backend(StrEnum):
    """The library that enforces a constraint; AUTO is the first that enforces all of it."""

    AUTO = "auto"
    XGRAMMAR = "xgrammar"
    LLGUIDANCE = "llguidance"
    OUTLINES_CORE = "outlines_core"


class _Constraint(
    msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=True, kw_only=True
):
    backend: Backend = Backend.AUTO

    def key(self) -> str:
        """Return a stable hex digest, equal for equal constraints in every process."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()


class JsonSchema(_Constraint, frozen=True, tag="json_schema"):
    """One JSON value valid under `schema` (JSON text, key order kept, minified on construction).

    best_effort: go on without the keywords that nothing can enforce, instead of refusing them.
    Raises ConstraintError: the text is not JSON, or not an object or a boolean.
    ConstraintTooLarge: it is beyond what is parsed.
    """

    schema: str
    whitespace: Whitespace = Whitespace.COMPACT
    best_effort: bool = False

    def __post_init__(self) -> None:
        field = f"{FIELD}.json_schema"
        most = MAX_SCHEMA_CHARACTERS
        _require_size("the number of characters", len(self.schema), most, field)
        minified = _minified(self.schema, field)
        if not minified.startswith(("{", "t", "f")):
            raise ConstraintError("json_schema must be a JSON object or a boolean", field=field)
        msgspec.structs.force_setattr(self, "schema", minified)

    @classmethod
    def of(cls, schema: Any, whitespace: Whitespace = Whitespace.COMPACT) -> JsonSchema:
        """Make one from JSON text, a dict, a bool, or a Pydantic model class."""
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        return cls(text, whitespace)


class JsonObject(_Constraint, frozen=True, tag="json_object"):
    """Any JSON object."""

    whitespace: Whitespace = Whitespace.COMPACT


class Regex(_Constraint, frozen=True, tag="regex"):
    r"""A text that `pattern`, an ECMA-262 regular expression, matches as a whole.

    As with the flag u: characters are code points, \d and \w are ASCII, \s is Unicode's white
    space, and . is any character but a line end; anchors are allowed, and taken as met only where
    they are; greedy or not makes no difference.  \p{...} is left to the libraries that have it.
    Refused by name, because no automaton has them: look-around, back-references, word boundaries,
    flags inside; and a pattern that matches nothing.
    """

    pattern: str

    def __post_init__(self) -> None:
        _require_text(self.pattern, f"{FIELD}.regex")


class Ebnf(_Constraint, frozen=True, tag="ebnf"):
    """A text of the language of a grammar in EBNF, from the rule named `root`.

    The dialect is GBNF, as llama.cpp and xgrammar have it; structgen.grammar.ebnf describes it.
    """

    text: str
    root: str = "root"

    def __post_init__(self) -> None:
        _require_text(self.text, f"{FIELD}.grammar.text")
        _require_text(self.root, f"{FIELD}.grammar.root_rule")


class Lark(_Constraint, frozen=True, tag="lark"):
    """A text of the language of a grammar in Lark's notation, from the rule named `start`.

    structgen.grammar.lark describes the dialect, and what is ignored where.
    """

    text: str
    start: str = "start"

    def __post_init__(self) -> None:
        _require_text(self.text, f"{FIELD}.grammar.text")
        _require_text(self.start, f"{FIELD}.grammar.root_rule")


class StructuralTag(_Constraint, frozen=True, tag="structural_tag"):
    """A text with constrained passages: `structural_tag`, JSON text in xgrammar's notation.

    structgen.grammar.structural_tag describes which formats it may use.
    Raises ConstraintError: the text is not JSON, or not an object.
    """

    structural_tag: str

    def __post_init__(self) -> None:
        field = f"{FIELD}.structural_tag"
        _require_text(self.structural_tag, field)
        minified = _minified(self.structural_tag, field)
        if not minified.startswith("{"):
            raise ConstraintError("structural_tag must be a JSON object", field=field)
        msgspec.structs.force_setattr(self, "structural_tag", minified)


class Choice(_Constraint, frozen=True, tag="choice"):
    """Exactly one of the options."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        field = f"{FIELD}.choice"
        if not self.options:
            raise ConstraintError("choice needs at least one option", field=field)
        _require_size("the number of options", len(self.options), MAX_OPTIONS, field)
        for index, option in enumerate(self.options):
            _require_text(option, f"{field}.options[{index}]")
        size = sum(len(option.encode()) for option in self.options)
        _require_size("the size in bytes of all options", size, MAX_TEXT_BYTES, field)


class ConstraintId(msgspec.Struct, frozen=True):
    """What a client says in place of a constraint that the server has compiled before.

    id: `key` of the ConstraintInfo of a check or an answer.
    """

    id: str


Constraint = JsonSchema | JsonObject | Regex | Ebnf | Lark | Choice | StructuralTag


def _require_text(text: str, field: str) -> None:
    name = field.rpartition(".")[2]
    if not text:
        raise ConstraintError(f"{name} must not be empty", field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"{name} holds a lone surrogate at character {error.start}", field=field
        ) from None
    _require_size("the size in bytes", size, MAX_TEXT_BYTES, field)


def _require_size(what: str, size: int, limit: int, field: str) -> None:
    if size > limit:
        name = field.removeprefix(f"{FIELD}.")
        raise ConstraintTooLarge(f"{name}: {what} must be at most {limit}, got {size}", field=field)


def _minified(text: str, field: str) -> str:
    """Return strict JSON text without white space; given that, the same again.

    Raises ConstraintError: it has NaN or Infinity, a number beyond a double, duplicate keys, or
    lone surrogates, or is no JSON at all.
    """
    name = field.rpartition(".")[2]
    try:
        parsed = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_unique,
        )
        minified = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        minified.encode()
    except UnicodeEncodeError:
        raise ConstraintError(f"{name} holds a lone surrogate", field=field) from None
    except RecursionError:
        raise ConstraintError(f"{name} is nested too deeply", field=field) from None
    except ValueError as error:
        raise ConstraintError(f"{name} is not JSON: {error}", field=field) from None
    return minified


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a double holds")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer must have at most {MAX_DIGITS} digits, got {len(text)}")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice!r}")
    return result
