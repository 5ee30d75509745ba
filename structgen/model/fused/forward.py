"""The forward of a decoder in one call: programs (passes.py) and attentions, in turn.

    embed ─► program 0 ─► attend ─► program 1 ─► attend ─► ... ─► choose rows ─► program n ─► head

Python would take a millisecond between them, and may have to wait for the interpreter each time.
Behind the last attention only the rows whose logits are wanted go on.  The residual, which each
layer adds to, is float32.  Device thread only.
"""

from __future__ import annotations

import numpy as np
import torch

from structgen.model import context
from structgen.model.fused import operands, passes
from structgen.model.fused.decoder import Decoder
from structgen.model.fused.programs import Programs
from structgen.model.fused.scratch import Scratch
from structgen.model.fused.weights import BITS
from structgen.model.team import Team


class FusedForward:
    """Computes logits with packed weights, inside a forward context.

    dtype: of the packed weights.
    """

    def __init__(self, decoder: Decoder, dtype: torch.dtype, threads: int) -> None:
        """Compiles what it runs, if that is not on disk."""
        self.decoder = decoder
        self.dtype = dtype
        self._team = Team(threads)
        self._task = passes.compile_task(BITS[dtype])
        self._scales = [layer.scale for layer in decoder.layers]
        self._windows = [layer.window for layer in decoder.layers]
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
        scratch = self._scratch
        scratch.residual[:count] = self.decoder.embedding[input_ids]
        cosines, sines = self._rotary(positions)
        self._programs.set_step(cosines, sines)
        self._compute_layers(count)
        return self._logits(logits_index)

    def _compute_layers(self, num_rows: int) -> None:
        """Compute what the last layer attends to, and all before."""
        scratch, layers, forward = self._scratch, self.decoder.layers, context.current()
        each = (scratch.queries, scratch.keys, scratch.values, scratch.attended)
        q, k, v, out = (rows[:num_rows] for rows in each)
        programs = self._programs.calls[: len(layers)]
        attends = forward.calls(q, k, v, out, scales=self._scales, windows=self._windows)
        if attends is not None:
            self._team.run_all(np.stack([programs, attends], axis=1).ravel())
            return
        for index, layer in enumerate(layers):
            self._team.run_all(programs[index : index + 1])
            out[:] = forward.attend(index, q, k, v, scale=layer.scale, window=layer.window)

    def _logits(self, index: torch.Tensor) -> torch.Tensor:
        """Return the logits [L, V] behind some rows."""
        chosen = self._scratch.attended.index_select(0, index)
        self._scratch.residual[: len(index)] = self._scratch.residual.index_select(0, index)
        logits = self._scratch.logits(len(index))
        self._programs.set_end(chosen, logits)
        self._team.run_all(self._programs.calls[-2:])
        return logits[:, : self.decoder.vocab_size]

    def _rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of each token's angles, float32 [N, head_dim / 2]."""
        angles = positions.unsqueeze(1).float() * self.decoder.frequencies
        scale = self.decoder.rotary_scale
        return angles.cos().mul_(scale), angles.sin().mul_(scale)

    def _make_room(self, num_rows: int) -> None:
        """Replace scratch and programs by ones for so many rows."""
        size = operands.bytes_of_activation(self.dtype.itemsize)
        self._scratch = Scratch(self.decoder, size, num_rows)
        self._programs = Programs(self.decoder, self._scratch, self._team, self._task)
