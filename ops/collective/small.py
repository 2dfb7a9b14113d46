"""Which collectives are so small that GPUs of one host exchange them sooner than they change from stream to stream."""

from __future__ import annotations

import numpy as np

from mspc.ir.graph import Node, operand_types
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter

WORDS = 4096
"""32-bit words that a rank sends to each other one at most."""
COMBINED = {"float32": "float", "int32": "int"}
"""Element types whose elements are combined, and their names in CUDA C++."""
COMBINATIONS = ("sum", "prod", "max", "min")


def takes(nbytes: int, dtype: np.dtype, op: str) -> bool:
    """Whether what each rank gets, so many bytes, is small. op: what combines elements, or "" where none are."""
    return nbytes % 4 == 0 and nbytes <= 4 * WORDS and (not op or (dtype.name in COMBINED and op in COMBINATIONS))


def is_small(node: Node) -> bool:
    """Whether all that a collective's node moves is small."""
    op = node.op
    if not isinstance(op, AllReduce | AllGather | ReduceScatter):
        return False
    how = "" if isinstance(op, AllGather) else op.op
    parts = op.group_size if isinstance(op, ReduceScatter) else 1
    types = operand_types(node)
    if len(types) > 1 and not isinstance(op, AllReduce):
        return False
    return takes(sum(t.nbytes for t in types) // parts, types[0].dtype.numpy, how)
