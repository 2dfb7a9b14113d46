"""Bound the number of scores of an attention without a look at its operands."""

from __future__ import annotations

import math

from mspc.ir.graph import Node
from mspc.ir.layout import NamedLayout
from mspc.ops.math.matmul import BatchMatMul


def may_be_attention(node: Node, least: int) -> bool:
    """Return whether a node may be the last product of an attention with as many scores of a head."""
    return isinstance(node.op, BatchMatMul) and math.prod(node.inputs[0].shape[-2:]) >= least


def may_shard_queries(node: Node) -> bool:
    """Return True if a node may be a matmul or the softmax of an attention with sharded queries."""
    if not node.in_strategy:
        return False
    entry = node.in_strategy[0]
    counts = entry.strategy if isinstance(entry, NamedLayout) else entry
    turned = isinstance(node.op, BatchMatMul) and node.op.transpose_a
    if not isinstance(counts, tuple) or len(counts) < 3 or counts[-1 if turned else -2] == 1:
        return False
    if isinstance(node.op, BatchMatMul):
        return True
    from mspc.ops.nn.softmax import Softmax  # late: few networks shard rows of matrices in any other operator

    return isinstance(node.op, Softmax)
