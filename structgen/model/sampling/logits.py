"""Pure functions on logits, float32 [L, V].  They work in place where they say so."""

from __future__ import annotations

import numpy as np
import torch

from structgen.plan import TokenBitmask


def apply_bitmask(logits: torch.Tensor, mask: TokenBitmask) -> None:
    """Set the logits of tokens that the mask does not allow to -inf, in place.

    logits: float32 [L, V].  Rows that the mask does not name are left alone.
    """
    if not len(mask.logit_index):
        return
    banned = _banned(mask, logits.shape[1], logits.device)  # [M, V]
    if len(mask.logit_index) == logits.shape[0]:  # then in order: plan order is row order
        logits.masked_fill_(banned, -torch.inf)
    else:
        index = torch.from_numpy(mask.logit_index).to(logits.device)
        logits[index] = logits[index].masked_fill(banned, -torch.inf)


def _banned(mask: TokenBitmask, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Unpack the mask into bool [M, V], true = not allowed."""
    words = mask.words
    if device.type == "cpu":
        unpacked = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool).logical_not_()
    packed = torch.from_numpy(words).to(device, non_blocking=True)
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    bits = (packed.unsqueeze(-1) >> shifts) & 1  # [M, W, 32]
    return bits.flatten(1)[:, :vocab_size] == 0


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
