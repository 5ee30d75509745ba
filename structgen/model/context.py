"""What the attention layers of one forward share: set once per forward, never nested.

transformers calls the attention function of each layer with that layer's tensors only.  The rest,
which sequences there are and where their keys and values lie, comes from here.  The context belongs
to the thread that runs the forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the attention package imports this module
    import numpy as np
    import numpy.typing as npt
    import torch

    from structgen.model.attention.base import AttentionBackend, AttentionMetadata
    from structgen.model.kv_cache import KVCache


class ForwardContext:
    """One forward: its metadata, backend and cache, and which layers have been called."""

    __slots__ = ("_backend", "_calls", "_kv_cache", "_meta")

    def __init__(
        self, meta: AttentionMetadata, backend: AttentionBackend, kv_cache: KVCache
    ) -> None:
        self._meta = meta
        self._backend = backend
        self._kv_cache = kv_cache
        self._calls = [0] * len(kv_cache.layers)

    def attend(
        self,
        layer_index: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Run one layer's attention; shapes as in AttentionBackend.forward."""
        expected = self._kv_cache.shapes[layer_index]
        assert tuple(k.shape[1:]) == expected, f"layer {layer_index}: {k.shape} is not {expected}"
        self._calls[layer_index] += 1
        kv_layer = self._kv_cache.layers[layer_index]
        return self._backend.forward(
            q, k, v, kv_layer, self._meta, scale=scale, window=window, softcap=softcap
        )

    def calls(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        *,
        scales: Sequence[float],
        windows: Sequence[int | None],
    ) -> npt.NDArray[np.void] | None:
        """Return calls that attend, one for each layer, or None if only `attend` can.

        They have to be made, once each and in order; see AttentionBackend.calls.
        """
        shape = tuple(k.shape[1:])
        assert all(expected == shape for expected in self._kv_cache.shapes), shape
        calls = self._backend.calls(
            q, k, v, out, self._kv_cache.layers, self._meta, scales=scales, windows=windows
        )
        if calls is not None:
            self._calls = [count + 1 for count in self._calls]
        return calls

    def layers_missed(self) -> list[int]:
        """Return the layers that were not called exactly once; empty after a complete forward."""
        return [index for index, count in enumerate(self._calls) if count != 1]


_current: ContextVar[ForwardContext | None] = ContextVar("structgen_forward", default=None)


@contextmanager
def forward_context(
    meta: AttentionMetadata, backend: AttentionBackend, kv_cache: KVCache
) -> Iterator[ForwardContext]:
    """Set the context of the one forward that runs inside the block."""
    assert _current.get() is None, "a forward context is set already"
    context = ForwardContext(meta, backend, kv_cache)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current() -> ForwardContext:
    """Return the running forward's context."""
    context = _current.get()
    assert context is not None, "attention was called outside of a forward context"
    return context
