"""Bases of elementwise operators: broadcasting, checked and promoted element types, array functions as kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from mspc.ir.layout import NamedLayout
from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    DType,
    TensorType,
    real_of,
)
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op, RequestedSharding
from mspc.sharding.rules import broadcast_rule

Family = TypeVar("Family", bound=Op)


def operator(name: str, text: str, base: type[Family], *others: type[Op], **declared: Any) -> type[Family]:
    """Make an operator from a row of a family's table: a class below bases of the row's own module (else the row
    says `__module__=__name__`), whose docstring is `text`, with these declarations."""
    body = {"__doc__": text, "__module__": base.__module__, "__qualname__": name, **declared}
    return cast("type[Family]", type(name, (base, *others), body))


class Elementwise(Op, abstract=True):
    """Operands are broadcast against each other; every element of the result needs its own elements only.

    Class attributes:
        array_function: name of the function of NumPy and CuPy that is the kernel.
        promotes, promotes_from: how mixed operands are to be cast, see `promotion.operand_dtypes`.
        broadcasts: operands are aligned by their last dimensions, as NumPy does; False if one is aligned otherwise.
    """

    array_function: ClassVar[str] = ""
    promotes: ClassVar[str] = ""
    promotes_from: ClassVar[int] = 0
    broadcasts: ClassVar[bool] = True
    one_type = True
    in_place = True

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        if not self.broadcasts:
            return None
        shape = np.broadcast_shapes(*(type.shape for type in types))
        pairs = zip(orders, types, strict=True)
        found = next((order for order, type in pairs if type.shape == shape and not order.is_plain), None)
        return None if found is None else self.made_in(found, types)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        if not self.broadcasts or not self.cuda or "{i}" in self.cuda:
            return None
        operands = tuple(o for o in (order.operand(type.shape) for type in types) if o is not None)
        return Reordered(self, operands, (order,)) if len(operands) == len(types) else None

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        named = any(isinstance(entry, NamedLayout) for entry in asked.out_strategy or ())
        if named and not asked.attrs.get("self_define_shard"):
            return "it takes no out_strategy of Layouts: the result is laid out as the inputs are"
        return ""

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return getattr(be.xp, self.array_function) if self.array_function else super().kernel(be)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        function = getattr(np, self.array_function, None)
        if be.xp is np and isinstance(function, np.ufunc):
            return function
        return super().kernel_into(be)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        from mspc.ops.cuda.elementwise import launch_elementwise  # late, as all of ops/cuda: only a GPU needs it

        return launch_elementwise(device, self, inputs, out)


class Unary(Elementwise, abstract=True):
    """One operand."""

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))


class Binary(Elementwise, abstract=True):
    """Two operands of one element type, broadcast against each other."""

    promotes = "common"

    def rule(self, input: TensorType, other: TensorType) -> str:
        return broadcast_rule((input.shape, other.shape))


class ArrayFunction(Op, abstract=True):
    """One floating-point operand, element by element, computed only by array functions: it has no expression of C++ and
    is no part of a fused chain."""

    promotes: ClassVar[str] = "float"
    float_only = True

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))


class Predicate(Binary, abstract=True):
    """Two operands in, Bool out."""

    result_dtypes = (BOOL,)


def promoted(left: DType, right: DType) -> DType:
    """Return the element type that both convert to: complex numbers beat floats, floats beat integers, integers beat
    Bool, and the wider one wins."""
    if left == right:
        return left
    if left.kind == "b" or right.kind == "b":
        return right if left.kind == "b" else left
    if left.is_complex or right.is_complex:
        return COMPLEX128 if FLOAT64 in (real_of(left), real_of(right)) else COMPLEX64
    if left.is_float != right.is_float:
        return left if left.is_float else right
    if {left, right} == {FLOAT16, BFLOAT16}:
        return FLOAT32
    if left.kind != right.kind:
        unsigned, signed = (left, right) if left.kind == "u" else (right, left)
        if unsigned.itemsize < signed.itemsize:
            return signed
        return DTYPES.get(f"Int{unsigned.itemsize * 16}", DTYPES["Int64"])
    return left if left.itemsize >= right.itemsize else right


def operand_dtypes(op: Op, dtypes: Sequence[DType]) -> Sequence[DType]:
    """Return the element types that Casts must bring the operands of `op` to, one for each.

    Operators declare it by `promotes`: "common" is the promoted type of the operands, "float" the same with integers
    and Bool as Float32 (division), "bool" is Bool, "floats" is "common" except if integers meet floats. Operands before
    `promotes_from` are unchanged.
    """
    kind = getattr(op, "promotes", "")
    first = promotes_from(op)
    if not kind or len(dtypes) <= first:
        return dtypes
    if kind == "floats" and len({dtype.is_float or dtype.is_complex for dtype in dtypes[first:]}) > 1:
        return dtypes  # as in MindSpore, the operator refuses them
    target = functools.reduce(promoted, dtypes[first:])
    if kind == "float" and not (target.is_float or target.is_complex):
        target = FLOAT32
    if kind == "bool":
        target = BOOL
    return (*dtypes[:first], *[target] * (len(dtypes) - first))


def promotes_from(op: Op) -> int:
    """Return the first operand that `operand_dtypes` brings to a common type; a number among these takes its type from
    them, not from the operands before."""
    return getattr(op, "promotes_from", 0)


def axes_of(dims: tuple[int, ...], shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of the space `dims` that are reduced if `axes` of `shape`, which has the same elements,
    are."""
    runs: list[tuple[int, int]] = []
    behind = 1
    for d in reversed(range(len(shape))):
        if d in axes or not axes:
            runs.append((behind, behind * shape[d]))
        behind *= shape[d]
    found: list[int] = []
    behind = 1
    for d in reversed(range(len(dims))):
        if any(begin <= behind < end for begin, end in runs):
            found.append(d)
        behind *= dims[d]
    return tuple(reversed(found))
