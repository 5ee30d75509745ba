"""Pack a plan into the flat tensors of one forward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from structgen.model.attention import AttentionMetadata
from structgen.model.rows import Int64, RequestRows
from structgen.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class ModelInput:
    """N tokens of R rows, packed without padding.

    Logits are wanted at L of them to sample, then at P of them for prompt logprobs.
    input_ids, positions: int64 [N].  logits_index: int64 [L + P] into the N tokens.
    sampled_slots, sampled_positions: int64 [L] on the host, the row slot and the position of the
    token that is sampled.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    logits_index: torch.Tensor
    sampled_slots: Int64
    sampled_positions: Int64
    meta: AttentionMetadata


def pack(
    plan: StepPlan, slots: Int64, rows: RequestRows, block_size: int, device: torch.device
) -> ModelInput:
    """Pack a plan whose rows are in `slots`, int64 [R].  Leaves `rows` as they are."""
    lengths = np.fromiter((len(row.token_ids) for row in plan.rows), np.int64, len(plan.rows))
    starts = np.fromiter((row.start for row in plan.rows), np.int64, len(plan.rows))
    ends = starts + lengths
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    total = int(cu_seqlens[-1])
    input_ids = np.fromiter(chain.from_iterable(r.token_ids for r in plan.rows), np.int64, total)
    positions = np.arange(total) + np.repeat(starts - cu_seqlens[:-1], lengths)  # [N]

    max_k = int(ends.max())
    table = rows.block_table[slots, : -(-max_k // block_size)]  # [R, B]
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)  # [N]
    blocks = table[row_of_token, positions // block_size].astype(np.int64)
    slot_mapping = blocks * block_size + positions % block_size

    counts = np.fromiter((row.num_logits for row in plan.rows), np.int64, len(plan.rows))
    sampled = np.repeat(np.arange(len(counts)), counts)  # [L]
    behind = np.cumsum(counts)[sampled] - np.arange(len(sampled))  # [L], places from a row's end
    return ModelInput(
        input_ids=_tensor(input_ids, device),
        positions=_tensor(positions, device),
        logits_index=_tensor(
            np.concatenate([cu_seqlens[1:][sampled] - behind, *_targets(plan, cu_seqlens)]), device
        ),
        sampled_slots=slots[sampled],
        sampled_positions=ends[sampled] - behind + 1,
        meta=AttentionMetadata(
            cu_seqlens_q=_tensor(cu_seqlens.astype(np.int32), device),
            seq_lens=_tensor(ends.astype(np.int32), device),
            block_table=_tensor(table, device),
            slot_mapping=_tensor(slot_mapping, device),
            max_q=int(lengths.max()),
            max_k=max_k,
        ),
    )


def _targets(plan: StepPlan, cu_seqlens: Int64) -> list[Int64]:
    """Return where, in the N tokens, the logits of each row's prompt targets are."""
    return [
        np.arange(first, first + len(row.targets))
        for row, first in zip(plan.rows, cu_seqlens[:-1].tolist(), strict=True)
        if row.targets
    ]


def _tensor(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device
) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
