"""The best token of each row that a mask allows, found without writing the mask into the logits.

The best token of all is allowed nine times in ten, and then it is the one: most rows are read once,
and nothing is written.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from structgen.plan import TokenBitmask


def best_allowed(logits: torch.Tensor, mask: TokenBitmask) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest allowed logit and its token, [L] each; of equal ones the first.

    logits: float32 [L, V], on the CPU; left as they are.  Where the model's logits hold NaN or
    infinity, whether it is allowed or not, the largest is not finite.
    """
    values = logits.numpy()
    tokens = values.argmax(axis=-1)  # of a NaN, if there is any
    best = values[np.arange(len(values)), tokens]
    for index in _banned(tokens, mask):
        row = mask.logit_index[index]
        if best[row] < np.inf:
            best[row], tokens[row] = _best_of(values[row], mask.words[index])
    return torch.from_numpy(best), torch.from_numpy(tokens)


def _banned(tokens: npt.NDArray[np.int64], mask: TokenBitmask) -> npt.NDArray[np.int64]:
    """Return the mask rows that do not allow the token of their logits row.  tokens: [L]."""
    chosen = tokens[mask.logit_index]
    words = mask.words[np.arange(len(chosen)), chosen >> 5]
    return np.flatnonzero(words >> (chosen & 31) & 1 == 0)


def _best_of(values: npt.NDArray[np.float32], words: npt.NDArray[np.int32]) -> tuple[float, int]:
    """Return the largest value, of float32 [V], that a mask row allows, and its token."""
    bits = np.unpackbits(words.view(np.uint8), count=len(values), bitorder="little")
    allowed = np.flatnonzero(bits.view(np.bool_))
    if not len(allowed):
        return -np.inf, 0
    token = int(allowed[values[allowed].argmax()])
    return float(values[token]), token
