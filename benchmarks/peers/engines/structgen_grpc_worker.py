"""structgen as it is used: `structgen serve`, and a client that streams over gRPC."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from typing import Any

from _requests import params
from _wire import Answer, Item, Job, Watch, as_clients, serve, versions

from structgen.client import AsyncClient
from structgen.tokenizer import ChatMessage

READY = "structgen ready on "
STOP_TIMEOUT_S = 30.0


class StructgenServer:
    """The server is a process of its own, and has the engine in another."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `prefix_caching`, `whitespace`."""
        caching = "--prefix-caching" if settings["prefix_caching"] else "--no-prefix-caching"
        self._command = [sys.executable, "-m", "structgen", "serve", "--port", "0", caching]
        self._command += ["--model", model, "--threads", str(threads), "--log-level", "WARNING"]
        self._whitespace = settings["whitespace"]
        dtype = self._loop.run_until_complete(self._start())
        return {"versions": versions("structgen", "torch", "grpcio"), "dtype": dtype}

    def restart(self) -> None:
        """Start a new server: the old one guesses from the answers that it has given."""
        self._loop.run_until_complete(self._client.close())
        self.stop()
        self._loop.run_until_complete(self._start())

    def stop(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def run(self, job: Job) -> list[Answer]:
        return self._loop.run_until_complete(
            as_clients(job, lambda index, item: self._ask(job, index, item))
        )

    async def _start(self) -> str:
        self._server = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line.startswith(READY):
            raise RuntimeError(f"the server ended before it was ready, with {self._server.wait()}")
        self._client = AsyncClient(line.removeprefix(READY).strip())
        model = await self._client.model_info()
        return model.dtype if model.quantization == "none" else model.quantization

    async def _ask(self, job: Job, index: int, item: Item) -> Answer:
        messages = [
            ChatMessage(message["role"], message["content"]) for message in item["messages"]
        ]
        watch = Watch()
        texts: list[str] = []
        stream = self._client.stream(messages, params(job, item, self._whitespace))
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                watch.token()
                texts.append(piece.text)
        assert piece.usage is not None
        assert piece.usage.prompt_tokens == len(item["ids"]), "another prompt than the others get"
        return watch.answer(index, "".join(texts), piece.usage.completion_tokens)


if __name__ == "__main__":
    engine = StructgenServer()
    try:
        serve(engine)
    finally:
        engine.stop()
