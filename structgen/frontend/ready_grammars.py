"""The ready grammars by name.

They are files of the folder `grammars`, which lies in the installed package, or beside it in a
checkout: NAME.ebnf, .lark, .regex, .json (a schema) or .tag (a structural tag).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from structgen.constraints import (
    Backend,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.errors import InvalidRequest

PACKAGE = Path(__file__).parents[1]

_KINDS: Mapping[str, Callable[[str, Backend], Constraint]] = {
    ".ebnf": lambda text, backend: Ebnf(text, backend=backend),
    ".lark": lambda text, backend: Lark(text, backend=backend),
    ".regex": lambda text, backend: Regex(text.rstrip("\n"), backend=backend),
    ".json": lambda text, backend: JsonSchema(text, backend=backend),
    ".tag": lambda text, backend: StructuralTag(text, backend=backend),
}
_CASES = ".cases.json"


def folder(package: Path = PACKAGE) -> Path:
    """Return where the grammars of a package lie."""
    inside = package / "grammars"
    return inside if inside.is_dir() else package.parent / "grammars"


@cache
def files() -> Mapping[str, Path]:
    """Return the files by name, in order; none if the folder is not there."""
    try:
        found = sorted(folder().iterdir(), key=lambda path: path.stem)
    except OSError:
        return {}
    return {
        path.stem: path
        for path in found
        if path.suffix in _KINDS and not path.name.endswith(_CASES)
    }


def ready(name: str, backend: Backend = Backend.AUTO) -> Constraint:
    """Return the constraint of this name.  Raises InvalidRequest: there is none."""
    if name not in files():
        raise InvalidRequest(f"there is no ready grammar {name!r}; there are {', '.join(files())}")
    path = files()[name]
    return _KINDS[path.suffix](path.read_text(encoding="utf-8"), backend)
