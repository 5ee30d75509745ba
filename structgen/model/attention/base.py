"""What an attention backend is: causal attention over a paged KV cache, for a flat mixed batch.

A batch is R sequences with N new tokens in all, packed without padding.  Sequence r owns the new
tokens [cu_seqlens_q[r], cu_seqlens_q[r + 1]): one of them when it decodes, many when it prefills.
They are the last tokens of the seq_lens[r] that it has after this step:

    positions of sequence r    0 ............. seq_len - q_len ........ seq_len
                               |    cached     |       new tokens       |

Token position p of a sequence lives in block block_table[r, p // block_size], at offset
p % block_size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Where the tokens of one step are.  All tensors live on the backend's device.

    cu_seqlens_q: int32 [R + 1], from 0 to N.
    seq_lens: int32 [R], tokens of each sequence after this step, the new ones included.
    block_table: int32 [R, B]; entries behind a sequence's last block are never read.
    slot_mapping: int64 [N], block_id * block_size + offset of each new token, unique.
    max_q, max_k: the largest number of new tokens, and of all tokens, of any sequence.
    """

    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_q: int
    max_k: int


class AttentionBackend(ABC):
    """Writes new keys and values into the cache and attends over it.

    The layout of a layer's cache belongs to the backend alone: it says the shape, the KV cache
    allocates it.  Called by one thread at a time.
    """

    name: ClassVar[str]

    @abstractmethod
    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        """Return the shape of the tensor that holds one layer's keys and values."""

    @abstractmethod
    def prepare(self, kv_dtype: torch.dtype) -> None:
        """Get ready to keep keys and values as `kv_dtype`: compile, so that no request waits.

        Called by the KV cache, before the first forward.  Raises ConfigError: not such a dtype.
        """

    @abstractmethod
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_layer: torch.Tensor,
        meta: AttentionMetadata,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Store k, v [N, Hk, D] at their slots, then attend with q [N, H, D]; returns [N, H, D].

        Query head h reads KV head h // (H // Hk).  A query at position p sees the keys in
        (p - window, p], or [0, p] without a window.  With a softcap, the scaled scores become
        softcap * tanh(score / softcap) before the softmax.  q, k and v may have any strides and
        another dtype than the cache; what is attended to is the stored (rounded) value.  The result
        has q's dtype.  Slots not in meta.slot_mapping are left unchanged.
        """

    def calls(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        kv_layers: Sequence[torch.Tensor],
        meta: AttentionMetadata,
        *,
        scales: Sequence[float],
        windows: Sequence[int | None],
    ) -> npt.NDArray[np.void] | None:
        """Return a call (compiled/chain.py) for each layer that does what `forward` does, or None.

        Each reads q, k and v as they are when it is made, and writes to out [N, H, D]; all of
        float32, contiguous.  Calls are good until this or `forward` is called again.  None: the
        backend has no such code.
        """
        return None
