"""Says whether places in tables are made with numbers of a script, which stay where tables become smaller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mspc.ir.graph import Constant, Node, Value
from mspc.ops.bases import Elementwise
from mspc.ops.collective.collectives import AllGather
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.math.arithmetic import Mul
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.ops.tensor.slicing import StridedSlice

HANDS_ON = (Elementwise, FusedElementwise, BroadcastTo, Concat, Transpose, StridedSlice, AllGather)
"""Operators whose results are places where their operands are."""


def has_multiples(places: Value) -> bool:
    """Whether places are made of multiples by a number of the script: as the first place of an expert is its number
    times its room. What a sort or a choice of the best gives has none."""
    seen: set[Value] = set()
    waiting = [places]
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value, Node):
            continue
        seen.add(value)
        if not isinstance(value.op, HANDS_ON) and not value.op.reshapes:
            continue
        if any(map(_is_large, _factors(value))):
            return True
        waiting += value.inputs
    return False


def _factors(node: Node) -> Iterator[Value]:
    """What a node multiplies by."""
    if isinstance(node.op, Mul):
        yield from node.inputs
    if isinstance(node.op, FusedElementwise):
        for step in steps_of(node.op):
            if isinstance(step.op, Mul):
                yield from (node.inputs[index] for kind, index in step.operands if kind == "x")


def _is_large(value: Value) -> bool:
    return isinstance(value, Constant) and value.value.size == 1 and bool(np.abs(value.value).max() > 1)
