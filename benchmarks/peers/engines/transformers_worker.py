"""Hugging Face transformers: `generate` on static batches, with xgrammar's logits processor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from _wire import Answer, Item, Job, Watch, batches, serve, versions


class Transformers:
    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        """settings: `whitespace`.  Prompts that were answered are never kept."""
        import torch
        import xgrammar
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._model.config.vocab_size
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=threads)
        self._whitespace = settings["whitespace"]
        return {
            "versions": versions("transformers", "torch", "xgrammar"),
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def restart(self) -> None:
        pass

    def run(self, job: Job) -> list[Answer]:
        import torch

        with torch.inference_mode():
            return [answer for batch in batches(job) for answer in self._batch(job, batch)]

    def _batch(self, job: Job, batch: Sequence[tuple[int, Item]]) -> list[Answer]:
        from transformers.generation import StoppingCriteriaList

        watch = Watch()
        inputs = self._tokenizer.pad(
            {"input_ids": [item["ids"] for _, item in batch]}, return_tensors="pt"
        )
        length = inputs["input_ids"].shape[1]
        outputs = self._model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=job.max_tokens,
            min_new_tokens=job.max_tokens if job.free else None,
            logits_processor=[] if job.free else [self._processor(batch)],
            stopping_criteria=StoppingCriteriaList([_Clock(watch)]),
        )[:, length:]
        return [
            self._answer(watch, index, row.tolist())
            for (index, _), row in zip(batch, outputs, strict=True)
        ]

    def _processor(self, batch: Sequence[tuple[int, Item]]) -> Any:
        import xgrammar.contrib.hf

        grammars = [
            self._compiler.compile_json_schema(
                json.dumps(item["schema"]), any_whitespace=self._whitespace
            )
            for _, item in batch
        ]
        return xgrammar.contrib.hf.LogitsProcessor(grammars)

    def _answer(self, watch: Watch, index: int, ids: list[int]) -> Answer:
        ends = set(self._model.generation_config.eos_token_id)
        kept = next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))
        text = self._tokenizer.decode(ids[:kept], skip_special_tokens=True)
        return watch.answer(index, text, kept)


class _Clock:
    """A stopping criterion that stops nothing, and tells the watch of every token."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self._watch.token()
        return input_ids.new_zeros(len(input_ids), dtype=bool)


if __name__ == "__main__":
    serve(Transformers())
