"""Pure functions on logits, float32 [L, V].  They work in place where they say so."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from structgen.plan import TokenBitmask


def apply_bitmask(logits: torch.Tensor, mask: TokenBitmask) -> None:
    """Set the logits of tokens that the mask does not allow to -inf, in place.

    logits: float32 [L, V].  Rows that the mask does not name are left alone.  An infinite or NaN
    logit becomes NaN where it is banned.
    """
    if not len(mask.logit_index):
        return
    addend = _addend(mask, logits.device)[:, : logits.shape[1]]  # [M, V]
    if len(mask.logit_index) == logits.shape[0]:  # then in order: plan order is row order
        logits.add_(addend)
    else:
        index = torch.from_numpy(mask.logit_index).to(logits.device)
        logits.index_add_(0, index, addend)


def _addend(mask: TokenBitmask, device: torch.device) -> torch.Tensor:
    """Return float32 [M, 32 * W]: 0 for tokens that are allowed, -inf for the others.

    Looked up a byte of the mask at a time: eight times as quick as filling where a bool is set.
    """
    packed = torch.from_numpy(mask.words.view(np.uint8)).to(device, non_blocking=True)
    return torch.nn.functional.embedding(packed.int(), _byte_addends(device)).flatten(1)


@cache
def _byte_addends(device: torch.device) -> torch.Tensor:
    """Return float32 [256, 8]: what the 8 tokens of a mask byte get."""
    values = torch.arange(256, device=device).unsqueeze(-1)
    bits = (values >> torch.arange(8, device=device)) & 1
    return torch.zeros(256, 8, device=device).masked_fill_(bits == 0, -torch.inf)


def add_bias(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor
) -> None:
    """Add values[e] to logits[rows[e], tokens[e]], in place; [E] each.  -inf stays -inf."""
    logits.index_put_((rows, tokens), values, accumulate=True)


def penalise(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    outputs: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Penalise the tokens that sequences have already, in place.

    Entry e, of E, says that row rows[e] has tokens[e], answered outputs[e] times (0: only in the
    prompt); no (row, token) comes twice.  repetition divides a positive logit and multiplies a
    negative one, for tokens of prompt and answer (Keskar et al. 2019, CTRL); frequency is
    subtracted once for each time a token was answered, presence once if it was; float32 [E] each.
    """
    values = logits[rows, tokens]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * outputs + presence * (outputs > 0)
    logits[rows, tokens] = values
