"""The order of operations, and nothing else.  What each does is in its own file.

    logits, float32 -> (raw logprobs, where asked for) -> combined mask -> bias -> penalties
        -> greedy rows: argmax
        -> other rows:  temperature, min-p, top-k, top-p, Gumbel-max

An option that no row of a step uses costs nothing; one that some use costs for those alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from structgen.model.rows import Int64, RequestRows
from structgen.model.sampling import topk
from structgen.model.sampling.best import best_allowed
from structgen.model.sampling.logits import add_bias, apply_bitmask, penalise
from structgen.model.sampling.logprobs import allowed_mass, raw_logprobs
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
    report = _Report.of(logits, rows, slots)
    if logits.device.type == "cpu" and _takes_the_best(rows, slots):
        best, tokens = best_allowed(logits, mask)
        finite = best.isfinite()
    else:
        apply_bitmask(logits, mask)
        if report is not None:
            report.note_masks(logits)
        _add_biases(logits, rows, slots)
        _penalise(logits, rows, slots)
        best, tokens = _best(logits)
        finite = best.isfinite()
        _draw(logits, tokens, finite, rows, slots, positions)
    outputs = [
        RowOutput([token]) if is_finite else RowOutput([], "the model's logits are not finite")
        for token, is_finite in zip(tokens.tolist(), finite.tolist(), strict=True)
    ]
    return outputs if report is None else report.attach(outputs, tokens)


def _takes_the_best(rows: RequestRows, slots: Int64) -> bool:
    """Whether nothing is asked of any row but its best token, so that no logits are changed."""
    changed = rows.biases.keys() | rows.counts.keys()
    return (
        not (rows.temperature[slots] > 0).any()
        and not rows.wants_mass[slots].any()
        and changed.isdisjoint(slots.tolist())
    )


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest logit and its token, [L] each; NaN where a row has any."""
    if logits.device.type != "cpu":
        best, tokens = logits.max(dim=-1)
        return best, tokens
    # numpy's argmax is vectorised where torch's, on a CPU, is not.
    tokens = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), tokens


def _add_biases(logits: torch.Tensor, rows: RequestRows, slots: Int64) -> None:
    if not rows.biases:
        return
    found = [(row, rows.biases[slot]) for row, slot in enumerate(slots) if slot in rows.biases]
    if found:
        tokens = np.concatenate([tokens for _, (tokens, _) in found])
        values = np.concatenate([values for _, (_, values) in found])
        index = np.repeat([row for row, _ in found], [len(tokens) for _, (tokens, _) in found])
        add_bias(logits, *(_tensor(array, logits.device) for array in (index, tokens, values)))


def _penalise(logits: torch.Tensor, rows: RequestRows, slots: Int64) -> None:
    if not rows.counts:
        return
    found = [(row, rows.counts[slot]) for row, slot in enumerate(slots) if slot in rows.counts]
    if found:
        lengths = [len(counts.tokens) for _, counts in found]
        index = np.repeat([row for row, _ in found], lengths)
        of_entry = slots[index]
        entries = (
            index,
            np.concatenate([counts.tokens for _, counts in found]),
            np.concatenate([counts.outputs for _, counts in found]),
            rows.repetition[of_entry],
            rows.frequency[of_entry],
            rows.presence[of_entry],
        )
        penalise(logits, *(_tensor(array, logits.device) for array in entries))


@dataclass(slots=True, eq=False)
class _Report:
    """The raw logits of the K rows that report log probabilities or mass.

    rows: int64 [K], their logits rows.  raw: float32 [K, V].
    """

    rows: torch.Tensor
    raw: torch.Tensor
    num_top: Int64
    wants_mass: npt.NDArray[np.bool_]
    masses: list[float | None]

    @classmethod
    def of(cls, logits: torch.Tensor, rows: RequestRows, slots: Int64) -> _Report | None:
        wanted = np.flatnonzero((rows.num_top[slots] >= 0) | rows.wants_mass[slots])
        if not len(wanted):
            return None
        index = _tensor(wanted, logits.device)
        chosen = slots[wanted]
        return cls(
            index,
            logits[index],  # indexing copies: what follows overwrites
            np.maximum(rows.num_top[chosen], 0),
            rows.wants_mass[chosen],
            [None] * len(wanted),
        )

    def note_masks(self, masked: torch.Tensor) -> None:
        if self.wants_mass.any():
            masses = allowed_mass(self.raw, masked[self.rows]).tolist()
            self.masses = [
                mass if wanted else None
                for mass, wanted in zip(masses, self.wants_mass, strict=True)
            ]

    def attach(self, outputs: list[RowOutput], tokens: torch.Tensor) -> list[RowOutput]:
        logprobs = raw_logprobs(self.raw, tokens[self.rows], self.num_top.tolist(), self.masses)
        for row, logprob in zip(self.rows.tolist(), logprobs, strict=True):
            if not outputs[row].error:
                outputs[row] = RowOutput(outputs[row].token_ids, logprobs=[logprob])
        return outputs


def _draw(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    finite: torch.Tensor,
    rows: RequestRows,
    slots: Int64,
    positions: Int64,
) -> None:
    """Put drawn tokens in place of the best ones, in the rows that are not greedy (and finite)."""
    random = np.flatnonzero((rows.temperature[slots] > 0) & finite.numpy(force=True))
    if not len(random):
        return
    chosen = slots[random]
    min_p, top_k, top_p = rows.min_p[chosen], rows.top_k[chosen], rows.top_p[chosen]
    device = logits.device
    filters = topk.Filters(
        temperature=_tensor(rows.temperature[chosen], device),
        min_p=_tensor(min_p, device) if (min_p > 0).any() else None,
        top_k=_tensor(top_k, device) if (top_k > 0).any() else None,
        top_p=_tensor(top_p, device) if (top_p < 1).any() else None,
    )
    keys = topk.row_keys(
        _tensor(rows.noise_key[chosen], device), _tensor(positions[random], device)
    )
    index = _tensor(random, device)
    # All of them, and in order: no need to copy.
    picked = logits if len(random) == len(slots) else logits[index]
    tokens[index] = topk.draw_filtered(picked, filters, keys)


def _tensor(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
