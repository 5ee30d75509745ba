"""The types that numbers of a model may have, by name."""

from __future__ import annotations

import torch

from structgen.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype called `name`; "auto" is the narrowest that the device computes in natively.

    Raises ConfigError: no such dtype.
    """
    if name == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype must be one of auto, {', '.join(_DTYPES)}, got {name!r}")
    return _DTYPES[name]


def _has_bfloat16(device: torch.device) -> bool:
    if device.type != "cpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # amx_bf16 and avx512_bf16 on x86, bf16 on ARM.
    capabilities = torch.cpu.get_capabilities()
    return any(bool(has) for name, has in capabilities.items() if name.endswith("bf16"))
