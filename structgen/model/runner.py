"""Runs the model: plan -> flat tensors -> forward -> logits -> tokens.  Device thread only."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

import msgspec
import numpy as np
import torch

from structgen import logs
from structgen.config import EngineConfig, ResolvedConfig
from structgen.errors import ConfigError, Unsupported
from structgen.logprobs import TokenLogprobs
from structgen.messages import ModelInfo
from structgen.model import inputs
from structgen.model.attention import get_backend
from structgen.model.context import forward_context
from structgen.model.dtypes import resolve_dtype
from structgen.model.kv_cache import KVCache, LayerShape, bytes_per_token
from structgen.model.loaded import load
from structgen.model.rows import Int64, RequestRows
from structgen.model.sampling.logprobs import raw_logprobs
from structgen.model.sampling.sampler import sample
from structgen.params import SamplingParams
from structgen.plan import NewRow, PlanRow, RowOutput, StepOutput, StepPlan, TokenBitmask
from structgen.trace import OFF, Trace

log = logs.get(__name__)


@dataclass(slots=True)
class _Pending:
    """A forward that has not been sampled from yet."""

    plan: StepPlan
    slots: Int64
    batch: inputs.ModelInput
    logits: torch.Tensor
    forward_s: float
    done_at: float


class ModelRunner:
    """One model on one device, with its KV cache.

    info: what was loaded.  config: with every number final.
    Raises ConfigError: the model cannot be loaded or does not fit the architecture.
    """

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        vocab_size: int,
        eos_ids: list[int],
        trace: Trace = OFF,
    ) -> None:
        self._trace = trace
        self._device = _device(config.device)
        threads = config.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        loaded = load(config, folder, self._device, threads)
        self._compute, self._spec = loaded.forward, loaded.spec
        kv_dtype = loaded.dtype
        if config.kv_dtype != "auto":
            kv_dtype = resolve_dtype(config.kv_dtype, self._device)
        self._vocab_size = min(vocab_size, self._spec.vocab_size)
        self._attention = get_backend(config.attention, self._device, threads)
        shapes = [LayerShape(layer.num_kv_heads, layer.head_dim) for layer in self._spec.layers]
        self.config: ResolvedConfig = config.resolve(
            context_length=self._spec.context_length,
            bytes_per_token=bytes_per_token(shapes, kv_dtype),
        )
        self._kv_cache = KVCache(
            shapes,
            num_blocks=self.config.num_blocks,
            block_size=config.block_size,
            dtype=kv_dtype,
            device=self._device,
            backend=self._attention,
        )
        self._rows = RequestRows(-(-self.config.context_length // config.block_size))
        self._pending: _Pending | None = None
        self.info = ModelInfo(
            name=config.model,
            folder=str(folder),
            architecture=self._spec.architecture,
            vocab_size=self._vocab_size,
            context_length=self.config.context_length,
            eos_ids=eos_ids,
            num_parameters=self._spec.num_parameters,
            dtype=str(loaded.dtype).removeprefix("torch."),
            quantization="int8" if loaded.is_quantised else "none",
            kv_dtype=str(kv_dtype).removeprefix("torch."),
            device=str(self._device),
            attention=self._attention.name,
            block_size=config.block_size,
            num_blocks=self.config.num_blocks,
            threads=threads,
        )
        self._warm_up()
        self._kv_cache.make_ready_soon()

    @torch.inference_mode()
    def execute_model(self, plan: StepPlan) -> None:
        """Compute the rows of a plan and keep their logits for `sample_tokens`."""
        assert self._pending is None, "the last forward was not sampled from"
        began = time.perf_counter()
        with self._trace.span("pack"):
            slots = self._rows.apply(plan)
            batch = inputs.pack(plan, slots, self._rows, self.config.block_size, self._device)
        with self._trace.span("forward", rows=len(plan.rows), tokens=len(batch.positions)):
            logits = self._forward(batch)
        done = time.perf_counter()
        self._pending = _Pending(plan, slots, batch, logits, done - began, done)

    @torch.inference_mode()
    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        """Sample where the last plan asked for it."""
        assert self._pending is not None, "no forward to sample from"
        pending, self._pending = self._pending, None
        began = time.perf_counter()
        self._trace.note("wait", pending.done_at, began)
        with self._trace.span("sample"):
            rows = self._sample(pending, mask)
        return StepOutput(
            rows,
            forward_s=pending.forward_s,
            sample_s=time.perf_counter() - began,
            wait_s=began - pending.done_at,
        )

    def _sample(self, pending: _Pending, mask: TokenBitmask) -> list[RowOutput]:
        """Return what each row of the plan comes to."""
        batch = pending.batch
        sampled, prompts = pending.logits.split(
            [len(batch.sampled_slots), len(pending.logits) - len(batch.sampled_slots)]
        )
        prompt_logprobs = self._prompt_logprobs(pending, prompts)
        outputs = iter(
            sample(sampled, mask, self._rows, batch.sampled_slots, batch.sampled_positions)
        )
        rows = [_joined([*islice(outputs, row.num_logits)]) for row in pending.plan.rows]
        for index, logprobs in prompt_logprobs.items():
            rows[index] = msgspec.structs.replace(rows[index], prompt_logprobs=logprobs)
        return rows

    def _prompt_logprobs(
        self, pending: _Pending, logits: torch.Tensor
    ) -> dict[int, list[TokenLogprobs]]:
        """Return the logprobs of the targets, by plan row.  logits: float32 [P, V]."""
        found: dict[int, list[TokenLogprobs]] = {}
        start = 0
        for index, row in enumerate(pending.plan.rows):
            count = len(row.targets)
            if count:
                targets = torch.tensor(row.targets, device=logits.device)
                num_top = int(self._rows.num_prompt_top[pending.slots[index]])
                found[index] = raw_logprobs(
                    logits[start : start + count], targets, [num_top] * count, [None] * count
                )
                start += count
        return found

    def _forward(self, batch: inputs.ModelInput) -> torch.Tensor:
        """Return float32 [L + P, V]: the logits where they are wanted, of real tokens only."""
        with forward_context(batch.meta, self._attention, self._kv_cache) as context:
            logits = self._compute(batch.input_ids, batch.positions, batch.logits_index)
        missed = context.layers_missed()
        assert not missed, f"layers {missed} were not called exactly once"
        # Rows beyond the tokenizer stand for nothing and must never be sampled.
        return logits[:, : self._vocab_size]

    def _warm_up(self) -> None:
        """Run one prompt and one decode step, so that the first request finds everything ready.

        Raises ConfigError: the model does not run through the attention interface.
        """
        prompt = list(range(min(8, self._vocab_size)))
        row = NewRow("warm-up", SamplingParams(temperature=0.0), seed=0)
        block = [0]
        prefill = PlanRow(row.id, 0, prompt[: self.config.block_size], block, 1)
        mask = TokenBitmask(np.zeros((0, 0), np.int32), np.zeros(0, np.int32))
        try:
            self.execute_model(StepPlan(0, [row], [prefill], []))
            self.sample_tokens(mask)
        except (AssertionError, Unsupported, TypeError) as error:
            raise ConfigError(
                f"{self._spec.architecture} does not run on flat input through the attention "
                f"interface of transformers: {error}"
            ) from error
        finally:
            self._rows.apply(StepPlan(0, [], [], [row.id]))


def _joined(outputs: Sequence[RowOutput]) -> RowOutput:
    """Return what was sampled in the places of one row, up to the first that failed."""
    if len(outputs) == 1:
        return outputs[0]
    good = [*takewhile(lambda output: not output.error, outputs)]
    if outputs and not good:
        return outputs[0]
    return RowOutput(
        [token for output in good for token in output.token_ids],
        logprobs=[logprobs for output in good for logprobs in output.logprobs],
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name} is not available here")
    return device
