"""Where front end and engine process meet: two sockets in a private folder."""

from __future__ import annotations

from pathlib import Path

INPUT_SOCKET = "input"
OUTPUT_SOCKET = "output"


def endpoint(folder: Path, name: str) -> str:
    return f"ipc://{folder / name}"
