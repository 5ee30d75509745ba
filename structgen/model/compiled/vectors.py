"""Vectors, a type of numba's: what all kernels do with them, of however many lanes they are.

How a kernel comes by them is its own affair: it knows their lanes, by the CPU or by its operands.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

from structgen.model.compiled import instructions
from structgen.model.compiled.instructions import BYTE, FLOAT, WORD, read, write


class Vector(types.Type):
    """A vector of float32 or of int32."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        super().__init__(name=f"{element}x{lanes}")
        self.element, self.lanes = element, lanes


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Vector) -> None:
        element = {types.float32: FLOAT, types.int32: WORD}[numba_type.element]
        super().__init__(manager, numba_type, ir.VectorType(element, numba_type.lanes))


# --- memory ---


@intrinsic
def pointer_to(typing: Any, address: Any) -> Any:
    """Return an address as numba's arrays want it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], BYTE.as_pointer())

    return types.voidptr(types.intp), build


@intrinsic
def store(typing: Any, vector: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(vector, types.intp), build


@intrinsic
def load_one(typing: Any, address: Any) -> Any:
    """Return the float32 at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return read(builder, arguments[0], FLOAT)

    return types.float32(types.intp), build


@intrinsic
def store_one(typing: Any, value: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.float32, types.intp), build


# --- arithmetic ---


def _operator(function: Callable[[Any, Any], Any], emit: Mapping[types.Type, str]) -> None:
    """Let a Python operator work on vectors.  emit: by element, what it is in LLVM."""

    @intrinsic
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, emit[left.element])(*arguments)

        return left(left, right), build

    @overload(function, inline="always")
    def choose(left, right):
        if isinstance(left, Vector) and left == right and left.element in emit:
            return lambda left, right: apply(left, right)
        return None


_operator(operator.add, {types.float32: "fadd", types.int32: "add"})
_operator(operator.sub, {types.float32: "fsub"})
_operator(operator.mul, {types.float32: "fmul"})
_operator(operator.truediv, {types.float32: "fdiv"})


@intrinsic
def larger(typing: Any, left: Any, right: Any) -> Any:
    """Return the larger of both, in each lane; right if one of them is NaN."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions.larger(builder, *arguments)

    return left(left, right), build


@intrinsic
def larger_size(typing: Any, most: Any, vector: Any) -> Any:
    """Return the larger of most and |vector|, in each lane; most if vector is NaN."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = instructions.call_by_lane(builder, "llvm.fabs", arguments[1])
        return instructions.larger(builder, size, arguments[0])

    return most(most, vector), build


@intrinsic
def largest(typing: Any, vector: Any) -> Any:
    """Return the largest lane."""
    return _fold(vector, instructions.larger)


@intrinsic
def total(typing: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""
    emit = {types.float32: "fadd", types.int32: "add"}[vector.element]
    return _fold(vector, lambda builder, left, right: getattr(builder, emit)(left, right))


def _fold(vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions.fold(builder, arguments[0], combine)

    return vector.element(vector), build
