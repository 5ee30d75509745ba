"""From logits to a drawn token: temperature, min-p, top-k, top-p, and the Gumbel-max draw.

Pure functions on float32 [R, V].  Each filter is a threshold on the logit, so that tokens with
equal logits stay or go together and no result depends on how a sort breaks ties or on what else is
in the batch.  Where a row's filters leave only tokens of its head, its HEAD largest logits, nothing
but the head is looked at; which way a row goes depends on that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

# Tokens in a block: large operations look at one number a block first, and then into few blocks.
BLOCK = 64

# Most filters leave fewer tokens than this; a row in which they do not is looked at in full.
HEAD = 128

_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MULTIPLIER_2 = 0x94D049BB133111EB - (1 << 64)
_WEYL = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """What R rows draw with; [R] each, float32 but for top_k, int64.  None: off in all rows."""

    temperature: torch.Tensor
    min_p: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None

    def rows(self, index: torch.Tensor) -> Filters:
        """Return the filters of some rows; index: int64 or bool."""
        return Filters(
            self.temperature[index],
            None if self.min_p is None else self.min_p[index],
            None if self.top_k is None else self.top_k[index],
            None if self.top_p is None else self.top_p[index],
        )

    @property
    def any(self) -> bool:
        return self.min_p is not None or self.top_k is not None or self.top_p is not None


def draw_filtered(logits: torch.Tensor, filters: Filters, keys: torch.Tensor) -> torch.Tensor:
    """Apply temperature, min-p, top-k, top-p, in this order, and draw; returns int64 [R].

    logits: float32 [R, V], finite or -inf.  keys: int64 [R], see `draw`.
    """
    if not filters.any:
        return draw(logits / filters.temperature.unsqueeze(-1), keys)
    values, tokens = largest(logits, HEAD)  # [R, H]
    head = values / filters.temperature.unsqueeze(-1)
    threshold = _head_threshold(head, logits, filters)
    drawn = tokens.gather(-1, _draw_head(head, threshold, tokens, keys)).squeeze(-1)
    wide = (threshold <= head[:, -1:]).squeeze(-1).nonzero().flatten()  # not settled by the head
    if len(wide):
        drawn[wide] = _draw_wide(logits[wide], filters.rows(wide), keys[wide])
    return drawn


def _head_threshold(head: torch.Tensor, logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return [R, 1]: the scaled logit that tokens must reach, if above the head's smallest.

    head: float32 [R, H], the largest of the scaled logits, descending.
    """
    threshold = torch.full_like(head[:, :1], -torch.inf)
    unknown = torch.zeros_like(head[:, 0], dtype=torch.bool)  # the head does not tell
    if filters.min_p is not None:
        threshold = torch.maximum(threshold, min_p_threshold(head, filters.min_p))
    if filters.top_k is not None:
        unknown |= filters.top_k > head.shape[-1]
        threshold = torch.maximum(
            threshold, top_k_threshold(head, filters.top_k.masked_fill(unknown, 0))
        )
    if filters.top_p is not None:
        inside = head.masked_fill(head < threshold, -torch.inf)
        total = inside.logsumexp(dim=-1, keepdim=True)
        cut = filters.top_p < 1
        wide = ((threshold <= head[:, -1:]).squeeze(-1) & cut & ~unknown).nonzero().flatten()
        if len(wide):
            total[wide] = _total(logits[wide], filters.temperature[wide], threshold[wide])
        nucleus, reached = _nucleus(inside, total, filters.top_p)
        unknown |= cut & ~reached
        nucleus = nucleus.masked_fill((~cut).unsqueeze(-1), -torch.inf)
        threshold = torch.maximum(threshold, nucleus)
    return threshold.masked_fill(unknown.unsqueeze(-1), -torch.inf)


def _total(
    logits: torch.Tensor, temperature: torch.Tensor, threshold: torch.Tensor
) -> torch.Tensor:
    """Return [R, 1]: the log of the summed exponentials of the scaled logits that reach it."""
    scaled = logits / temperature.unsqueeze(-1)
    return scaled.masked_fill_(scaled < threshold, -torch.inf).logsumexp(dim=-1, keepdim=True)


def _draw_head(
    head: torch.Tensor, threshold: torch.Tensor, tokens: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Return int64 [R, 1], the place in the head of the token drawn there."""
    weights = (head - head[:, :1]).exp_().masked_fill_(head < threshold, 0.0)
    return _noisy_argmax(weights, keys, tokens).unsqueeze(-1)


def _draw_wide(logits: torch.Tensor, filters: Filters, keys: torch.Tensor) -> torch.Tensor:
    """Filter and draw over all of the vocabulary."""
    scaled = logits / filters.temperature.unsqueeze(-1)
    if filters.min_p is not None:
        _cut(scaled, min_p_threshold(scaled, filters.min_p))
    if filters.top_k is not None:
        _cut(scaled, top_k_threshold(scaled, filters.top_k))
    if filters.top_p is not None:
        _cut(scaled, top_p_threshold(scaled, filters.top_p))
    return draw(scaled, keys)


def _cut(logits: torch.Tensor, threshold: torch.Tensor) -> None:
    logits.masked_fill_(logits < threshold, -torch.inf)


def min_p_threshold(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Return [R, 1]: a token stays if its probability is at least min_p of the best one's.

    min_p: float32 [R]; 0 is off.
    """
    return logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)


def top_k_threshold(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Return [R, 1]: the top_k-th largest logit of each row, -inf where top_k is off.

    top_k: int64 [R]; 0 is off, more than V is V.
    """
    wanted = top_k.clamp(max=logits.shape[-1])
    best, _ = largest(logits, max(int(wanted.max()), 1))  # [R, max k]
    kth = best.gather(-1, (wanted - 1).clamp(min=0).unsqueeze(-1))
    return kth.masked_fill((top_k == 0).unsqueeze(-1), -torch.inf)


def top_p_threshold(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return [R, 1]: the smallest logit of the smallest set with probability at least top_p.

    top_p: float32 [R]; 1 is off.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    guess = min(HEAD, logits.shape[-1])
    threshold, reached = _nucleus(largest(logits, guess)[0], total, top_p)
    unreached = ((~reached) & (top_p < 1)).nonzero().flatten()
    if len(unreached):
        ordered = _descending(logits[unreached])
        threshold[unreached], _ = _nucleus(ordered, total[unreached], top_p[unreached])
    return threshold.masked_fill((top_p >= 1).unsqueeze(-1), -torch.inf)


def _descending(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type != "cpu":
        return logits.sort(dim=-1, descending=True).values
    # numpy's sort is vectorised where torch's, on a CPU, is not.
    return torch.from_numpy(np.sort(logits.numpy(), axis=-1)).flip(-1)


def _nucleus(
    ordered: torch.Tensor, total: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find where descending logits [R, K] have gathered top_p; returns ([R, 1], reached [R])."""
    mass = (ordered - total).exp().cumsum(dim=-1)
    before = (mass < top_p.unsqueeze(-1)).sum(dim=-1)  # how many fall short: the next one reaches
    index = before.clamp(max=ordered.shape[-1] - 1).unsqueeze(-1)
    return ordered.gather(-1, index), before < ordered.shape[-1]


def largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest logits of each row, descending, and their tokens; [R, count].

    They lie in the `count` blocks with the largest maxima, so only those are looked into.
    """
    if count * BLOCK * 2 > logits.shape[-1]:
        return logits.topk(min(count, logits.shape[-1]), dim=-1)
    blocks = _blocks(logits, fill=-torch.inf)
    chosen = blocks.amax(dim=-1).topk(count, dim=-1).indices  # [R, count]
    candidates = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)
    values, places = candidates.topk(count, dim=-1)
    tokens = chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    return values, tokens


def draw(logits: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw one token per row by Gumbel-max; returns int64 [R].

    logits: float32 [R, V], -inf for tokens that are out.  keys: int64 [R]; equal key and logits
    draw the same token, whatever the batch.  Source: Gumbel-max trick (Yellott 1977), in two
    levels: the block by its summed probability, then the token within it.  The largest noisy logit
    of a block is independent of which token has it (Maddison et al. 2014, A* sampling), so this is
    the same distribution for a 64th of the noise.
    """
    weights = _blocks((logits - logits.amax(dim=-1, keepdim=True)).exp_(), fill=0.0)
    block_ids = torch.arange(weights.shape[1], device=logits.device)
    block = _noisy_argmax(weights.sum(dim=-1), keys, block_ids.unsqueeze(0))  # [R]
    inside = weights[torch.arange(len(keys), device=logits.device), block]  # [R, BLOCK]
    tokens = block.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=logits.device)
    place = _noisy_argmax(inside, _mix(keys), tokens)
    return block * BLOCK + place


def _noisy_argmax(weights: torch.Tensor, keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return int64 [R], index i with probability weights[r, i] / sum; noise by (keys[r], ids)."""
    return (weights.double().log() + gumbel(keys.unsqueeze(-1), ids)).argmax(dim=-1)


def _blocks(values: torch.Tensor, fill: float) -> torch.Tensor:
    """View [R, V] as [R, B, BLOCK], filling the last block up."""
    missing = -values.shape[-1] % BLOCK
    if missing:
        values = torch.nn.functional.pad(values, (0, missing), value=fill)
    return values.unflatten(-1, (-1, BLOCK))


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise, float64, a pure function of (key, id), both int64.

    Counter-based: SplitMix64's finaliser (Steele, Lea, Flood 2014) over key + id * Weyl.  Its upper
    32 bits make the uniform, so the noise lies in [-3.2, 22.9].
    """
    bits = _mix(_mix(keys) + ids * _WEYL)
    uniform = (_shift(bits, 32).double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def row_keys(noise_key: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Combine a request's key with the position that is sampled; int64 [R] each."""
    return _mix(noise_key + position * _MULTIPLIER_2)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift(x, 27)) * _MULTIPLIER_2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right, filling with zeros: torch's int64 shift would copy the sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)
