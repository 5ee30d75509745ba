"""The tensors that hold keys and values: one per layer, allocated once, for the process's life.

Which block belongs to whom is the engine's business (engine/blocks.py); here a block is an index
into the tensors.  Written by attention backends only, on the device thread.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch

from structgen.model.attention.base import AttentionBackend

# Memory that is made ready before it is needed: blocks are used from the first one on.
_READY_BYTES = 192 << 20
_READY_AFTER_S = 1.0
_POPULATE_WRITE = 23  # of madvise, in Linux since 5.14


class LayerShape(NamedTuple):
    """Keys and values of one token in one layer."""

    num_kv_heads: int
    head_dim: int


class KVCache:
    """`layers[i]` is the cache of the model's layer i, in the backend's layout, zero at first."""

    __slots__ = ("block_size", "layers", "num_blocks", "shapes")

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        backend: AttentionBackend,
    ) -> None:
        """Allocate, and prepare the backend.  Raises ConfigError: it cannot store `dtype`."""
        backend.prepare(dtype)
        self.shapes = tuple(shapes)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = tuple(
            _zeros(backend.kv_shape(num_blocks, block_size, *shape), dtype, device)
            for shape in self.shapes
        )

    @property
    def size_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def make_ready_soon(self) -> None:
        """Have the system give pages to the first blocks, a little later and beside everything.

        It may take 5 ms for two megabytes, which neither the start nor a step should wait for.
        """
        if sys.platform == "linux" and all(layer.device.type == "cpu" for layer in self.layers):
            timer = threading.Timer(_READY_AFTER_S, _populate, [self.layers])
            timer.daemon = True
            timer.start()


def _populate(layers: Sequence[torch.Tensor]) -> None:
    madvise = ctypes.CDLL(None).madvise  # Python's own would keep the interpreter
    for layer in layers:
        size_bytes = min(_READY_BYTES // len(layers), layer.nbytes)
        address = ctypes.c_void_p(layer.data_ptr())
        madvise(address, ctypes.c_size_t(size_bytes), _POPULATE_WRITE)  # or else as it is written


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Return the bytes that one token's keys and values take in all layers."""
    return sum(2 * shape.num_kv_heads * shape.head_dim for shape in shapes) * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros would write to every page; anonymous memory is zero and takes no page before use.
    size_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Blocks lie anywhere, and to find the page of each takes longer than to read it.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
