"""Finds gradients that ranks add up in half precision, if one device computes them in Float32."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mspc.ir.graph import Constant, Graph, Node, Value, element_types
from mspc.ir.iterative import reached
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter
from mspc.ops.control.structural import Depend, TupleGetItem
from mspc.ops.math.arithmetic import Add, AddN, Div, Mul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice

_LINEAR = (Add, AddN, AllGather, AllReduce, Cast, Concat, Depend, ReduceScatter, Split, StridedSlice, Transpose,
           TupleGetItem)  # fmt: skip


def rounded_sums(one: Graph, ranks: Graph, results: Collection[int]) -> list[tuple[int, Node]]:
    """Return (number of the result, node) of sums over ranks in half precision for results that one device adds up in
    Float32. results: the numbers of the gradients."""
    found: list[tuple[int, Node]] = []
    for number in results:
        whole, own = one.results[number], ranks.results[number]
        if _is_half(whole) or any(_is_half(value) for value in _terms(whole)):
            continue
        sums = [node for node in _terms(own) if isinstance(node.op, AllReduce | ReduceScatter) and _is_half(node)]
        found += [(number, node) for node in sums[:1]]
    return found


def _is_half(value: Value) -> bool:
    types: Sequence[TensorType] = element_types(value.type)
    return any(each.dtype.is_float and each.dtype.itemsize < 4 for each in types)


def _terms(value: Value) -> Iterator[Node]:
    """Yield the nodes that hand a value on, add it up or scale it, the last first, and those that make it."""

    def operands(each: Value) -> Sequence[Value]:
        if not isinstance(each, Node):
            return ()
        op: Any = each.op
        scales = isinstance(op, Mul | Div) and any(isinstance(operand, Constant) for operand in each.inputs)
        return each.inputs if scales or isinstance(op, _LINEAR) or (isinstance(op, Op) and op.reshapes) else ()

    return (each for each in reached([value], operands) if isinstance(each, Node))
