"""These are the bases of the elementwise operators: their rule is that of broadcasting, element types are checked, and
array functions are their kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import BOOL, DType, TensorType, Type
from mspc.ops.cpu.blocks import apply
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op, RequestedSharding
from mspc.sharding.rules import broadcast_rule


def require_float(name: str, *types: TensorType) -> None:
    """Raises MspcError where an operand is no floating-point tensor; complex ones reach only those that take them."""
    for index, operand in enumerate(types):
        if not (operand.dtype.is_float or operand.dtype.is_complex):
            raise MspcError(
                f"{name}: input {index} is {operand.dtype}, not a floating-point tensor",
                notes=["cast it first, for example with x.astype(mindspore.float32)"],
                kind=TypeError,
            )


def require_same(name: str, *types: TensorType) -> None:
    """Raises MspcError where operands differ in element type."""
    for index, operand in enumerate(types[1:], 1):
        if operand.dtype != types[0].dtype:
            raise MspcError(
                f"{name}: input 0 is {types[0].dtype} and input {index} is {operand.dtype}",
                notes=["cast one of them, for example with x.astype(mindspore.float32)"],
                kind=TypeError,
            )


class Elementwise(Op, abstract=True):
    """Operands are broadcast against each other; every element of the result needs its own elements only.

    Class attributes:
        array_function: name of the function of NumPy and CuPy that is the kernel.
        promotes, promotes_from: how mixed operands are to be cast, see `promotion.operand_dtypes`.
        float_only: operands must be floating point.
        broadcasts: operands are aligned by their last dimensions, as NumPy does; False where one is aligned otherwise.
    """

    array_function: ClassVar[str] = ""
    promotes: ClassVar[str] = ""
    promotes_from: ClassVar[int] = 0
    float_only: ClassVar[bool] = False
    broadcasts: ClassVar[bool] = True
    in_place = True

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        self.check(*types)
        return inferred

    def check(self, *types: TensorType) -> None:
        """Raises MspcError where the operands' element types do not fit."""
        if self.float_only:
            require_float(self.name, *types)
        require_same(self.name, *types)

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
        return functools.partial(apply, function) if be.xp is np and isinstance(function, np.ufunc) else None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
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
    """One floating-point operand, element by element, by array functions alone: no expression of C++ makes it part of a
    fused chain."""

    promotes: ClassVar[str] = "float"

    def infer(self, *types: Any) -> Type:
        require_float(self.name, *types)
        return super().infer(*types)

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))


class Predicate(Binary, abstract=True):
    """Two operands in, Bool out."""

    def result_dtype(self, *types: TensorType) -> DType:
        return BOOL
