"""These operators give a graph its shape: tuples, ordering, and the request for a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op

CALL = "call"
"""The attribute of a node by whose number, from 1, what its graphs draw differs from what they draw for other nodes."""


class MakeTuple(Op):
    """Puts tensors side by side: `(a, b)`."""

    takes_complex = True
    is_view = True
    widens = False
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return tuple(inputs[0][i] for i in self.indices)


def taken_elements(op: object) -> tuple[int, ...] | None:
    """Which elements of its operand, a tuple, an operator takes; None where it reads it otherwise."""
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

    def bprop(self, b: Builder, x: Value, *rest_and_grads: Any) -> Sequence[Value | None]:
        *rest, _, dout = rest_and_grads
        return (dout, *[None] * len(rest))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]

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

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (None,)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]


class Gradient(Op):
    """A request that the pass `grad` replaces: gradients of the first `outputs` operands, with respect to the others.

    The last `outputs` operands are the sensitivities when `has_sens`; otherwise each is a tensor of ones, as in
    MindSpore. The result is a tuple with one gradient for every differentiated value (zeros where it has none).
    """

    takes_complex = True
    outputs: int = 1
    has_sens: bool = False
    bprop = NotDifferentiable("it is expanded before any outer gradient is taken")

    def infer(self, *types: Type) -> Type:
        last = len(types) - (self.outputs if self.has_sens else 0)
        return TupleType(tuple(t for t in types[self.outputs : last] if isinstance(t, TensorType)))


def items(b: Builder, value: Node, count: int) -> list[Value]:
    """The elements of a tuple."""
    found: list[Value] = []
    for index in range(count):
        found.append(b.emit(TupleGetItem(index), value))
    return found


def label_of_result(node: Node) -> str:
    """The label of a node, and of which operator it takes which result."""
    if isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node):
        return f"result {node.op.index} of {node.inputs[0].label}"
    return node.label
