"""Operators that shape a graph: tuples, gradients, dependences, constraints of layouts, rows of data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.bases import Unary
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, sample
from mspc.sharding.rules import factor_names

CALL = "call"
"""Attribute with a node's number, from 1, that gives its regions other random numbers than other nodes with these
regions."""


class MakeTuple(Op):
    """A tuple of tensors: `(a, b)`."""

    takes_complex = True
    is_view = True
    widens = False
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs


class TupleGetItem(Op):
    """Element `index` of a tuple."""

    takes_complex = True
    index: int = 0
    is_view = True
    moves = True
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        (pair,) = types
        if not isinstance(pair, TupleType) or not 0 <= self.index < len(pair.elements):
            raise MspcError(f"TupleGetItem: there is no element {self.index} in {pair}")
        return pair.elements[self.index]

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0][self.index]


class TupleGetItems(Op):
    """Some elements of a tuple, a tuple again."""

    takes_complex = True
    indices: tuple[int, ...] = ()
    is_view = True
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        (whole,) = types
        if not isinstance(whole, TupleType) or not all(0 <= i < len(whole.elements) for i in self.indices):
            raise MspcError(f"TupleGetItems: there are no elements {self.indices} in {whole}")
        return TupleType(tuple(whole.elements[i] for i in self.indices))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return tuple(inputs[0][i] for i in self.indices)


def extracted_elements(op: object) -> tuple[int, ...] | None:
    """Return the indices of the tuple elements that an operator extracts; None if it reads the tuple otherwise."""
    if isinstance(op, TupleGetItem):
        return (op.index,)
    return op.indices if isinstance(op, TupleGetItems) else None


class Depend(Op):
    """The first operand, once all others have run."""

    takes_complex = True
    is_view = True

    def infer(self, *types: Type) -> Type:
        return types[0]

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return Reordered(self, tuple(orders), (orders[0],))

    def bprop(self, b: Builder, x: Value, *rest_and_grads: Any) -> Gradients:
        *rest, _, dout = rest_and_grads
        return (dout, *[None] * len(rest))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first

    def aliased_operands(self, count: int) -> Sequence[int]:
        return (0,)


def _first(x: Any, *_: Any) -> Any:
    return x


class StopGradient(Op):
    """The operand; differentiation does not pass."""

    takes_complex = True
    linear_in = (0,)
    is_view = True

    def infer(self, *types: Type) -> Type:
        return types[0]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]


class Gradient(Op):
    """A request that the pass `grad` replaces: gradients of the first `outputs` operands, with respect to the others.

    The last `outputs` operands are the sensitivities when `has_sens`; otherwise each is a tensor of ones, as in
    MindSpore. The result is a tuple with one gradient for every differentiated value (zeros if it has none).
    """

    takes_complex = True
    outputs: int = 1
    has_sens: bool = False
    bprop = NotDifferentiable("it is expanded before any outer gradient is taken")

    def infer(self, *types: Type) -> Type:
        last = len(types) - (self.outputs if self.has_sens else 0)
        return TupleType(tuple(t for t in types[self.outputs : last] if isinstance(t, TensorType)))


def items(b: Builder, value: Node, count: int) -> list[Value]:
    """Return the elements of a tuple."""
    return [b.emit(TupleGetItem(index), value) for index in range(count)]


def label_of_result(node: Node) -> str:
    """Return the label of a node; for an element of a tuple its number and the label of the operator."""
    if isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node):
        return f"result {node.op.index} of {node.inputs[0].label}"
    return node.label


class Bounded(Op):
    """The first operand. Its elements from the number `count`, operand 1, on along `axis` are padding, as the size of
    the dimension depends on data and is at most that of x. The pass `mask_bounds` replaces it."""

    takes_complex = True
    axis: int = 0
    integers = (1,)
    linear_in = (0,)
    is_view = True
    widens = False
    samples = (sample((8, 16), (), dtypes=("Float64", "Int64"), low=1, high=8),)

    def rule(self, x: TensorType, count: TensorType) -> str:
        names = " ".join(factor_names(len(x.shape)))
        return f"{names},  -> {names}"

    def bprop(self, b: Builder, x: Value, count: Value, out: Value, dout: Value) -> Gradients:
        return dout, None

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first

    def aliased_operands(self, count: int) -> Sequence[int]:
        return (0,)


class ShardingConstraint(Unary):
    """x itself, with the layout of the operator's strategy: `ShardingConstraint().shard(((2, 4),))(x)`. Neighbouring
    operators take their layouts from it, and a parameter read through it is stored in this layout. It redistributes
    nothing itself: once all forward layouts are decided, its readers read x from the nearest copy. Gradients follow
    their operands, not the constraint."""

    takes_complex = True
    constrains = True
    follows_neighbours = True
    linear_in = (0,)
    is_view = True
    widens = False
    cuda = "{0}"
    samples = (sample((8, 16)), sample(()), sample((8, 4), dtypes=("Int32",), gradient=False))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (dout,)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first


def constrained(b: Builder, value: Value, entry: Any, instance: str = "") -> Node:
    """Return `value` constrained to `entry`, a tuple of numbers of slices or a NamedLayout."""
    node = b.emit(ShardingConstraint(), value, instance=instance)
    node.in_strategy = (entry,)
    return node


def is_constraint(value: Value) -> bool:
    """Whether a value is another one with a constrained layout."""
    return isinstance(value, Node) and bool(getattr(value.op, "constrains", False))
