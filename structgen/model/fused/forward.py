"""The forward of a decoder in few calls: one program (passes.py) between two attentions.

    embed ─► program 0 ─► attend ─► program 1 ─► attend ─► ... ─► choose rows ─► program n ─► head

Behind the last attention only the rows whose logits are wanted go on.  The residual, which each
layer adds to, is float32.  Device thread only.
"""

from __future__ import annotations

import torch

from structgen.model import context
from structgen.model.fused import operands, passes
from structgen.model.fused.decoder import Decoder
from structgen.model.fused.programs import Programs, block_rows, threads_for
from structgen.model.fused.scratch import Scratch
from structgen.model.fused.weights import BITS
from structgen.model.team import Team


class FusedForward:
    """Computes logits with packed weights, inside a forward context."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, threads: int) -> None:
        """dtype: of the packed weights.  Compiles what it runs, if that is not on disk."""
        self._decoder = decoder
        self._dtype = dtype
        self._team = Team(threads)
        self._task = passes.compile_task(BITS[dtype])
        self._make_room(64)

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, logits_index: torch.Tensor
    ) -> torch.Tensor:
        """Return float32 [L, V], the logits behind the chosen tokens; valid until the next call.

        input_ids, positions: int64 [N].  logits_index: int64 [L], into the N tokens.
        """
        count = len(input_ids)
        most = max(count, len(logits_index))
        if most > self._scratch.num_rows:
            self._make_room(max(most, 2 * self._scratch.num_rows))
        scratch, layers = self._scratch, self._decoder.layers
        scratch.residual[:count] = self._decoder.embedding[input_ids]
        cosines, sines = self._rotary(positions)
        self._programs.set_step(cosines, sines, block_rows(count, self._team.size))
        q, k, v = (each[:count] for each in (scratch.queries, scratch.keys, scratch.values))
        forward = context.current()
        for index, layer in enumerate(layers):
            self._run(index, count)
            out = forward.attend(index, q, k, v, scale=layer.scale, window=layer.window)
            out = out.contiguous()
            self._programs.set_input(index + 1, out)
        return self._logits(out, logits_index)

    def _logits(self, attended: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return the logits [L, V] of rows of what was attended to last, [N, heads, head_dim]."""
        count, last = len(index), len(self._decoder.layers)
        chosen = attended.index_select(0, index)
        self._scratch.residual[:count] = self._scratch.residual.index_select(0, index)
        logits = self._scratch.logits(count)
        self._programs.set_end(chosen, logits)
        self._run(last, count)
        self._run(last + 1, count)
        return logits[:, : self._decoder.vocab_size]

    def _run(self, index: int, num_rows: int) -> None:
        size = threads_for(num_rows * self._programs.costs[index], self._team.size)
        self._programs.begin(index, size)
        self._team.run(self._task, self._programs.addresses[index], size)

    def _rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of each token's angles, float32 [N, head_dim / 2]."""
        angles = positions.unsqueeze(1).float() * self._decoder.frequencies
        scale = self._decoder.rotary_scale
        return angles.cos().mul_(scale), angles.sin().mul_(scale)

    def _make_room(self, num_rows: int) -> None:
        """Replace scratch and programs by ones for so many rows."""
        size = operands.bytes_of_activation(self._dtype.itemsize)
        self._scratch = Scratch(self._decoder, size, num_rows)
        self._programs = Programs(self._decoder, self._scratch, self._team)
