"""The order of operations, and nothing else.  What each does is in logits.py and topk.py.

logits, float32 -> combined mask -> greedy rows: argmax
                                 -> other rows: temperature, min-p, top-k, top-p, Gumbel-max
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from structgen.model.rows import Int64, RequestRows
from structgen.model.sampling import topk
from structgen.model.sampling.logits import apply_bitmask
from structgen.plan import RowOutput, TokenBitmask


def sample(
    logits: torch.Tensor,
    mask: TokenBitmask,
    rows: RequestRows,
    slots: Int64,
    positions: Int64,
) -> list[RowOutput]:
    """Sample one token per logits row.

    logits: float32 [L, V], overwritten.  slots, positions: int64 [L], each row's slot in `rows` and
    the position of the token to sample.  A row with NaN or infinite logits yields an error.
    """
    apply_bitmask(logits, mask)
    best, tokens = logits.max(dim=-1)  # [L] each; a NaN anywhere in a row is its maximum
    options = _Options.of(rows, slots, positions, logits.device)
    if options is not None:
        tokens[options.rows] = _draw(logits[options.rows], options)
    return [
        RowOutput([token]) if finite else RowOutput([], "the model's logits are not finite")
        for token, finite in zip(tokens.tolist(), best.isfinite().tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """The options of the rows that are not greedy, on the device; [R] each.

    rows: int64, their logits rows.  An option that no row uses is None and costs nothing.
    """

    rows: torch.Tensor
    temperature: torch.Tensor
    keys: torch.Tensor
    min_p: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None

    @classmethod
    def of(
        cls, rows: RequestRows, slots: Int64, positions: Int64, device: torch.device
    ) -> _Options | None:
        random = np.flatnonzero(rows.temperature[slots] > 0)
        if not len(random):
            return None
        chosen = slots[random]

        def to_device(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        min_p, top_k, top_p = rows.min_p[chosen], rows.top_k[chosen], rows.top_p[chosen]
        return cls(
            rows=to_device(random),
            temperature=to_device(rows.temperature[chosen]),
            keys=topk.row_keys(to_device(rows.noise_key[chosen]), to_device(positions[random])),
            min_p=to_device(min_p) if (min_p > 0).any() else None,
            top_k=to_device(top_k) if (top_k > 0).any() else None,
            top_p=to_device(top_p) if (top_p < 1).any() else None,
        )


def _draw(logits: torch.Tensor, options: _Options) -> torch.Tensor:
    """Draw from float32 [R, V] under the options; returns int64 [R]."""
    # Not finite: already an error, but it must not take part in sorting and indexing below.
    logits = logits.nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf)
    logits /= options.temperature.unsqueeze(-1)
    if options.min_p is not None:
        _cut(logits, topk.min_p_threshold(logits, options.min_p))
    if options.top_k is not None:
        _cut(logits, topk.top_k_threshold(logits, options.top_k))
    if options.top_p is not None:
        _cut(logits, topk.top_p_threshold(logits, options.top_p))
    return topk.draw(logits, options.keys)


def _cut(logits: torch.Tensor, threshold: torch.Tensor) -> None:
    logits.masked_fill_(logits < threshold, -torch.inf)
