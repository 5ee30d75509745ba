"""structgen in Python: `AsyncLLM`, with the engine in a process of its own as in the server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from _requests import params
from _wire import Answer, Item, Job, Watch, as_clients, serve, versions

from structgen import AsyncLLM, GenerationInput
from structgen.config import EngineConfig


class Structgen:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `prefix_caching`, `whitespace`."""
        self._config = EngineConfig(
            model=model,
            threads=threads,
            prefix_caching=settings["prefix_caching"],
            log_level="WARNING",
        )
        self._whitespace = settings["whitespace"]
        self._loop.run_until_complete(self._start())
        model = self._llm.model
        weights = model.dtype if model.quantization == "none" else model.quantization
        return {"versions": versions("structgen", "torch"), "dtype": weights}

    def restart(self) -> None:
        """Start a new engine: the old one guesses from the answers that it has given."""
        self._loop.run_until_complete(self._llm.close())
        self._loop.run_until_complete(self._start())

    def run(self, job: Job) -> list[Answer]:
        return self._loop.run_until_complete(
            as_clients(job, lambda index, item: self._ask(job, index, item))
        )

    async def _start(self) -> None:
        self._llm = AsyncLLM(self._config)
        await self._llm.start()

    async def _ask(self, job: Job, index: int, item: Item) -> Answer:
        request = GenerationInput(prompt=item["ids"], params=params(job, item, self._whitespace))
        watch = Watch()
        texts: list[str] = []
        async with aclosing(self._llm.generate(request)) as pieces:
            async for piece in pieces:
                watch.token()
                texts.append(piece.text)
        assert piece.usage is not None
        return watch.answer(index, "".join(texts), piece.usage.completion_tokens)


if __name__ == "__main__":
    serve(Structgen())
