"""What became of the keywords of a schema."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Treatment(StrEnum):
    """ENFORCED token by token; VERIFIED once the text is complete; ANNOTATION: says nothing about
    the value, by the specification; IGNORED: not at all."""

    ENFORCED = "enforced"
    VERIFIED = "verified"
    ANNOTATION = "annotation"
    IGNORED = "ignored"


class KeywordReport(msgspec.Struct, frozen=True, array_like=True):
    """pointer: JSON pointer of the keyword's value, into the schema as the client sent it."""

    pointer: str
    keyword: str
    treatment: Treatment
