"""What is added to the scores of attention that is written out, one by one or as a sum; one term may be a causal mask.

Input:  `%1 = Add(%scores, %bias)`, `%2 = Add(%1, %future)`, or `%1 = Add(%bias, %future)`, `%2 = Add(%scores, %1)`
Output: %bias, and `sparse_mode: 2`; for other addends `Add(%bias, %padding)`
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.graph import Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.ops.math.arithmetic import Add
from mspc.ops.tensor.reshape import Cast
from mspc.passes.fusion.causal_masks import causal_mode
from mspc.passes.fusion.masked_rows import may_hide

MOST_TERMS = 64
"""Terms into which a sum is taken apart; a value that is added to itself again and again has more than fit a list."""


@dataclass
class Addends:
    """What is added to the scores of one attention.

    values: in their order. behind_mask: some are added behind the mask. total: their sum, where there are any, of the
    widest of their types; made: nodes that are to be made for it.
    """

    values: list[Value] = field(default_factory=list["Value"])
    behind_mask: bool = False
    total: Value | None = None
    made: list[Node] = field(default_factory=list["Node"])

    def take_future(self, scores: tuple[int, ...], hides: Callable[[Any, Any], bool]) -> int:
        """Take out a value, or a term of one, that is a causal mask, and return the `sparse_mode` that says the same;
        0 where none is, or another may hide keys, too: what hides all of them is then not known."""
        for terms in (self.values, [term for value in self.values for term in _terms(value)]):
            for index, term in enumerate(terms):
                others = [*terms[:index], *terms[index + 1 :]]
                mode = causal_mode(term, scores, hides)
                if mode and not any(map(may_hide, others)):
                    self.values = others
                    return mode
        return 0

    def add_up(self, like: Node) -> None:
        """Find the sum, at the lines of `like`."""
        for value in self.values:
            if self.total is None:
                self.total = value
                continue
            pair = (self.total, value)
            dtype = max((v.tensor_type.dtype for v in pair), key=lambda dtype: dtype.itemsize)
            shape = np.broadcast_shapes(*(v.shape for v in pair))
            self.total = self._make(Add(), [self._cast(v, dtype, like) for v in pair], TensorType(dtype, shape), like)

    def _cast(self, value: Value, dtype: DType, like: Node) -> Value:
        if value.tensor_type.dtype == dtype:
            return value
        return self._make(Cast(dtype), [value], TensorType(dtype, value.shape), like)

    def _make(self, op: Add | Cast, inputs: Sequence[Value], type: TensorType, like: Node) -> Node:
        self.made.append(Node(op, inputs, type, scope=like.scope, frames=like.frames))
        return self.made[-1]


@iterative
def _terms(value: Value) -> Generator[Any, list[Value], list[Value]]:
    if not isinstance(value, Node) or not isinstance(value.op, Add) or value.in_strategy is not None:
        return [value]
    found: list[Value] = []
    for operand in value.inputs:
        found += yield (operand,)
    return found if len(found) <= MOST_TERMS else [value]
