"""The worker's side of the protocol: JSON lines on stdin and stdout, by the standard library alone.

    {"do": "load", "model": PATH, "threads": N, "settings": {...}}    -> the engine's facts
    {"do": "restart"}                                                 -> {}
    {"do": "run", "mode": "free" | "json", "concurrency": N, "max_tokens": N, "items": [...]}
                                                       -> {"seconds": S, "answers": [Answer, ...]}

An item has `ids` (the prompt's tokens), `messages` (what they were made of), `schema` (a JSON
schema) and `ebnf` (the same without optional blanks, for engines that take grammars).  A command
that fails is answered {"error": TEXT}.  The end of stdin ends the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Protocol, TextIO

Item = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One pass over the items.  mode: "free" ignores the end of the text, "json" is constrained."""

    mode: str
    concurrency: int
    max_tokens: int
    items: list[Item]

    @property
    def free(self) -> bool:
        return self.mode == "free"


@dataclass(frozen=True)
class Answer:
    """index: of the item.  first_s, last_s: from sending; None where the engine does not tell."""

    index: int
    text: str
    tokens: int
    first_s: float | None = None
    last_s: float | None = None


class Engine(Protocol):
    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """Get ready to answer.  Returns `versions`, `dtype` and whatever else tells the setting."""

    def restart(self) -> None:
        """Forget earlier answers, if the engine learns from any."""

    def run(self, job: Job) -> list[Answer]: ...


def serve(engine: Engine) -> None:
    """Answer commands until stdin ends.  What libraries print goes to stderr."""
    with _own_stdout() as answers:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = _obey(engine, command)
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _obey(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    match command.pop("do"):
        case "load":
            return engine.load(**command)
        case "restart":
            engine.restart()
            return {}
        case "run":
            job = Job(**command)
            began = time.perf_counter()
            answers = engine.run(job)
            seconds = time.perf_counter() - began
            return {"seconds": seconds, "answers": [asdict(answer) for answer in answers]}
        case other:
            raise ValueError(f"no such command: {other}")


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Keep stdout for the answers, and lend file descriptor 1 to stderr meanwhile."""
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as answers:
        yield answers


def versions(*packages: str) -> dict[str, str]:
    return {package: metadata.version(package) for package in packages}


async def as_clients(job: Job, ask: Callable[[int, Item], Awaitable[Answer]]) -> list[Answer]:
    """Ask for every item; as many clients as the job's concurrency send one after another."""
    queue = iter(enumerate(job.items))
    answers: list[Answer] = []

    async def one_client() -> None:
        for index, item in queue:
            answers.append(await ask(index, item))

    await asyncio.gather(*(one_client() for _ in range(job.concurrency)))
    return answers


def batches(job: Job) -> Iterator[Sequence[tuple[int, Item]]]:
    """Cut the items into batches of the job's concurrency."""
    numbered = list(enumerate(job.items))
    for start in range(0, len(numbered), job.concurrency):
        yield numbered[start : start + job.concurrency]


class Watch:
    """Times of one answer, from now."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.first_s: float | None = None

    def token(self) -> None:
        """Note that a token has come."""
        self.first_s = self.first_s or self.elapsed_s()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def answer(self, index: int, text: str, tokens: int) -> Answer:
        return Answer(index, text, tokens, self.first_s, self.elapsed_s())
