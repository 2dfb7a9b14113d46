"""Finds values that are zero whatever a network is fed: what ranks combine of such is zero, too."""

from __future__ import annotations

from mspc.ir.graph import Constant, Node, Value
from mspc.ir.varying import VaryingConstant
from mspc.ops.control.structural import Depend
from mspc.ops.op import Op


def is_all_zero(value: Value) -> bool:
    """Whether every element is zero, as far as the operators show it: made so, and what linear ones of one operand
    (Reshape, Cast, sums) give of it."""
    while isinstance(value, Node):
        if isinstance(value.op, Op) and value.op.uniform() == 0:
            return True
        is_linear = isinstance(value.op, Op) and len(value.inputs) == 1 and 0 in value.op.linear_in
        if not (is_linear or isinstance(value.op, Depend)):
            return False
        value = value.inputs[0]
    return isinstance(value, Constant) and not isinstance(value, VaryingConstant) and not value.value.any()
