"""A folder -> what computes the logits: packed weights, or the model as transformers has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from structgen.config import EngineConfig
from structgen.model.dtypes import resolve_dtype
from structgen.model.forward import (
    EagerForward,
    Forward,
    can_take_apart,
    has_kernels,
    packed_dtype,
    wants_int8,
)
from structgen.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Loaded:
    """dtype: of weights that are not quantised, and of keys and values unless told otherwise."""

    forward: Forward
    spec: ModelSpec
    dtype: torch.dtype
    is_quantised: bool


def load(config: EngineConfig, folder: Path, device: torch.device, threads: int) -> Loaded:
    """Raises ConfigError: the model cannot be loaded, or not as the config wants it."""
    if not config.keep_packed or not has_kernels(device):
        return _load(config, folder, device, threads)
    from structgen.model import kept
    from structgen.model.fused.forward import FusedForward

    place = kept.place(config, folder)
    if found := kept.read(place):
        forward = FusedForward(found.decoder, found.packed, threads)
        return Loaded(forward, found.spec, found.dtype, found.packed == torch.int8)
    loaded = _load(config, folder, device, threads)
    if isinstance(loaded.forward, FusedForward):
        packed = loaded.forward
        kept.write(place, kept.Kept(packed.decoder, loaded.spec, packed.dtype, loaded.dtype))
    return loaded


def _load(config: EngineConfig, folder: Path, device: torch.device, threads: int) -> Loaded:
    from structgen.model.load import load_model  # takes two seconds to import
    from structgen.model.probe import checked_forward

    dtype = resolve_dtype(config.dtype, device)
    # Beside packed weights of 8 bits nothing is computed in their dtype, so it may be the smaller.
    may_quantise = device.type == "cpu" and wants_int8(config.quantization, config.dtype)
    held = torch.bfloat16 if may_quantise and config.dtype == "auto" else dtype
    model, spec = load_model(folder, dtype=held, device=device)
    packed = packed_dtype(config.quantization, config.dtype, model)
    if packed == torch.int8 and not can_take_apart(model):  # all but products is, then
        model, held = model.to(dtype), dtype
    if packed == torch.int8 or held == dtype:
        forward = checked_forward(model, spec, packed, threads) if packed else EagerForward(model)
        if forward:
            return Loaded(forward, spec, held, packed == torch.int8)
    model, spec = load_model(folder, dtype=dtype, device=device)
    return Loaded(EagerForward(model), spec, dtype, False)
