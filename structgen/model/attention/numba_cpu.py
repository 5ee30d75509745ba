"""The default on CPU: paged attention compiled by numba.

The keys and values of a (block, KV head) are contiguous, so that they are read once, in order, for
the whole group of query heads that shares them; keys lie transposed, as the kernel wants them:

    layer [num_blocks, Hk, 2, ...]    0: keys [D, block_size]    1: values [block_size, D]

with D = head_dim rounded up to whole vectors.  Work is cut into pieces: a run of one sequence's new
tokens times one KV head.  The threads take pieces, the costly ones first, until there are none.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from structgen import logs
from structgen.errors import ConfigError
from structgen.model.attention import numba_kernel as kernel
from structgen.model.attention.base import AttentionBackend, AttentionMetadata

log = logs.get(__name__)

_BITS = {
    torch.float32: kernel.BITS_FLOAT32,
    torch.bfloat16: kernel.BITS_BFLOAT16,
    torch.float16: kernel.BITS_FLOAT16,
}


# Multiply-adds that one thread does alone, in some 20 us: a few times what waking the others takes.
_GRAIN = 1 << 18


class _Pieces(NamedTuple):
    """The work of one step, the same in every layer.

    rows: int64 [num_pieces, 4], see _cut.  cost: keys that are looked at, of all new tokens.
    """

    meta: AttentionMetadata
    group: int
    rows: npt.NDArray[np.int64]
    cost: int


class NumbaCpuAttention(AttentionBackend):
    """Runs on the threads that torch's own operators run on."""

    name: ClassVar[str] = "numba_cpu"

    def __init__(self, threads: int) -> None:
        """threads: as many as torch has; OpenMP rebuilds its pool when the number changes."""
        self._threads = threads
        self._run_parallel = _openmp() if threads > 1 else None
        self._pieces: _Pieces | None = None

    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        if head_dim > kernel.MAX_HEAD_DIM:
            raise ConfigError(f"head_dim must be at most {kernel.MAX_HEAD_DIM}, got {head_dim}")
        if block_size > kernel.KEY_TILE:
            raise ConfigError(f"block_size must be at most {kernel.KEY_TILE}, got {block_size}")
        padded_dim = -(-head_dim // kernel.LANES) * kernel.LANES
        return (num_blocks, num_kv_heads, 2, block_size, padded_dim)

    def prepare(self, kv_dtype: torch.dtype) -> None:
        if kv_dtype not in _BITS:
            raise ConfigError(f"kv_dtype must be one of {', '.join(map(str, _BITS))}")
        began = time.perf_counter()
        kernel.compile_task(_BITS[kv_dtype])
        nothing = np.empty((0, 1, 1), _BITS[kv_dtype])
        kernel.store(nothing, nothing, np.empty(0, np.int64), nothing.reshape(0), block_size=1)
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
        cache, block_size = _raw(kv_layer.view(-1)), kv_layer.shape[3]
        keys, values = (_raw(tensor.to(kv_layer.dtype).contiguous()) for tensor in (k, v))
        kernel.store(keys, values, meta.slot_mapping.numpy(), cache, block_size)

        queries = q.float().contiguous()
        out = torch.empty_like(queries)
        table = meta.block_table.contiguous()
        pieces = self._cut(meta, group=q.shape[1] // k.shape[1])
        frame = np.zeros((), kernel.FRAME)
        frame["q"], frame["out"] = queries.data_ptr(), out.data_ptr()
        frame["cache"], frame["table"] = kv_layer.data_ptr(), table.data_ptr()
        frame["pieces"] = pieces.rows.ctypes.data
        frame["num_tokens"], frame["num_heads"], frame["head_dim"] = q.shape
        frame["num_sequences"], frame["table_width"] = table.shape
        frame["cache_size"], frame["num_pieces"] = cache.size, len(pieces.rows)
        frame["num_kv_heads"], frame["block_size"] = k.shape[1], block_size
        frame["window"] = meta.max_k if window is None else window
        frame["scale"], frame["softcap"] = scale, 0.0 if softcap is None else softcap
        task = kernel.compile_task(_BITS[kv_layer.dtype])
        self._run(task, frame.ctypes.data, pieces.cost * q.shape[1] * q.shape[2])
        return out.to(q.dtype)

    def _cut(self, meta: AttentionMetadata, group: int) -> _Pieces:
        """Return the pieces of a step; the same object for each layer of one forward."""
        pieces = self._pieces
        if pieces is None or pieces.meta is not meta or pieces.group != group:
            rows, cost = _cut(meta, max(1, kernel.ROW_TILE // group))
            pieces = self._pieces = _Pieces(meta, group, rows, cost)
        return pieces

    def _run(self, task: int, frame: int, cost: int) -> None:
        if self._run_parallel is None or cost < _GRAIN:
            _TASK(task)(frame)
        else:
            self._run_parallel(task, frame, self._threads, 0)


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _openmp() -> Callable[[int, int, int, int], None] | None:
    """Return GNU OpenMP's "run this function on a team of threads", or None without that library.

    It is the library that torch computes with, loaded by torch.  A pool of our own (numba has
    three kinds) would fight with torch's for the cores: the threads of either go on spinning for
    a while when their work is done, just when the other's have something to do.
    """
    try:
        run = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        log.warning("no GNU OpenMP in this process, attention runs on one thread")
        return None
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    run.restype = None
    return cast("Callable[[int, int, int, int], None]", run)


def _raw(tensor: torch.Tensor) -> kernel.Bits:
    """Return a view of the tensor's bits, of the type that tells the kernel what they are."""
    if tensor.dtype == torch.float32:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(_BITS[tensor.dtype])


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
