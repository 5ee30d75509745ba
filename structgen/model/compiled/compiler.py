"""What kernels want of the compiler: what it compiles for, and code that is kept on disk."""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
from numba import types
from numba.core.registry import cpu_target

from structgen import logs

log = logs.get(__name__)

jit = functools.partial(numba.njit, nogil=True, error_model="numpy")
inline = functools.partial(jit, forceinline=True)

_compiled: list[object] = []  # the owners of the compiled code, for the process's life


@functools.cache
def features() -> frozenset[str]:
    """Return what numba compiles for: this CPU, unless NUMBA_CPU_FEATURES says otherwise."""
    _triple, _cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(one[1:] for one in features.split(",") if one.startswith("+"))


@functools.cache
def cpu_name() -> str:
    """Return LLVM's name of what numba compiles for: this CPU, unless NUMBA_CPU_NAME says so."""
    _triple, name, _features = cpu_target.target_context.codegen().magic_tuple()
    return str(name)


@functools.cache
def multiplies_bfloat16_fast() -> bool:
    """Return whether bfloat16 is best multiplied by the instruction for that, as on a Zen 4.

    On an Emerald Rapids it makes an eighth fewer products than what widens them first.
    """
    return "avx512bf16" in features() and cpu_name().startswith("znver")


@functools.cache
def second_level_cache_bytes() -> int:
    """Return the size of a core's second level cache; 1 MiB where the system does not tell."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        return 1 << 20


def digest(*modules: ModuleType) -> str:
    """Return what stands for the source of modules.

    numba renews what it has on disk when the file of a function changes, not when one does that it
    imports; but what a function closes over is part of its name there.  So a function that is kept
    has to close over this, of all modules that it is compiled from.
    """
    sources = (Path(str(module.__file__)).read_bytes() for module in modules)
    return hashlib.sha256(b"".join(sources)).hexdigest()


def c_function(function: Callable[[int], None]) -> int:
    """Compile a function of an address, if it is not on disk; return where its code is.

    It is kept next to the function's file, or else in the user's cache.
    """
    compiled = numba.cfunc(types.void(types.voidptr), cache=_can_cache(function))(function)
    _compiled.append(compiled)
    address: int = compiled.address
    return address


def _can_cache(function: Callable[[int], None]) -> bool:
    try:
        numba.njit(cache=True)(function)  # compiles nothing yet, only looks for a place
    except RuntimeError:
        log.warning("no place for compiled kernels, each start compiles them again")
        return False
    return True
