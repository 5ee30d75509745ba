"""What came of a check, as lines for people and as JSON for programs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from structgen.errors import StructgenError
from structgen.frontend.checks import ConstraintCheck
from structgen.messages import MAX_EXPECTED, TextVerdict

MAX_SHOWN = 60  # columns of the offending line before and after the offence


class Place(NamedTuple):
    """Where a character stands in a text.  line, column: from 1, in characters."""

    line: int
    column: int
    content: str  # of the line


def place_at(text: bytes, offset: int) -> Place:
    """Return the place of the character that has a byte."""
    before = text[:offset].decode(errors="ignore")
    start = before.rfind("\n") + 1
    rest = text[len(before.encode()) :].decode(errors="replace")
    content = before[start:] + rest.partition("\n")[0]
    return Place(before.count("\n") + 1, len(before) - start + 1, content)


# ---- for people


def lines(check: ConstraintCheck, text: bytes | None) -> Iterator[str]:
    """Yield what a person wants to know; text: what was judged, if anything."""
    info = check.constraint
    yield (
        f"usable: {info.backend}, compiled in {1000 * info.compile_s:.1f} ms, "
        f"{_size(check.size_bytes)}"
    )
    yield f"id: {info.key}"
    for report in info.keywords:
        yield f"  {report.treatment.value:<10}  {report.pointer}"
    if check.verdict is not None and text is not None:
        yield from _verdict_lines(check.verdict, text)


def _verdict_lines(verdict: TextVerdict, text: bytes) -> Iterator[str]:
    if verdict.accepted:
        yield "text: accepted"
        return
    place = place_at(text, len(text) if verdict.error_offset is None else verdict.error_offset)
    if verdict.is_prefix:
        yield f"text: unfinished, legal as far as it goes ({place.line}:{place.column})"
    else:
        yield f"text: refused at {place.line}:{place.column} (byte {verdict.error_offset})"
    yield from _pointing(place)
    yield f"  expected {_expected(verdict)}"


def _pointing(place: Place) -> Iterator[str]:
    """Show a line with a caret under the character at its column."""
    at = place.column - 1
    before, behind = place.content[:at], place.content[at:]
    head = before if len(before) <= MAX_SHOWN else f"...{before[-MAX_SHOWN:]}"
    tail = behind if len(behind) <= MAX_SHOWN else f"{behind[:MAX_SHOWN]}..."
    yield f"  {_visible(head)}{_visible(tail)}"
    yield f"  {' ' * _width(_visible(head))}^"


def _visible(text: str) -> str:
    """Return text in which every control character takes a column, and tells which it is."""
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 0x20 else "\u2421" if c == "\x7f" else c for c in text
    )


def _width(text: str) -> int:
    """Return how many columns a terminal gives a text."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _expected(verdict: TextVerdict) -> str:
    texts = [repr(text) for text in verdict.expected]
    if verdict.may_end:
        texts.append("the end of the text")
    if not texts:
        return "nothing that the vocabulary could spell"
    sample = "for example " if len(verdict.expected) == MAX_EXPECTED else ""
    return sample + _either(texts)


def _either(texts: Sequence[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


def _size(num_bytes: int) -> str:
    if num_bytes < 10_000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e3:.0f} kB" if num_bytes < 10_000_000 else f"{num_bytes / 1e6:.0f} MB"


# ---- for programs


def to_json(check: ConstraintCheck, text: bytes | None) -> dict[str, Any]:
    """Return plain data."""
    keywords = [msgspec.structs.asdict(report) for report in check.constraint.keywords]
    values: dict[str, Any] = {
        "usable": True,
        "constraint": msgspec.structs.asdict(check.constraint) | {"keywords": keywords},
        "size_bytes": check.size_bytes,
    }
    if check.verdict is not None and text is not None:
        values["text"] = _verdict_json(check.verdict, text)
    return values


def refusal_to_json(error: StructgenError) -> dict[str, Any]:
    return {
        "usable": False,
        "error": {
            "kind": type(error).__name__,
            "message": error.message,
            "field": error.field.removeprefix("input."),
        },
    }


def _verdict_json(verdict: TextVerdict, text: bytes) -> dict[str, Any]:
    values = {
        "accepted": verdict.accepted,
        "prefix": verdict.is_prefix,
        "error_offset": verdict.error_offset,
        "expected": verdict.expected,
        "may_end": verdict.may_end,
    }
    if verdict.error_offset is not None:
        place = place_at(text, verdict.error_offset)
        values |= {"line": place.line, "column": place.column}
    return values
