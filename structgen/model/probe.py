"""Have packed weights only where they compute what the model does, as a few tokens show.

The same tokens show which channels are large.

The classes that are packed are known to the letter, but a later transformers may change the text.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from structgen import logs
from structgen.model.attention import get_backend
from structgen.model.attention.base import AttentionMetadata
from structgen.model.context import forward_context
from structgen.model.forward import EagerForward, Forward, can_take_apart, pack_forward
from structgen.model.fused.balance import Sizes, sizes_of
from structgen.model.kv_cache import KVCache, LayerShape
from structgen.model.spec import ModelSpec

log = logs.get(__name__)

_NUM_TOKENS = 16
# Cosine of the logits: what rounding leaves of it, and most mistakes do not.  Of random weights in
# many layers, int8 left 0.99.
_LEAST = {torch.float32: 0.9999, torch.bfloat16: 0.995, torch.int8: 0.97}


def checked_forward(
    model: torch.nn.Module, spec: ModelSpec, packed: torch.dtype, threads: int
) -> Forward | None:
    """Return a forward with packed weights, or None if it computes something else.

    The weights are gone from the model in either case.  packed: see forward.packed_dtype.
    """
    watch: AbstractContextManager[Sizes] = nullcontext({})
    if can_take_apart(model):
        watch = sizes_of(model)
    with watch as sizes:
        expected = probe_logits(EagerForward(model), spec)
    windows = [layer.window for layer in spec.layers]
    forward = pack_forward(model, packed, windows, threads, sizes)
    # The median: a token may have no embedding at all, as padding has, and no direction.
    similarity = float(torch.cosine_similarity(probe_logits(forward, spec), expected).median())
    if similarity >= _LEAST[packed] or not expected.isfinite().all():
        return forward
    log.warning("packed weights compute something else, so there are none", similarity=similarity)
    return None


def probe_logits(forward: Forward, spec: ModelSpec) -> torch.Tensor:
    """Return the logits of some tokens, float32 [n, V], the same tokens each time."""
    cpu = torch.device("cpu")
    backend = get_backend("torch_cpu", cpu, 1)
    cache = KVCache(
        [LayerShape(layer.num_kv_heads, layer.head_dim) for layer in spec.layers],
        num_blocks=1,
        block_size=_NUM_TOKENS,
        dtype=torch.float32,
        device=cpu,
        backend=backend,
    )
    ids = torch.arange(_NUM_TOKENS) * 31 % spec.vocab_size
    positions = torch.arange(_NUM_TOKENS)
    meta = AttentionMetadata(
        cu_seqlens_q=torch.tensor([0, _NUM_TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([_NUM_TOKENS], dtype=torch.int32),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping=positions,
        max_q=_NUM_TOKENS,
        max_k=_NUM_TOKENS,
    )
    with torch.inference_mode(), forward_context(meta, backend, cache):
        return forward(ids, positions, positions)
