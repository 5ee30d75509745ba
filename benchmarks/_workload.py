"""The requests of `serve.py`: texts, and what is to be extracted from them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from structgen.constraints import JsonSchema
from structgen.tokenizer import ChatMessage


class Item(msgspec.Struct, frozen=True):
    """One request.  schema: as the constraint, and as plain data to judge answers by."""

    messages: list[ChatMessage]
    constraint: JsonSchema
    schema: dict[str, Any]


class Workload(msgspec.Struct, frozen=True):
    """max_tokens: of constrained runs.  free_tokens: of unconstrained ones, exactly."""

    name: str
    items: list[Item]
    max_tokens: int
    free_tokens: int


def load(path: Path) -> Workload:
    """Read a workload file, or make the built-in one if there is none.

    The file has `schemas` by kind, `requests` (kind, messages), `max_tokens` and `free_tokens`.
    """
    if not path.is_file():
        return Workload("built-in", _made(), 160, 96)
    data = json.loads(path.read_text(encoding="utf-8"))
    items = [_item(request, data["schemas"]) for request in data["requests"]]
    return Workload(path.stem, items, data["max_tokens"], data["free_tokens"])


def _item(request: Mapping[str, Any], schemas: Mapping[str, dict[str, Any]]) -> Item:
    schema = schemas[request["kind"]]
    messages = [ChatMessage(message["role"], message["content"]) for message in request["messages"]]
    return Item(messages, JsonSchema.of(schema), schema)


PLACES = ("Lisbon", "Oslo", "Graz", "Porto")
THINGS = ("a steel lamp", "two oak chairs", "a cotton roll", "three glass jars")
WEATHER = ("in the rain", "before noon", "a week late", "with a long apology")
TEXT = (
    "Order {number} was sent to {place} on Monday and contained {thing}. It arrived {weather}, was "
    "signed for at the door and cost {price} euro, delivery included. The customer has "
    "{paid} paid and asks for a copy of the invoice."
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_number": {"type": "string", "maxLength": 12},
        "city": {"type": "string", "maxLength": 24},
        "contents": {"type": "string", "maxLength": 40},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
    },
    "required": ["order_number", "city", "contents", "price", "paid"],
    "additionalProperties": False,
}


def _made() -> list[Item]:
    """Return 32 requests of one kind."""
    constraint = JsonSchema.of(SCHEMA)
    return [
        Item(
            [
                ChatMessage("system", "You extract data. Answer with one JSON object."),
                ChatMessage("user", f"Extract the fields as JSON.\n\n{_text(index)}"),
            ],
            constraint,
            SCHEMA,
        )
        for index in range(32)
    ]


def _text(index: int) -> str:
    return TEXT.format(
        number=f"N-{7919 * (index + 1) % 10_000}",
        place=PLACES[index % 4],
        thing=THINGS[index // 4 % 4],
        weather=WEATHER[index // 8],
        price=f"{19 + 3 * index}.50",
        paid="not yet" if index % 3 else "already",
    )
