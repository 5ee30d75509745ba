"""Flat tokens -> logits: by the model as transformers has it, or by packed weights where they fit.

Packed weights (structgen.model.fused) serve model classes that are known to the letter, on a CPU.
Everything else runs as it is, but for linear layers of int8 if they are asked for.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch

from structgen import logs
from structgen.errors import ConfigError

log = logs.get(__name__)

QUANTIZATIONS = ("auto", "none", "int8")


class Forward(Protocol):
    """Computes logits, inside a forward context."""

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, logits_index: torch.Tensor
    ) -> torch.Tensor:
        """Return float32 [L, V], the logits behind the chosen tokens; valid until the next call.

        input_ids, positions: int64 [N].  logits_index: int64 [L], into the N tokens.
        """


class EagerForward:
    """The model as transformers has it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, logits_index: torch.Tensor
    ) -> torch.Tensor:
        output = self._model(
            input_ids=input_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logits_index,
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def packed_dtype(quantization: str, dtype_name: str, model: torch.nn.Module) -> torch.dtype | None:
    """Return the type to pack the weights as, or None where the model runs as it is.

    quantization "auto" is int8 where the CPU is fast at that and the model is known, unless the
    caller named a dtype.
    Raises ConfigError: no such quantization, or int8 where it cannot be.
    """
    if quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}"
        )
    dtype = next(model.parameters()).dtype
    is_known = can_take_apart(model)
    if quantization == "int8" and not is_known:
        _require_linear_layers(model)
    if quantization == "int8" or (is_known and wants_int8(quantization, dtype_name)):
        return torch.int8
    return dtype if is_known and dtype in (torch.float32, torch.bfloat16) else None


def wants_int8(quantization: str, dtype_name: str) -> bool:
    """Return whether weights are to be int8, on a CPU, of a model that is known."""
    is_default = quantization == "auto" and dtype_name == "auto" and _has_int8_products()
    return quantization == "int8" or is_default


def pack_forward(
    model: torch.nn.Module,
    packed: torch.dtype,
    windows: Sequence[int | None],
    threads: int,
    sizes: Mapping[torch.nn.Module, torch.Tensor] = MappingProxyType({}),
) -> Forward:
    """Return a forward with the weights of a loaded model, which are taken from it.

    packed: see packed_dtype.  windows: of each layer's attention.  sizes: of the channels behind
    norms (fused/balance.py), for int8.
    """
    from structgen.model.fused.forward import FusedForward
    from structgen.model.fused.linear import quantise
    from structgen.model.fused.take_apart import take_apart

    began = time.perf_counter()
    if can_take_apart(model):
        decoder = take_apart(model, windows, packed, sizes)
        forward: Forward = FusedForward(decoder, packed, threads)
    else:
        assert packed == torch.int8, f"{type(model).__name__} cannot be packed as {packed}"
        quantise(model, threads)
        forward = EagerForward(model)
    log.info("weights packed", dtype=packed, seconds=round(time.perf_counter() - began, 1))
    return forward


def can_take_apart(model: torch.nn.Module) -> bool:
    """Return whether a model is computed by packed weights alone, whatever their type."""
    if not has_kernels(next(model.parameters()).device):
        return False
    from structgen.model.fused.take_apart import is_known

    return is_known(model)


def _require_linear_layers(model: torch.nn.Module) -> None:
    """Raises ConfigError: there are none that can be of int8."""
    if has_kernels(next(model.parameters()).device):
        from structgen.model.fused.linear import fits

        if any(fits(module) for module in model.modules()):
            return
    raise ConfigError(
        f"quantization int8 is for a CPU, with numba, and linear layers of a multiple of 64 "
        f"inputs; this is {type(model).__name__} on {next(model.parameters()).device}"
    )


def has_kernels(device: torch.device) -> bool:
    """Return whether packed weights can be computed with there."""
    return device.type == "cpu" and importlib.util.find_spec("numba") is not None


def _has_int8_products() -> bool:
    """Return whether an instruction adds up products of whole numbers, if only in pairs: then int8
    was faster than the other types for any number of rows."""
    return bool(torch.cpu.get_capabilities().get("avx2"))
