"""Log probabilities of the raw model: what it thought before any mask or option."""

from __future__ import annotations

import torch

from structgen.logprobs import TokenLogprobs
from structgen.model.sampling.topk import largest


def raw_logprobs(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    num_top: list[int],
    masses: list[float | None],
) -> list[TokenLogprobs]:
    """Return the logprob of tokens[i] and the num_top[i] best of each row.

    logits: float32 [K, V], raw.  tokens: int64 [K].  Equal logits rank by token id.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = (logits.gather(-1, tokens.unsqueeze(-1)) - total).squeeze(-1)
    top_values, top_tokens = _top(logits, max(num_top, default=0))
    top_values = top_values - total
    return [
        TokenLogprobs(token, logprob, list(zip(ids[:count], values[:count], strict=True)), mass)
        for token, logprob, ids, values, count, mass in zip(
            tokens.tolist(),
            chosen.tolist(),
            top_tokens.tolist(),
            top_values.tolist(),
            num_top,
            masses,
            strict=True,
        )
    ]


def allowed_mass(raw: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """Return float32 [K]: the probability that raw logits [K, V] give to what `masked` allows."""
    return (masked.logsumexp(dim=-1) - raw.logsumexp(dim=-1)).exp()


def _top(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest logits and their tokens, [K, count] each."""
    values, tokens = largest(logits, count)
    # It leaves the order of equal values open: a result must not depend on the device or batch.
    by_token = tokens.argsort(dim=-1)
    values, tokens = values.gather(-1, by_token), tokens.gather(-1, by_token)
    by_value = values.argsort(dim=-1, descending=True, stable=True)
    return values.gather(-1, by_value), tokens.gather(-1, by_value)
