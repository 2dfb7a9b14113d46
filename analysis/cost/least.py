"""The least time of a step under any plan: that of the network's products and updates, shared out over all ranks.

However operators are sharded, fused and ordered, every product is computed somewhere, a rank has its share of one at
least, and one after the other they are on one stream; updates read and write every parameter. All else may hide:
collectives behind what is computed, what works element by element in the operators around it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import kind_of_work, work_of
from mspc.ir.graph import Node, operand_types
from mspc.ir.types import DType
from mspc.ops.op import Op

BOTH_WAYS = 2
"""An update reads what it writes."""
TOGETHER = 3
"""Products that become one at most: those in front of an attention."""


def least_seconds(nodes: Iterable[Node], ranks: int, machine: Machine) -> float:
    """Seconds of a step by `Timeline` at least, whatever the plan.

    Args:
        nodes: of the graph that all ranks share, with the types of global tensors; what is recomputed does not
        count.
    """
    updated = 0
    products: dict[tuple[str, DType], list[float]] = {}
    for node in nodes:
        if not isinstance(node.op, Op) or "unused" in node.attrs or node.attrs.get("recomputed"):
            continue
        operations = work_of(node)
        if operations:
            key = kind_of_work(node.op), operand_types(node)[0].dtype
            products.setdefault(key, []).append(operations)
        elif node.phase == "update" and node.op.mutates:
            updated += BOTH_WAYS * sum(node.inputs[i].type.nbytes for i in node.op.mutates)
    found = 0.0
    for (kind, dtype), each in products.items():
        rate, together = machine.work_rate(kind, dtype), sum(each)
        for operations in each:
            own = operations / ranks
            found += machine.kernel / TOGETHER + own / rate.best(own, together)
    if updated:
        found += machine.kernel + updated / ranks / machine.memory.best(updated / ranks, updated)
    return found
