"""The reference: gather, multiply, mask, softmax, multiply, one sequence after the other.

Clear over fast; every other backend is tested against it.  Always computes in float32.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from structgen.errors import ConfigError
from structgen.model.attention.base import AttentionBackend, AttentionMetadata


class TorchCpuAttention(AttentionBackend):
    """A layer's cache is [2, num_blocks, block_size, Hk, D]: keys, then values."""

    name: ClassVar[str] = "torch_cpu"

    def __init__(self, threads: int) -> None:
        """Threads are torch's own, whoever starts torch has set them."""

    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_dim)

    def prepare(self, kv_dtype: torch.dtype) -> None:
        if not kv_dtype.is_floating_point:
            raise ConfigError(f"kv_dtype must be a floating-point type, got {kv_dtype}")

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
        keys, values = kv_layer.flatten(1, 2)  # [num_blocks * block_size, Hk, D] each
        keys[meta.slot_mapping] = k.to(keys.dtype)
        values[meta.slot_mapping] = v.to(values.dtype)
        out = torch.empty(q.shape, dtype=q.dtype)
        starts = meta.cu_seqlens_q.tolist()
        for index, seq_len in enumerate(meta.seq_lens.tolist()):
            new = slice(starts[index], starts[index + 1])
            slots = _slots(meta.block_table[index], seq_len, block_size=kv_layer.shape[2])
            out[new] = _attend(
                q[new].float(), keys[slots].float(), values[slots].float(), scale, window, softcap
            ).to(q.dtype)
        return out


def _slots(block_ids: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """Return the slots of a sequence's tokens [0, length): int64 [length]."""
    positions = torch.arange(length)
    return block_ids.long()[positions // block_size] * block_size + positions % block_size


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend over one sequence.  q: [Nq, H, D], its last tokens.  k, v: [T, Hk, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))  # [T, H, D]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    visible = _visible(q.shape[0], k.shape[0], window)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def _visible(num_queries: int, num_keys: int, window: int | None) -> torch.Tensor:
    """Return which keys each of a sequence's last tokens sees: bool [num_queries, num_keys]."""
    query = torch.arange(num_keys - num_queries, num_keys).unsqueeze(1)
    key = torch.arange(num_keys).unsqueeze(0)
    visible = key <= query
    return visible if window is None else visible & (key > query - window)
