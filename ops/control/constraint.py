"""A constraint says how a tensor is to be sharded at one point of a network, apart from any operator that computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ops.bases import Unary
from mspc.ops.op import ArrayBackend, sample


class ShardingConstraint(Unary):
    """x itself, sharded as the operator's strategy says: `ShardingConstraint().shard(((2, 4),))(x)`.

    Operators around it take their shardings from it, and a parameter that is read through it is stored so. It moves
    nothing by itself: once all forward layouts are decided its readers read x, from the copy that is the nearest.
    Gradients follow their operands, not the constraint.
    """

    takes_complex = True
    constrains = True
    follows_neighbours = True
    linear_in = (0,)
    is_view = True
    widens = False
    cuda = "{0}"
    samples = (sample((8, 16)), sample(()), sample((8, 4), dtypes=("Int32",), gradient=False))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (dout,)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _itself

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]


def _itself(x: Any) -> Any:
    return x


def constrained(b: Builder, value: Value, entry: Any, instance: str = "") -> Node:
    """`value` held to `entry`, a tuple of numbers of slices or a NamedLayout."""
    node = b.emit(ShardingConstraint(), value, instance=instance)
    node.in_strategy = (entry,)
    return node


def is_constraint(value: Value) -> bool:
    """Whether a value is another one, held to a strategy."""
    return isinstance(value, Node) and bool(getattr(value.op, "constrains", False))
