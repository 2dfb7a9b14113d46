"""Finds what an attention that is written out reads: an operand of a product without the transposes, casts, factors and
repeated heads between them.

Input:  `%1 = Transpose(%k) {perm: (0, 2, 1, 3)}`, `%2 = RepeatInterleaveInt(%1) {repeats: 4, dim: 1}`,
        `%3 = Cast(%2) {dst_type: BFloat16}`, `%4 = Transpose(%3) {perm: (0, 1, 3, 2)}` as the key of a product
Output: %k [batch, sequence, heads, depth], each of whose heads serves 4 of the query, to be cast to BFloat16
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.math.arithmetic import Div, Mul, RealDiv
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, ExpandDims, Reshape
from mspc.passes.fusion.masked_rows import elements_of

BATCH, HEADS, SEQUENCE, DEPTH = "batch", "heads", "sequence", "depth"
Roles = tuple[str, ...]
"""What each dimension of an operand is."""
LAYOUTS: dict[str, Roles] = {
    "BNSD": (BATCH, HEADS, SEQUENCE, DEPTH), "BSND": (BATCH, SEQUENCE, HEADS, DEPTH), "BSH": (BATCH, SEQUENCE, DEPTH),
}  # fmt: skip
"""Of the operator's layouts; the last one with one head, whose depth is the hidden dimension."""


@dataclass(frozen=True)
class OperandSource:
    """A value of which an operand of a product is made.

    roles: of its dimensions. passed: what is between, the last one first, with the roles of what each reads. cast: to
    which type it is still to be cast, None for its own. factor: by which it is to be multiplied. group: how many heads
    of the query look at each of its heads.
    """

    value: Value
    roles: Roles
    passed: tuple[tuple[Node, Roles], ...] = ()
    cast: DType | None = None
    factor: float = 1.0
    group: int = 1


def roles_of(rank: int, transposed: bool) -> Roles:
    """Roles of an operand of a product of `rank` dimensions; transposed: the depth stands before the sequence."""
    ends = (DEPTH, SEQUENCE) if transposed else (SEQUENCE, DEPTH)
    return (BATCH, HEADS, *ends) if rank == 4 else (BATCH, *ends)


def sources_of(operand: Value, roles: Roles, scaled: bool) -> Iterator[OperandSource]:
    """The operand itself, and one after the other what it is made of; scaled: also through factors."""
    at: OperandSource | None = OperandSource(operand, roles)
    while at is not None:
        yield at
        at = _before(at, scaled)


def source_in(sources: Sequence[OperandSource], layout: str, group: int) -> OperandSource | None:
    """The farthest source in a layout of the operator with so many heads of the query to each of its own, None where
    there is none."""
    found = [s for s in sources if s.roles == LAYOUTS[layout] and s.group == group]
    return found[-1] if found else None


def _before(at: OperandSource, scaled: bool) -> OperandSource | None:
    node = at.value
    if not isinstance(node, Node) or node.out_strategy is not None:
        return None
    if isinstance(node.op, Cast):
        floats = node.tensor_type.dtype.is_float and node.inputs[0].tensor_type.dtype.is_float
        again = at.cast is not None  # what the first one rounds away stays away
        if again or not floats:
            return None
        return _through(at, node, node.inputs[0], at.roles, cast=node.tensor_type.dtype)
    if isinstance(node.op, Transpose):
        order = node.op.order(len(at.roles))
        before = tuple(at.roles[order.index(d)] for d in range(len(order)))
        return _through(at, node, node.inputs[0], before)
    factor, rest = factor_of(node)
    if scaled and rest is not None and rest.tensor_type == node.tensor_type:
        return _through(at, node, rest, at.roles, factor=at.factor * factor)
    return _once(at, node)


def _through(at: OperandSource, node: Node, source: Value, roles: Roles, **changes: Any) -> OperandSource:
    return replace(at, value=source, roles=roles, passed=(*at.passed, (node, roles)), **changes)


def _once(at: OperandSource, node: Node) -> OperandSource | None:
    """What has every head once of which `node` has several, one after the other; None where it has not."""
    roles = at.roles
    if HEADS not in roles:
        return None
    axis = roles.index(HEADS)
    source = node.inputs[0]
    if isinstance(node.op, RepeatInterleaveInt):
        same = node.op.dim is not None and node.op.dim % len(roles) == axis
        return _through(at, node, source, roles, group=at.group * node.op.repeats) if same else None
    # (.., heads, ..) as (.., heads, 1, ..), repeated there, as (.., heads * group, ..).
    if not isinstance(node.op, Reshape) or not isinstance(source, Node) or not isinstance(source.op, BroadcastTo):
        return None
    apart = source.inputs[0]
    if not isinstance(apart, Node) or not isinstance(apart.op, Reshape | ExpandDims):
        return None
    once = apart.inputs[0]
    heads, group = (*once.shape, 0)[axis], math.prod(node.shape) // max(1, math.prod(once.shape))
    ahead, behind = node.shape[:axis], node.shape[axis + 1 :]
    wanted = ((*ahead, heads, *behind), (*ahead, heads, 1, *behind), (*ahead, heads, group, *behind))
    if (once.shape, apart.shape, source.shape) != wanted:
        return None
    parted = (*roles[: axis + 1], "", *roles[axis + 1 :])
    passed = (*at.passed, (node, parted), (source, parted), (apart, roles))
    return replace(at, value=once, passed=passed, group=at.group * group)


def factor_of(node: Node) -> tuple[float, Value | None]:
    """(factor, scaled value) of a multiplication by one number, (1.0, None) for anything else."""
    if not isinstance(node.op, Mul | Div | RealDiv):
        return 1.0, None
    left, right = node.inputs
    number = _number(right) if left.shape == node.shape else None
    if number is not None:
        return (number if isinstance(node.op, Mul) else 1 / number if number else math.inf), left
    number = _number(left) if isinstance(node.op, Mul) and right.shape == node.shape else None
    return (1.0, None) if number is None else (number, right)


def _number(value: Value) -> float | None:
    """The number that a value of one element is, made of constants; None where it is not."""
    if not isinstance(value, Constant | Node) or not value.tensor_type.dtype.is_float or math.prod(value.shape) != 1:
        return None
    found = elements_of(value)
    return None if found is None else float(np.asarray(found).item())
