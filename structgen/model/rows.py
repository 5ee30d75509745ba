"""What the model keeps of each request between steps: a stable slot in a few arrays.

Device thread only, written from plans alone: a plan's `added` rows create slots, its rows extend
their block tables, its `removed` rows free them.  Slots are reused, so everything in one is written
when it is taken.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from structgen.model.sampling.counts import TokenCounts
from structgen.params import SamplingParams
from structgen.plan import NewRow, StepPlan

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

T = TypeVar("T", bound=np.generic)

_MASK64 = (1 << 64) - 1


class RequestRows:
    """Arrays over S slots; S doubles when they run out.

    block_table: int32 [S, B], entries behind a row's blocks are stale.
    temperature, top_p, min_p: float32 [S]; temperature 0 is greedy.  top_k: int64 [S], 0 is off.
    noise_key: int64 [S], of (seed, sample); with a position it keys the sampling noise.
    repetition, frequency, presence: float32 [S], the penalties.
    num_top: int64 [S], how many top logprobs are wanted, -1 for no logprobs at all.
    num_prompt_top: int64 [S], the same for the prompt's tokens, where they are wanted.
    wants_mass: bool [S].
    counts, biases: by slot, for the slots that have any.
    """

    def __init__(self, max_blocks: int, slots: int = 64) -> None:
        self.block_table: Int32 = np.zeros((slots, max_blocks), dtype=np.int32)
        self.temperature: Float32 = np.zeros(slots, dtype=np.float32)
        self.top_p: Float32 = np.ones(slots, dtype=np.float32)
        self.min_p: Float32 = np.zeros(slots, dtype=np.float32)
        self.top_k: Int64 = np.zeros(slots, dtype=np.int64)
        self.noise_key: Int64 = np.zeros(slots, dtype=np.int64)
        self.repetition: Float32 = np.ones(slots, dtype=np.float32)
        self.frequency: Float32 = np.zeros(slots, dtype=np.float32)
        self.presence: Float32 = np.zeros(slots, dtype=np.float32)
        self.num_top: Int64 = np.full(slots, -1, dtype=np.int64)
        self.num_prompt_top: Int64 = np.zeros(slots, dtype=np.int64)
        self.wants_mass: npt.NDArray[np.bool_] = np.zeros(slots, dtype=np.bool_)
        self.counts: dict[int, TokenCounts] = {}
        self.biases: dict[int, tuple[Int64, Float32]] = {}
        self._num_blocks: Int32 = np.zeros(slots, dtype=np.int32)
        self._slots: dict[str, int] = {}
        self._free = list(range(slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slots)

    def apply(self, plan: StepPlan) -> Int64:
        """Bring the slots up to date with a plan; returns int64 [R], the slot of each plan row."""
        for request_id in plan.removed:
            self._remove(request_id)
        for new in plan.added:
            self._add(new)
        slots = np.fromiter((self._slots[row.id] for row in plan.rows), np.int64, len(plan.rows))
        for slot, row in zip(slots, plan.rows, strict=True):
            if row.new_block_ids:
                before = self._num_blocks[slot]
                after = before + len(row.new_block_ids)
                self.block_table[slot, before:after] = row.new_block_ids
                self._num_blocks[slot] = after
            if slot in self.counts:
                self.counts[slot].extend(row.start, row.token_ids)
        return slots

    def _remove(self, request_id: str) -> None:
        slot = self._slots.pop(request_id)
        self.counts.pop(slot, None)
        self.biases.pop(slot, None)
        self._free.append(slot)

    def _add(self, row: NewRow) -> None:
        if not self._free:
            self._double()
        slot = self._free.pop()
        assert row.id not in self._slots, f"{row.id} has a slot already"
        self._slots[row.id] = slot
        self._num_blocks[slot] = 0
        self.noise_key[slot] = _noise_key(row.seed, row.sample)
        self._set_params(slot, row.params)
        if row.params.penalised:
            self.counts[slot] = TokenCounts(row.num_prompt)
            self.counts[slot].extend(0, row.history)
        if row.params.logit_bias:
            tokens, values = zip(*row.params.logit_bias, strict=True)
            self.biases[slot] = np.array(tokens, np.int64), np.array(values, np.float32)

    def _set_params(self, slot: int, params: SamplingParams) -> None:
        self.temperature[slot] = 0.0 if params.greedy else params.temperature
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.top_k[slot] = max(params.top_k, 0)
        self.repetition[slot] = params.repetition_penalty
        self.frequency[slot] = params.frequency_penalty
        self.presence[slot] = params.presence_penalty
        self.num_top[slot] = -1 if params.logprobs is None else params.logprobs
        self.num_prompt_top[slot] = params.prompt_logprobs or 0
        self.wants_mass[slot] = params.constraint_mass

    def _double(self) -> None:
        slots = len(self.temperature)
        self.block_table = _doubled(self.block_table)
        self.temperature = _doubled(self.temperature)
        self.top_p = _doubled(self.top_p)
        self.min_p = _doubled(self.min_p)
        self.top_k = _doubled(self.top_k)
        self.noise_key = _doubled(self.noise_key)
        self.repetition = _doubled(self.repetition)
        self.frequency = _doubled(self.frequency)
        self.presence = _doubled(self.presence)
        self.num_top = _doubled(self.num_top)
        self.num_prompt_top = _doubled(self.num_prompt_top)
        self.wants_mass = _doubled(self.wants_mass)
        self._num_blocks = _doubled(self._num_blocks)
        self._free = list(range(2 * slots - 1, slots - 1, -1))


def _doubled(array: npt.NDArray[T]) -> npt.NDArray[T]:
    return np.concatenate([array, np.zeros_like(array)])


def _noise_key(seed: int, sample: int) -> int:
    """Spread (seed, sample) over a signed 64-bit key."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (sample + 1) * 0xD1B54A32D192ED03) & _MASK64
    return mixed - (1 << 64) if mixed >> 63 else mixed
