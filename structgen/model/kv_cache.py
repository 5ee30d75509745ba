"""The tensors that hold keys and values: one per layer, allocated once, for the process's life.

Which block belongs to whom is the engine's business (engine/blocks.py); here a block is an index
into the tensors.  Written by attention backends only, on the device thread.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch

from structgen.model.attention.base import AttentionBackend


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
