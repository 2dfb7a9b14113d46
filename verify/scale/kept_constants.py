"""Lets dimensions keep their sizes that only constants have: one device and ranks need not make these smaller alike."""

from __future__ import annotations

from mspc.ir.graph import Constant, Node, Value
from mspc.ops.collective.base import Collective
from mspc.verify.scale.sizes import Dims, Sizing


def keep_constants(sizing: Sizing) -> None:
    """Freeze dimensions that constants alone have, and what is made of them."""
    sizing.divisors.settle()
    all_dims = sizing.all_dims()
    made: set[Value] = set()
    for value in all_dims:
        if isinstance(value, Constant) or (isinstance(value, Node) and _is_of(value, made)):
            made.add(value)
    others = {unknown for value, dims in all_dims.items() if value not in made for unknown in _unknowns(sizing, dims)}
    for value in made:
        sizing.divisors.freeze(unknown for unknown in _unknowns(sizing, all_dims[value]) if unknown not in others)


def _is_of(node: Node, made: set[Value]) -> bool:
    """Whether a node is made of constants, or of nothing."""
    return not node.regions and not isinstance(node.op, Collective) and made.issuperset(node.inputs)


def _unknowns(sizing: Sizing, dims: Dims) -> list[int]:
    return [unknown for tensor in dims for dim in tensor for unknown in sizing.divisors.resolved(dim)]
