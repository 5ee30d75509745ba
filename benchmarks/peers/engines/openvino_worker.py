"""OpenVINO GenAI: its continuous batching pipeline, over the model converted to int8."""

from __future__ import annotations

import json
from typing import Any

from _wire import Answer, Item, Job, Watch, serve, versions


class OpenVino:
    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `prefix_caching`, `whitespace`."""
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_seqs = 32
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = settings["prefix_caching"]
        self._pipeline = genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._whitespace = settings["whitespace"]
        self._serial = 0
        return {"versions": versions("openvino-genai", "openvino"), "dtype": "int8"}

    def restart(self) -> None:
        pass

    def run(self, job: Job) -> list[Answer]:
        queue = list(enumerate(job.items))[::-1]
        running: list[_Running] = []
        answers: list[Answer] = []
        while queue or running:
            while queue and len(running) < job.concurrency:
                running.append(self._start(job, *queue.pop()))
            self._pipeline.step()
            for request in running:
                request.read()
            answers += [self._answer(request) for request in running if request.finished]
            running = [request for request in running if not request.finished]
        return answers

    def _start(self, job: Job, index: int, item: Item) -> _Running:
        import numpy as np
        import openvino as ov

        self._serial += 1
        ids = ov.Tensor(np.array([item["ids"]], dtype=np.int64))
        watch = Watch()
        handle = self._pipeline.add_request(self._serial, ids, self._config(job, item))
        return _Running(index, handle, watch)

    def _config(self, job: Job, item: Item) -> Any:
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens = job.max_tokens
        config.do_sample = False
        config.ignore_eos = job.free
        config.eos_token_id = self._tokenizer.get_eos_token_id()
        if job.free:
            return config
        structured = genai.StructuredOutputConfig()
        if self._whitespace:
            structured.json_schema = json.dumps(item["schema"])
        else:
            structured.grammar = item["ebnf"]
        config.structured_output_config = structured
        return config

    def _answer(self, request: _Running) -> Answer:
        text = self._tokenizer.decode(request.ids)
        return request.watch.answer(request.index, text, len(request.ids))


class _Running:
    """A request that was added to the pipeline."""

    def __init__(self, index: int, handle: Any, watch: Watch) -> None:
        self.index = index
        self.watch = watch
        self.ids: list[int] = []
        self._handle = handle

    def read(self) -> None:
        """Take the tokens of the last step."""
        while self._handle.can_read():
            for output in self._handle.read().values():
                self.watch.token()
                self.ids += output.generated_ids

    @property
    def finished(self) -> bool:
        import openvino_genai as genai

        return self._handle.get_status() != genai.GenerationStatus.RUNNING


if __name__ == "__main__":
    serve(OpenVino())
