"""Weights as the passes want them: whole numbers or not, in panels of columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from structgen.model.fused import passes
from structgen.model.fused.operands import LANES

BITS = {
    torch.int8: passes.BITS_INT8,
    torch.bfloat16: passes.BITS_BFLOAT16,
    torch.float32: passes.BITS_FLOAT32,
}

_ROWS = 1024  # rounded at a time: of all of a head's, copies in float32 take hundreds of megabytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear layer of `width` inputs and `num_columns` outputs, padded to whole panels.

    weights: int32 [panels, words, PANEL], raw bits.  scales, biases: float32 [num_columns].
    """

    width: int
    num_columns: int
    weights: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    factors: torch.Tensor | None = None,
) -> PackedLinear:
    """Pack the weight [N, K] and bias [N] of a linear layer; K is a multiple of GROUP.

    dtype: int8 rounds each row to 255 steps, from its largest element to the opposite.
    factors: float32 [K], what columns are multiplied by first, of int8.
    """
    num_outputs, width = weight.shape
    num_columns = -(-num_outputs // passes.PANEL) * passes.PANEL
    scales, biases = torch.ones(num_columns), torch.zeros(num_columns)
    if bias is not None:
        biases[:num_outputs] = bias
    if dtype == torch.int8:
        elements, scales[:num_outputs] = _quantised(weight, factors)
    else:
        elements = weight.to(dtype)
    words = torch.zeros(num_columns, width * elements.itemsize // 4, dtype=torch.int32)
    words[:num_outputs] = elements.view(torch.int32)
    panels = words.view(-1, passes.PANEL, words.shape[1]).transpose(1, 2).contiguous()
    return PackedLinear(width, num_columns, panels, scales, biases)


def _quantised(
    weight: torch.Tensor, factors: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 [N, K], the whole numbers plus 128, and float32 [N], what they stand for."""
    rounded, scales = torch.empty(weight.shape, dtype=torch.uint8), torch.empty(len(weight))
    parts = zip(*(whole.split(_ROWS) for whole in (weight, rounded, scales)), strict=True)
    for rows, whole, scale in parts:
        exact = rows.float() if factors is None else rows * factors
        torch.amax(exact.abs(), dim=1, out=scale)
        scale.clamp_min_(torch.finfo(torch.float32).tiny).div_(127)
        whole.copy_((exact / scale.unsqueeze(1)).round_().add_(128))
    return rounded, scales


def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return the rows of both [N, ...] in turn, as many of each as a vector has lanes."""
    parts = [tensor.view(-1, LANES, *tensor.shape[1:]) for tensor in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)
