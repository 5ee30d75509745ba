"""How the faults of a schema are told."""

from __future__ import annotations

from structgen.errors import ConstraintError
from structgen.grammar.limits import SCHEMA_FIELD


def fault(message: str, pointer: str) -> ConstraintError:
    """Return the error for a fault at a JSON pointer of the schema."""
    place = f" at {pointer}" if pointer else ""
    return ConstraintError(f"json_schema{place}: {message}", field=SCHEMA_FIELD)
