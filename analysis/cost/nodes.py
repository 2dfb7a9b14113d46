"""The cost of a node on a rank is the bytes that it sends and the seconds that it takes by the rates of a machine; the
least time of a step under any plan follows from its products and updates, shared out over all ranks.

The figures are rough: enough to decide what should run beside a collective, and to compare layouts.
"""

from __future__ import annotations

from collections.abc import Iterable

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import POINTWISE, PRODUCTS, Machine
from mspc.ir.graph import Node, operand_types
from mspc.ir.types import DType
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op

UNKNOWN_GROUP = 2
"""Ranks of a group that is known by name only."""


def sent_bytes(node: Node) -> float:
    """Bytes that a rank sends for one node, in the mean of its group and by ring algorithms; 0 where it computes."""
    if not isinstance(node.op, Collective):
        return 0.0
    operand = sum(value.type.nbytes for value in node.inputs)
    return node.op.sent_bytes(operand, len(node.op.members) or UNKNOWN_GROUP)


def seconds(node: Node, machine: Machine = H200) -> float:
    """Time of one node that runs, by itself."""
    if isinstance(node.op, Collective):
        # Only their number is read: which ranks they are would be asked of every rank anew (`ir.varying`).
        ranks = node.op.members if len(node.op.members) else range(UNKNOWN_GROUP)
        return machine.collective_seconds(node.op.name, sent_bytes(node), ranks)
    return machine.kernel + max(machine.memory.seconds(moved_bytes(node)), _computing(node, machine))


def moved_bytes(node: Node) -> int:
    """Bytes that a node reads and writes: its operands, its result, and what it overwrites beside that. Of what a slice
    or a lookup takes a part of it reads that part."""
    op, made = node.op, node.type.nbytes
    read = [value.type.nbytes for value in node.inputs]
    if not isinstance(op, Op):
        return sum(read) + made
    if read and (op.moves or op.selects):
        read[0] = min(read[0], made)
    return sum(read) + max(made, sum(node.inputs[i].type.nbytes for i in op.mutates))


def work_of(node: Node) -> float:
    """Floating-point operations of a node's products of matrices; 0 for what memory bounds."""
    return node.op.operations(operand_types(node)) if isinstance(node.op, Op) else 0.0


def _computing(node: Node, machine: Machine) -> float:
    """Seconds in which matrices are multiplied."""
    if not isinstance(node.op, Op):
        return 0.0
    types = operand_types(node)
    operations = node.op.operations(types)
    return machine.work_seconds(kind_of_work(node.op), types[0].dtype, operations) if operations else 0.0


def kind_of_work(op: Op) -> str:
    """The kind of an operator's products, as machines have rates of."""
    if op.work == PRODUCTS:
        return op.work
    from mspc.ops.convolution.base import Convolution  # late: few networks have any

    pointwise = isinstance(op, Convolution) and all(places == 1 for places in op.sizes())
    return POINTWISE + op.work if pointwise else op.work


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
