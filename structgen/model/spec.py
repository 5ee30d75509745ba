"""The measures of a model, whatever computes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One attention layer.  window: a token sees itself and the window - 1 before it."""

    num_kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """vocab_size: rows of the logits, at least the tokenizer's.  context_length: positions."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    num_parameters: int
    dtype: torch.dtype
