"""Attention backends by name, and the one function that transformers calls.

A backend is one module here and one line in `_BACKENDS`; it is imported when first asked for, so
that its libraries need not be installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from structgen.errors import ConfigError, Unsupported
from structgen.model import context
from structgen.model.attention.base import AttentionBackend, AttentionMetadata

__all__ = ["IMPLEMENTATION", "AttentionBackend", "AttentionMetadata", "get_backend", "register"]

IMPLEMENTATION = "structgen"  # the name to give as attn_implementation


class _Entry(NamedTuple):
    target: str  # "module:Class"; the class is called with the number of threads
    device_type: str
    install: str  # what pip has to install


_BACKENDS: Mapping[str, _Entry] = {
    "torch_cpu": _Entry("structgen.model.attention.torch_cpu:TorchCpuAttention", "cpu", "torch"),
    "numba_cpu": _Entry("structgen.model.attention.numba_cpu:NumbaCpuAttention", "cpu", "numba"),
    "flash_attn": _Entry("structgen.model.attention.flash:FlashAttention", "cuda", "flash-attn"),
    "triton": _Entry("structgen.model.attention.triton:TritonAttention", "cuda", "triton"),
}


def get_backend(name: str, device: torch.device, threads: int) -> AttentionBackend:
    """Build the backend called `name`, or the best one for the device if it is "auto".

    threads: how many threads a CPU backend computes with.
    Raises ConfigError: no such backend, not for this device, or its library is missing.
    """
    if name == "auto":
        name = _best(device)
    if name not in _BACKENDS:
        raise ConfigError(f"attention must be one of auto, {', '.join(_BACKENDS)}, got {name!r}")
    entry = _BACKENDS[name]
    if entry.device_type != device.type:
        raise ConfigError(f"attention {name} runs on {entry.device_type}, the device is {device}")
    return _load(name, entry)(threads)


def _best(device: torch.device) -> str:
    if device.type == "cpu":
        return "numba_cpu" if importlib.util.find_spec("numba") else "torch_cpu"
    return "flash_attn" if importlib.util.find_spec("flash_attn") else "triton"


def _load(name: str, entry: _Entry) -> Callable[[int], AttentionBackend]:
    module_name, class_name = entry.target.split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            raise ConfigError(f"attention {name} is not part of this version") from None
        raise ConfigError(
            f"attention {name} needs {error.name}: pip install {entry.install}"
        ) from error
    backend: Callable[[int], AttentionBackend] = getattr(module, class_name)
    return backend


def register() -> None:
    """Make transformers know attn_implementation="structgen".  May be called again."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)


# What models hand on to every attention function and what has no bearing on the result.
_HARMLESS = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_hidden_states", "output_router_logits"}
)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **extras: object,
) -> tuple[torch.Tensor, None]:
    """Run one layer's attention for a transformers model.

    query: [1, H, N, D].  key, value: [1, Hk, N, D], of the new tokens.  Returns [1, N, H, D], and
    no weights.  Raises Unsupported: the model asks for what no backend does.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    layer_index = _layer_index(module)
    _refuse_shapes(module, query, key, value)
    _refuse_extras(module, extras | {"attention_mask": attention_mask, "non-causal": not is_causal})
    out = context.current().attend(
        layer_index,
        *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
        scale=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return out.unsqueeze(0), None


def _refuse_shapes(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    if query.shape[0] != 1 or query.shape[2] != key.shape[2] or key.shape != value.shape:
        # Cross attention, a cache of the model's own, or values smaller than keys.
        raise Unsupported(
            f"{type(module).__name__} attends over query {tuple(query.shape)}, "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}; "
            "supported is one flat batch of new tokens, with keys and values of one shape"
        )


def _refuse_extras(module: torch.nn.Module, extras: Mapping[str, object]) -> None:
    for name, value in extras.items():
        # An option that is off (None, False, dropout=0.0) changes nothing.
        is_off = value is None or (isinstance(value, bool | float) and not value)
        if not is_off and name not in _HARMLESS:
            raise Unsupported(f"{type(module).__name__} asks for {name}, which is not supported")


def _layer_index(module: torch.nn.Module) -> int:
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise Unsupported(f"{type(module).__name__} does not say which layer it is (layer_idx)")
    return index


def _no_mask(
    *,
    config: object,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    **_: object,
) -> None:
    """Stand in for transformers' mask builders: the metadata says it all.

    Raises Unsupported: a mask that is not the causal or sliding-window one.  transformers sets
    use_vmap when a model lays masks of its own over those.
    """
    if attention_mask is not None:
        raise Unsupported("padding masks are not supported: batches are flat")
    if use_vmap or getattr(config, "attention_chunk_size", None):
        raise Unsupported(f"{type(config).__name__} needs an attention mask of its own")
