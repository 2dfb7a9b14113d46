"""How many scores an attention may have, without a look at what it is made of."""

from __future__ import annotations

import math

from mspc.ir.graph import Node
from mspc.ops.math.matmul import BatchMatMul


def may_be_attention(node: Node, least: int) -> bool:
    """Whether a node may be the last product of an attention with as many scores of a head."""
    return isinstance(node.op, BatchMatMul) and math.prod(node.inputs[0].shape[-2:]) >= least
