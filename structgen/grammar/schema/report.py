"""What became of the keywords of a schema."""

from __future__ import annotations

import msgspec

from structgen.keywords import KeywordReport, Treatment

__all__ = ["KeywordReport", "Place", "Places", "Treatment", "union"]


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a keyword of the client's schema stands."""

    pointer: str
    keyword: str


Places = tuple[Place, ...]


def union(first: Places, second: Places) -> Places:
    """Return the places of both, each once, in order of appearance."""
    if first == second or not second:
        return first
    return tuple(dict.fromkeys(first + second))
