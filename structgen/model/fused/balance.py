"""Which channels are large, so that rounding to 8 bits costs activations and weights alike.

A few channels of what a norm returns are many times as large as the others, in any text, and leave
those of their group few of the 127 steps.  So the norm divides every channel by a factor, and the
weights behind it are multiplied by that:

    x W = (x / f) (f W),    f = (mean |x| / norm of the weights) ** 1/4, by channel

After SmoothQuant (Xiao et al., 2022), which takes the largest of each and the root.  Means of 16
tokens do.  What rounding adds to the results of SmolLM2-135M, in 1e-5 of their power, with groups
of 64 activations: 5.9 instead of 17.6 (queries, keys, values), and 9.1 instead of 15.0 (the mlp).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

# float32 [width] of each norm: the mean size of each channel of what it returned.
Sizes = Mapping[torch.nn.Module, torch.Tensor]

_MOST = 16.0  # a factor, from the geometric mean of all; its inverse is the least


@contextmanager
def sizes_of(model: torch.nn.Module) -> Iterator[Sizes]:
    """Note how large what comes out of the norms of a known model is (take_apart.py).

    The model must be run once within the block.
    """
    sizes: dict[torch.nn.Module, torch.Tensor] = {}
    hooks = [norm.register_forward_hook(partial(_note, sizes)) for norm in _norms(model)]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def factors(size: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return float32 [K]: what a norm whose channels have these sizes, [K], is to divide them by.

    weight: [N, K], of what multiplies them.
    """
    norms: torch.Tensor = torch.linalg.vector_norm(weight, dim=0, dtype=torch.float32)
    logs = (size / norms).log()
    is_known = logs.isfinite()  # not of a channel that nothing has, or no weight wants
    if not is_known.any():
        return torch.ones_like(size)
    logs = torch.where(is_known, (logs - logs[is_known].mean()) / 4, 0.0)
    return logs.exp().clamp(1 / _MOST, _MOST)


def _norms(model: Any) -> Iterator[torch.nn.Module]:
    """Yield those whose results are multiplied by weights."""
    for layer in model.model.layers:
        yield layer.input_layernorm
        yield layer.post_attention_layernorm
    yield model.model.norm


def _note(
    sizes: dict[torch.nn.Module, torch.Tensor],
    norm: torch.nn.Module,
    _arguments: object,
    out: torch.Tensor,
) -> None:
    sizes[norm] = out.detach().float().abs().flatten(0, -2).mean(dim=0)
