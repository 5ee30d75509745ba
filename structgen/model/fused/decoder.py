"""A decoder as the passes compute it: packed weights, and what else there is to know."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from structgen.model.fused.weights import PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """weight: float32 [width]."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer.  query_norm, key_norm: of each head.  scale: of the scores."""

    input_norm: Norm
    qkv: PackedLinear
    query_norm: Norm | None
    key_norm: Norm | None
    output: PackedLinear
    mlp_norm: Norm
    gate_up: PackedLinear
    down: PackedLinear
    scale: float
    window: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """embedding: [vocabulary, hidden], of any dtype.  frequencies: float32 [head_dim / 2]."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: Norm
    head: PackedLinear
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    frequencies: torch.Tensor
    rotary_scale: float
