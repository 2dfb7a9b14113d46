"""Values of a program that is walked, and the emission of mspc's operators for them.

A value is one of the front end's, or known numbers, or a tensor that repeats along some dimensions. The last kind stays
small until an operation needs all of its elements: mspc's elementwise operators broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.types import DType, TensorType, dtype_of
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.ops.math.xla_elementwise import ELEMENTWISE
from mspc.ops.tensor.slicing import StridedSlice
from mspc.readers.stablehlo.module import HloFunction, HloModule, HloOperation, HloType

Array = Any
LARGEST_FOLDED = 1 << 14
"""Most elements of a result that is computed at compile time."""


@dataclass(frozen=True)
class Known:
    """Numbers known at compile time. base: with size 1 in dimensions along which they repeat, of the rank of shape."""

    base: Array
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BroadcastView:
    """A value that repeats along the dimensions in which it has size 1."""

    value: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StackedRows:
    """A tensor into which every iteration of a loop puts one row, which the loop stacks, or of which it reads one. row:
    that of the iteration."""

    type: TensorType
    row: Any = None


@dataclass(frozen=True)
class DeviceSlices:
    """The slices of all devices, between operations that read one device's. type: of a slice. axes: the manual ones."""

    type: TensorType
    value: Any
    axes: Any


class ProgramScope(Protocol):
    """The parts of a walk that kinds read. module: that of the program."""

    module: HloModule

    def lookup(self, name: str) -> Any:
        """Return a value by its name."""

    def constant_of(self, operation: HloOperation) -> Array:
        """Return the elements of a constant."""

    def function(self, name: str) -> HloFunction:
        """Return a function of the module."""


class HloEmitter:
    """Emits operators through the front end's evaluator. program: the walk, which knows values by name."""

    def __init__(self, evaluator: Any, program: ProgramScope) -> None:
        self.evaluator = evaluator
        self.program = program

    def call(self, function: Any, *operands: Any) -> Any:
        """Return the result of one of mspc's operators."""
        return self.evaluator.call(function, operands)

    def host(self, name: str, options: Sequence[Any], *operands: Any) -> Any:
        """Return the result of a function in NumPy, as XLA computes it."""
        return self.call(ops.XlaFunction(name, tuple(options)), *map(self.whole, operands))

    def type_of(self, value: Any) -> TensorType:
        if isinstance(value, Known):
            return TensorType(dtype_of(value.base.dtype), value.shape)
        if isinstance(value, BroadcastView):
            return TensorType(self.type_of(value.value).dtype, value.shape)
        if isinstance(value, StackedRows | DeviceSlices):
            return value.type
        found = self.evaluator.type_of(value)
        if found is None:
            raise MspcError("a value is no tensor")
        return found

    def shape_of(self, value: Any) -> tuple[int, ...]:
        return self.type_of(value).shape

    def whole(self, value: Any) -> Any:
        """Return a value of the front end with all elements."""
        if isinstance(value, BroadcastView):
            found = value.value
            return found if self.shape_of(found) == value.shape else self.call(ops.BroadcastTo(value.shape), found)
        if not isinstance(value, Known):
            return value
        if value.base.shape == value.shape:
            return self.constant(value.base)
        return self.call(ops.BroadcastTo(value.shape), self.loose(value))

    def of_rows(self, rows: Sequence[Any]) -> Any:
        """Return the tensor with these rows: that of which a loop gives them in their order, else they are stacked."""
        ops_of = [row.op if isinstance(row, Node) else None for row in rows]
        if all(isinstance(op, StridedSlice) and op.begin[:1] == (at,) for at, op in enumerate(ops_of)):
            whole = rows[0].inputs[0]
            if all(row.inputs[0] is whole for row in rows) and whole.shape == (len(rows), *rows[0].shape):
                return whole
        return self.call(ops.stack, tuple(rows), 0)

    def constant(self, array: Array) -> Any:
        return self.evaluator.held(Tensor(np.ascontiguousarray(array).reshape(array.shape)), "")

    def constrained(self, value: Any, layout: NamedLayout) -> Any:
        """Return a value in a layout."""
        return self.call(ops.ShardingConstraint().shard((layout,)), self.whole(value))

    def loose(self, value: Any) -> Any:
        """Return a value of the front end that broadcasts to the shape of this one."""
        if isinstance(value, BroadcastView):
            return value.value
        if isinstance(value, Known):
            return self.constant(value.base.reshape(()) if value.base.size == 1 else value.base)
        return self.whole(value)

    def spread(self, value: Any, shape: tuple[int, ...]) -> Any:
        """Return an elementwise result as a value of a shape, to which it broadcasts."""
        own = self.shape_of(value)
        if own == shape:
            return value
        if len(own) < len(shape):
            own = (*(1,) * (len(shape) - len(own)), *own)
            value = self.call(ops.Reshape(), value, own)
        return value if own == shape else BroadcastView(value, shape)

    def reshaped(self, value: Any, shape: Sequence[int]) -> Any:
        """Return the elements in another shape."""
        shape = tuple(shape)
        if self.shape_of(value) == shape:
            return value
        if isinstance(value, Known) and (value.base.size == 1 or value.base.shape == value.shape):
            base = value.base.reshape((1,) * len(shape) if value.base.size == 1 else shape)
            return Known(base, shape)
        if isinstance(value, BroadcastView) and np.prod(self.shape_of(value.value)) == 1 and np.prod(shape) != 1:
            return BroadcastView(self.call(ops.Reshape(), value.value, (1,) * len(shape)), shape)
        return self.call(ops.Reshape(), self.whole(value), shape)

    def transposed(self, value: Any, order: Sequence[int]) -> Any:
        order = tuple(order)
        if order == tuple(range(len(order))):
            return value
        shape = tuple(self.shape_of(value)[d] for d in order)
        if isinstance(value, Known):
            return Known(value.base.transpose(order), shape)
        if isinstance(value, BroadcastView):
            return BroadcastView(self.transposed(value.value, order), shape)
        return self.call(ops.Transpose(), self.whole(value), order)

    def part(self, value: Any, begin: Sequence[int], end: Sequence[int], step: Sequence[int] | None = None) -> Any:
        """Return a slice."""
        shape = self.shape_of(value)
        step = tuple(step) if step else (1,) * len(shape)
        if tuple(begin) == (0,) * len(shape) and tuple(end) == shape and step == (1,) * len(shape):
            return value
        sizes = tuple(len(range(a, b, s)) for a, b, s in zip(begin, end, step, strict=True))
        if isinstance(value, Known):
            base = value.base
            if base.size > 1:
                index = [slice(None) if n == 1 != m else slice(a, b, s) for n, m, a, b, s in
                         zip(base.shape, shape, begin, end, step, strict=True)]  # fmt: skip
                base = base[tuple(index)]
            return Known(base, sizes)
        if isinstance(value, BroadcastView):
            own = self.shape_of(value.value)
            ends = [(0, 1, 1) if n == 1 != m else (a, b, s) for n, m, a, b, s in
                    zip(own, shape, begin, end, step, strict=True)]  # fmt: skip
            begins, stops, steps = zip(*ends, strict=True)
            return BroadcastView(self.part(value.value, begins, stops, steps), sizes)
        if not all(sizes):
            return Known(np.zeros(sizes, self.type_of(value).dtype.numpy), sizes)
        return self.call(ops.StridedSlice(), self.whole(value), tuple(begin), tuple(end), step)

    def number(self, value: int, dtype: DType) -> Known:
        """Return a known number of shape ()."""
        return Known(np.array(value, dtype.numpy), ())

    def folded(self, name: str, given: Sequence[Any], settings: Sequence[Any], shape: tuple[int, ...]) -> Known | None:
        """Return the result of an elementwise operation of known numbers, None if one is not known or there are too
        many."""
        if not all(isinstance(value, Known) for value in given):
            return None
        bases = [value.base for value in given]
        if np.prod(np.broadcast_shapes(*(base.shape for base in bases))) > LARGEST_FOLDED:
            return None
        with np.errstate(all="ignore"):
            found = np.asarray(ELEMENTWISE[name](*bases, *settings))
        return Known(found.reshape((1,) * (len(shape) - found.ndim) + found.shape), shape)


def tensor(type: HloType) -> TensorType:
    """Return the type of a tensor. Raise MspcError if it is none of mspc's."""
    if not isinstance(type, TensorType):
        raise MspcError(f"{type} is no tensor of static shape with an element type of mspc")
    return type


def integer(value: Any) -> int | None:
    """Return a known integer, None for other values."""
    return int(value.base.reshape(())) if isinstance(value, Known) and value.base.size == 1 else None


def attribute(operation: HloOperation, *names: str, default: Any = None) -> Any:
    """Return the first attribute of these names that the operation has."""
    return next((operation.attributes[name] for name in names if name in operation.attributes), default)
