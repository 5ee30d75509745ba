"""The default on CPU: paged attention compiled by numba.

The keys and values of a (block, KV head) are contiguous, so that they are read once, in order, for
the whole group of query heads that shares them; keys lie transposed, as the kernel wants them:

    layer [num_blocks, Hk, 2, ...]    0: keys    1: values

with head_dim rounded up to whole vectors.  Work is cut into pieces: a run of one sequence's new
tokens times one KV head.  The threads take pieces, the costly ones first, until there are none.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from structgen import logs
from structgen.errors import ConfigError
from structgen.model.attention import numba_kernel as kernel
from structgen.model.attention.base import AttentionBackend, AttentionMetadata
from structgen.model.attention.numba_panels import KEY_TILE, MAX_HEAD_DIM
from structgen.model.attention.numba_vectors import Kind, kind_of
from structgen.model.team import Team

log = logs.get(__name__)

_NUMBERS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_INPUTS = (torch.float32, torch.bfloat16)  # what the kernel reads and writes

# Multiply-adds that one thread does alone, in some 20 us: a few times what waking the others takes.
_GRAIN = 1 << 18


class _Step(NamedTuple):
    """The work of one step, the same in every layer.

    pieces: int64 [num_pieces, 4], see _cut.  cost: keys that are looked at, of all new tokens.
    slots, table: of the metadata, contiguous.
    """

    meta: AttentionMetadata
    group: int
    pieces: npt.NDArray[np.int64]
    cost: int
    slots: torch.Tensor
    table: torch.Tensor


class NumbaCpuAttention(AttentionBackend):
    """Runs on the threads that torch's own operators run on."""

    name: ClassVar[str] = "numba_cpu"

    def __init__(self, threads: int, kind: Callable[[str], Kind] = kind_of) -> None:
        """threads: as many as torch has; OpenMP rebuilds its pool when the number changes.

        kind: how to compute with numbers of a dtype, if not as suits the CPU best.
        """
        self._team = Team(threads)
        self._kinds = {dtype: kind(number) for dtype, number in _NUMBERS.items()}
        self._tasks: dict[torch.dtype, int] = {}
        self._step: _Step | None = None
        self._frame = ctypes.create_string_buffer(_FRAME.size)
        self._frame_address = ctypes.addressof(self._frame)
        self._scratch = torch.zeros(0, dtype=torch.int8)

    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        if head_dim > MAX_HEAD_DIM:
            raise ConfigError(f"head_dim must be at most {MAX_HEAD_DIM}, got {head_dim}")
        if block_size > KEY_TILE:
            raise ConfigError(f"block_size must be at most {KEY_TILE}, got {block_size}")
        lanes = self._kinds[torch.float32].lanes
        padded_dim = -(-head_dim // lanes) * lanes
        return (num_blocks, num_kv_heads, 2, block_size, padded_dim)

    def prepare(self, kv_dtype: torch.dtype) -> None:
        if kv_dtype not in self._kinds:
            raise ConfigError(f"kv_dtype must be one of {', '.join(map(str, self._kinds))}")
        began = time.perf_counter()
        self._tasks[kv_dtype] = kernel.compile_task(self._kinds[kv_dtype])
        log.info("kernel ready", kv_dtype=kv_dtype, seconds=round(time.perf_counter() - began, 1))

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_layer: torch.Tensor,
        meta: AttentionMetadata,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        dtype = q.dtype
        if dtype not in _INPUTS or k.dtype != dtype or v.dtype != dtype:
            q, k, v = q.float(), k.float(), v.float()
        q, k, v = _whole_rows(q), _whole_rows(k), _whole_rows(v)
        out = torch.empty(q.shape, dtype=q.dtype)
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads, width = k.shape[1], q.element_size()
        step = self._cut(meta, num_heads // num_kv_heads)
        scratch, scratch_bytes = self._get_scratch(num_heads // num_kv_heads)
        # In the order of kernel.FRAME.
        _FRAME.pack_into(
            self._frame, 0,
            0, 0, 0, 0,
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), kv_layer.data_ptr(),
            step.slots.data_ptr(), step.table.data_ptr(), step.pieces.ctypes.data, scratch,
            *(stride * width for tensor in (q, k, v) for stride in tensor.stride()[:2]),
            num_tokens, *step.table.shape, len(step.pieces), num_heads, num_kv_heads, head_dim,
            kv_layer.shape[3], meta.max_k if window is None else window, scratch_bytes, width,
            scale, 0.0 if softcap is None else softcap,
        )  # fmt: skip
        is_small = step.cost * num_heads * head_dim < _GRAIN
        task, size = self._tasks[kv_layer.dtype], 1 if is_small else self._team.size
        self._team.run(task, self._frame_address, size)
        return out if out.dtype == dtype else out.to(dtype)

    def _cut(self, meta: AttentionMetadata, group: int) -> _Step:
        """Return the work of a step; the same object for each layer of one forward."""
        step = self._step
        if step is None or step.meta is not meta or step.group != group:
            pieces, cost = _cut(meta, max(1, kernel.ROW_TILE // group))
            slots, table = meta.slot_mapping.contiguous(), meta.block_table.contiguous()
            step = self._step = _Step(meta, group, pieces, cost, slots, table)
        return step

    def _get_scratch(self, group: int) -> tuple[int, int]:
        """Return the address of the threads' scratch, and the bytes of each thread's."""
        size_bytes = kernel.scratch_bytes(max(kernel.ROW_TILE, group))
        if self._scratch.numel() < size_bytes * self._team.size:
            self._scratch = torch.zeros(size_bytes * self._team.size, dtype=torch.int8)
        return self._scratch.data_ptr(), size_bytes


_FRAME = struct.Struct(f"{len(kernel.FRAME.fields or ()) - 2}q2d")


def _whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose numbers of one head are consecutive."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _cut(meta: AttentionMetadata, most: int) -> tuple[npt.NDArray[np.int64], int]:
    """Cut each sequence's new tokens into pieces of at most `most`; the costly ones first.

    Returns [num_pieces, 4]: sequence, first token, number of tokens, position of the first; and
    the cost of all.
    """
    starts = meta.cu_seqlens_q.numpy().astype(np.int64)
    lengths = np.diff(starts)
    counts = -(-lengths // most)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[sequence] + index * most
    ends = starts[sequence + 1]
    count = np.minimum(most, ends - first)
    position = meta.seq_lens.numpy()[sequence] - (ends - first)
    costs = count * (position + count)
    order = np.argsort(-costs, kind="stable")
    return np.stack([sequence, first, count, position], axis=1)[order], int(costs.sum())
