"""The memory that the passes of a step read and write, the same for every layer."""

from __future__ import annotations

import torch

from structgen.model.fused import passes
from structgen.model.fused.decoder import Decoder

# Logits of more rows are allocated when they are wanted, and given back.
_KEPT_LOGITS = 256


class Activations:
    """Room for rows that are to be multiplied.

    elements: bytes of [rows, row_width] of them; scales, starts: of their groups.
    """

    __slots__ = ("elements", "num_rows", "row_bytes", "row_width", "scales", "starts")

    def __init__(self, num_rows: int, row_width: int, element_size: int) -> None:
        self.num_rows, self.row_width = num_rows, row_width
        self.row_bytes = row_width * element_size
        self.elements = torch.empty(num_rows * row_width * element_size, dtype=torch.uint8)
        groups = num_rows * (row_width // passes.GROUP)
        self.scales, self.starts = torch.empty(groups), torch.empty(groups, dtype=torch.int32)


class Scratch:
    """Room for steps of up to `num_rows` tokens; a step's rows are the first ones.

    residual, normalised: float32 [rows, hidden].  qkv: float32 [rows, columns of queries, keys and
    values].  queries, keys, values, attended: float32 [rows, heads, head_dim].  gate_up: float32
    [rows, twice the width of the mlp].  activations: of the widest rows.
    """

    def __init__(self, decoder: Decoder, activation_size: int, num_rows: int) -> None:
        """activation_size: bytes of an element."""
        layer = decoder.layers[0]
        hidden = layer.qkv.width
        row_width = max(hidden, layer.output.width, layer.down.width)
        kv_shape = (num_rows, decoder.num_kv_heads, decoder.head_dim)
        self.num_rows = num_rows
        self.residual = torch.empty(num_rows, hidden)
        self.normalised = torch.empty(num_rows, hidden)
        self.qkv = torch.empty(num_rows, layer.qkv.num_columns)
        self.queries = torch.empty(num_rows, decoder.num_heads, decoder.head_dim)
        self.attended = torch.empty_like(self.queries)
        self.keys, self.values = torch.empty(kv_shape), torch.empty(kv_shape)
        self.gate_up = torch.empty(num_rows, layer.gate_up.num_columns)
        self.activations = Activations(num_rows, row_width, activation_size)
        # A page of it takes memory once it is written to.
        self._logits = torch.empty(_KEPT_LOGITS, decoder.head.num_columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all but the logits."""
        rows = [self.residual, self.normalised, self.qkv, self.gate_up]
        rows += [self.queries, self.keys, self.values, self.attended]
        return sum(tensor[0].nbytes for tensor in rows) + self.activations.row_bytes

    def logits(self, num_rows: int) -> torch.Tensor:
        """Return room for float32 [num_rows, columns of the head], the same each time.

        To have new pages at every step took as long as half of the head's products.
        """
        if num_rows > _KEPT_LOGITS:
            return torch.empty(num_rows, self._logits.shape[1])
        return self._logits[:num_rows]
