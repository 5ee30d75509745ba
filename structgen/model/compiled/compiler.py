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
