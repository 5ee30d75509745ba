"""What the caller wants the answer to look like.

A Constraint is frozen and hashable: it is its own key in the compile cache.  Construction checks
only what is cheap and independent of any backend; whether a backend can enforce it is found out by
compiling it.  Field paths in the errors are those of the public contract.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

import msgspec

from structgen.errors import ConstraintError

FIELD = "input.constraint"


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
    """

    schema: str
    whitespace: Whitespace = Whitespace.COMPACT
    best_effort: bool = False

    def __post_init__(self) -> None:
        parsed = _parse_json(self.schema, f"{FIELD}.json_schema")
        if not isinstance(parsed, dict | bool):
            raise ConstraintError(
                f"json_schema must be a JSON object or a boolean, got {type(parsed).__name__}",
                field=f"{FIELD}.json_schema",
            )
        minified = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
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
    """A text that `pattern` matches as a whole."""

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


class Choice(_Constraint, frozen=True, tag="choice"):
    """Exactly one of the options."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ConstraintError("choice needs at least one option", field=f"{FIELD}.choice")
        for index, option in enumerate(self.options):
            _require_text(option, f"{FIELD}.choice.options[{index}]")


class ConstraintId(msgspec.Struct, frozen=True):
    """What a client says in place of a constraint that the server has compiled before.

    id: `key` of the ConstraintInfo of a check or an answer.
    """

    id: str


Constraint = JsonSchema | JsonObject | Regex | Ebnf | Lark | Choice


def _require_text(text: str, field: str) -> None:
    if not text:
        raise ConstraintError(f"{field.rpartition('.')[2]} must not be empty", field=field)
    _require_utf8(text, field)


def _require_utf8(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"{field.rpartition('.')[2]} holds a lone surrogate at character {error.start}",
            field=field,
        ) from None


def _parse_json(text: str, field: str) -> Any:
    """Parse strict JSON: no NaN or Infinity, no duplicate keys, no lone surrogates."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"duplicate key {twice!r}")
        return result

    try:
        parsed = json.loads(text, parse_constant=constant, object_pairs_hook=unique)
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConstraintError("json_schema holds a lone surrogate", field=field) from None
    except RecursionError:
        raise ConstraintError("json_schema is nested too deeply", field=field) from None
    except ValueError as error:
        raise ConstraintError(f"json_schema is not JSON: {error}", field=field) from None
    return parsed
