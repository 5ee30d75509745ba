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
    apply_bitmask(logits, mask)
    if report is not None:
        report.note_masks(logits)
    _add_biases(logits, rows, slots)
    _penalise(logits, rows, slots)
    best, tokens = _best(logits)
    options = _Options.of(rows, slots, positions, logits.device)
    if options is not None:
        tokens[options.rows] = _draw(logits[options.rows], options)
    outputs = [
        RowOutput([token]) if finite else RowOutput([], "the model's logits are not finite")
        for token, finite in zip(tokens.tolist(), best.isfinite().tolist(), strict=True)
    ]
    return outputs if report is None else report.attach(outputs, tokens)


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
        min_p, top_k, top_p = rows.min_p[chosen], rows.top_k[chosen], rows.top_p[chosen]
        return cls(
            rows=_tensor(random, device),
            temperature=_tensor(rows.temperature[chosen], device),
            keys=topk.row_keys(
                _tensor(rows.noise_key[chosen], device), _tensor(positions[random], device)
            ),
            min_p=_tensor(min_p, device) if (min_p > 0).any() else None,
            top_k=_tensor(top_k, device) if (top_k > 0).any() else None,
            top_p=_tensor(top_p, device) if (top_p < 1).any() else None,
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


def _tensor(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
