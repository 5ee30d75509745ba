"""llama.cpp: the server of `xllamacpp`, in the worker's process, with a slot for each client."""

from __future__ import annotations

import json
import threading
from typing import Any

from _wire import Answer, Item, Job, Watch, serve, versions

SLOTS = 32
SLOT_CONTEXT = 512


class LlamaCpp:
    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `prefix_caching`, `whitespace`."""
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_parallel = SLOTS
        params.n_ctx = SLOTS * SLOT_CONTEXT
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = 0 if not settings["prefix_caching"] else params.cache_ram_mib
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        self._settings = settings
        return {
            "versions": versions("xllamacpp"),
            "dtype": settings["dtype"],
            "instructions": xllamacpp.get_system_info(),
        }

    def restart(self) -> None:
        pass

    def run(self, job: Job) -> list[Answer]:
        queue = iter(list(enumerate(job.items)))
        lock = threading.Lock()
        answers: list[Answer] = []

        def client() -> None:
            while True:
                with lock:
                    numbered = next(queue, None)
                if numbered is None:
                    return
                answers.append(self._ask(job, *numbered))

        threads = [threading.Thread(target=client) for _ in range(job.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _ask(self, job: Job, index: int, item: Item) -> Answer:
        watch = Watch()
        pieces: list[dict[str, Any]] = []

        def take(piece: Any) -> bool:
            """Note a piece; True would stop the answer."""
            watch.token()
            pieces.extend(piece if isinstance(piece, list) else [piece])
            return False

        self._server.handle_completions(self._request(job, item), take)
        if faults := [piece for piece in pieces if "choices" not in piece]:
            raise RuntimeError(f"llama.cpp refused the request: {faults[0]}")
        text = "".join(piece["choices"][0]["text"] for piece in pieces)
        return watch.answer(index, text, pieces[-1]["usage"]["completion_tokens"])

    def _request(self, job: Job, item: Item) -> dict[str, Any]:
        request = {
            "prompt": item["ids"],
            "n_predict": job.max_tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": job.free,
            "cache_prompt": self._settings["prefix_caching"],
            "stream": True,
        }
        return request if job.free else request | self._constraint(item["schema"])

    def _constraint(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self._settings["whitespace"]:
            return {"json_schema": schema}
        compact = schema | {"x-guidance": {"whitespace_flexible": False}}
        return {"grammar": f"%llguidance {{}}\nstart: %json {json.dumps(compact)}"}


if __name__ == "__main__":
    serve(LlamaCpp())
