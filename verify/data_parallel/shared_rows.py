"""Runs operators that compute over the global batch on one device that has the rows of several places in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Node
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend

Array = Any


def kernel_over_places(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
    """The kernel of an operator that in data parallel mode computes over all ranks' rows, on the rows of all places
    that share a batch; None for any other operator.

    Arrays of two dimensions and more have rows. Each place takes its own of the results, and of sums over rows, which
    are added up later, its own term.
    """
    comm, op = backend.comm, node.op
    if comm.size == 1 or not isinstance(op, Op):
        return None
    groups = op.over_all_ranks(tuple(range(comm.size))).attributes().get("groups", ())
    group = next((tuple(sorted(g)) for g in groups if comm.rank in g), ())
    if len(group) < 2:
        return None
    place = group.index(comm.rank)

    def kernel(*operands: Array) -> Any:
        gathered = [comm.all_gather(a, group, 0) if np.ndim(a) > 1 else np.array(a) for a in operands]
        rows = max(len(a) for a in operands if np.ndim(a) > 1)
        parts = cast("tuple[Array, ...]", op.kernel(backend)(*gathered))
        for i in op.mutates:
            operands[i][...] = gathered[i]
        mine = tuple(a[place * rows : (place + 1) * rows] if a.ndim > 1 else a for a in parts)
        if not op.sums_of_rows:
            return mine
        own = cast("tuple[Array, ...]", op.kernel(backend)(*operands))
        return tuple(own[i] if i in op.sums_of_rows else a for i, a in enumerate(mine))

    return kernel
