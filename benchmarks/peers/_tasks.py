"""The workload, with every prompt as the tokens that all engines get, and the judge of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import xgrammar

from structgen.tokenizer import ChatMessage, Tokenizer

Item = dict[str, Any]
Answer = dict[str, Any]


def load(path: Path, tokenizer: Tokenizer) -> list[Item]:
    """Read the items of a workload file, with `ids`, `messages`, `schema` and `ebnf`.

    Raises FileNotFoundError: there is no such file.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    compact = {kind: _ebnf(schema) for kind, schema in data["schemas"].items()}
    return [
        {
            "ids": _ids(request["messages"], tokenizer),
            "messages": request["messages"],
            "schema": data["schemas"][request["kind"]],
            "ebnf": compact[request["kind"]],
        }
        for request in data["requests"]
    ]


def is_valid(answer: Answer, items: Sequence[Item]) -> bool:
    """Whether the text is JSON that obeys the schema of its item."""
    try:
        data = json.loads(answer["text"])
    except ValueError:
        return False
    return bool(jsonschema_rs.is_valid(items[answer["index"]]["schema"], data))


def _ids(messages: Sequence[dict[str, str]], tokenizer: Tokenizer) -> list[int]:
    chat = [ChatMessage(message["role"], message["content"]) for message in messages]
    return tokenizer.encode_chat(chat)


def _ebnf(schema: dict[str, Any]) -> str:
    """Write a schema as a grammar without optional blanks."""
    grammar = str(xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False))
    return re.sub(r"\{(\d+), -1\}", r"{\1,}", grammar)  # it does not read its own "no limit"
