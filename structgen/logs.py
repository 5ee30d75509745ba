"""One logger factory: an event and its fields, on stderr.

    log = logs.get(__name__)
    log.info("preempted", request=request.id, blocks=12)

Fields are formatted only if the record is emitted.  Prompts and outputs are never logged above
DEBUG.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any


class Logger(logging.LoggerAdapter[logging.Logger]):
    """Turns keyword fields into `key=value` text behind the event."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        passed = {name: kwargs.pop(name) for name in ("exc_info", "stack_info") if name in kwargs}
        return _Event(msg, dict(kwargs)), passed


class _Event:
    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.fields.items())])


def get(name: str) -> Logger:
    return Logger(logging.getLogger(name), None)


def configure(level: str) -> None:
    """Send structgen's records at `level` and above to stderr; called by processes, not imports."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname).1s %(process)d %(name)s %(message)s")
    )
    root = logging.getLogger("structgen")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
