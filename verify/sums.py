"""Says which operands an operator adds up, whose order rounding depends on."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node
from mspc.ir.types import Type
from mspc.ops.op import Op

Array = Any
WIDE = ("float32", "float64")
"""Types that sums are taken in: those of narrower elements are taken in Float32, so that their order moves little."""


def added_up(node: Node) -> tuple[int, ...]:
    """The numbers of the operands that a node adds up along some dimension; none of one that overwrites any."""
    if not isinstance(node.op, Op) or node.op.mutates or node.regions:
        return ()
    return _added_up(node.op, tuple(value.type for value in node.inputs))


def is_exact(array: Array) -> bool:
    """Whether rounding has no part in a sum of an array's numbers in any order: whole ones, as counts, or of a type
    that is narrower than that of the sum, or that has no fractions."""
    return array.dtype.name not in WIDE or bool(np.all(array == np.rint(array)))


@lru_cache(maxsize=4096)
def _added_up(op: Op, types: tuple[Type, ...]) -> tuple[int, ...]:
    try:
        rule = op.parsed_rule(*types)  # type: ignore[arg-type]  # it refuses what is no tensor
    except (MspcError, NotImplementedError, AttributeError):
        return ()
    added = set(rule.reduced) if rule.reduction in ("sum", "mean") else set[int]()
    for i in rule.summed:
        added |= {*range(len(rule.names))} - {factor for dim in rule.outputs[i] for factor in dim}
    added = {factor for factor in added if rule.sizes[factor] > 1}
    return tuple(i for i, dims in enumerate(rule.inputs) if any(not added.isdisjoint(dim) for dim in dims))
