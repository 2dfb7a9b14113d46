"""The cost of a node on a rank is the bytes that it sends and the seconds that it takes by the rates of a machine; the
least time of a step under any plan follows from its products and updates, shared out over all ranks.

The figures are rough: enough to decide what should run beside a collective, and to compare layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mspc.analysis.cost.fused_lines import cost_of_lines, loaded_of_operands, sums_columns
from mspc.analysis.cost.kinds import BLOCK, kind_of_work, kinds_of_slices, product_of, share_of_scores
from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import COLUMN_SUMS, DRAWS, ELEMENTWISE, UPDATES, Machine
from mspc.ir.graph import Graph, Node, element_types, operand_types
from mspc.ir.types import FLOAT32, DType
from mspc.ops.collective.base import Collective, is_summed_by_reader
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReductionOp

UNKNOWN_GROUP = 2
"""Ranks of a group that is known by name only."""
LIKE_OTHERS: Mapping[str, str] = MappingProxyType({
    "SendToStage": "Send", "ReceiveFromStage": "Receive", "FetchRows": "AlltoAllV", "SendRows": "AlltoAllV",
})  # fmt: skip
"""Collectives that have the rates of others."""


def sent_bytes(node: Node) -> float:
    """Bytes that a rank sends for one node, in the mean of its group and by ring algorithms; 0 where it computes."""
    if not isinstance(node.op, Collective):
        return 0.0
    operand = node.op.travelling([value.type.nbytes for value in node.inputs], node.type.nbytes)
    return node.op.sent_bytes(operand, len(node.op.members) or UNKNOWN_GROUP)


def seconds(
    node: Node, machine: Machine = H200, known: dict[Graph, tuple[float, float]] | None = None
) -> float:  # fmt: skip
    """Time of one node that runs, by itself; of one that runs graphs, of all in them. known: as of `seconds_inside`."""
    if node.regions:
        return sum(seconds_inside(node, machine, {} if known is None else known))
    if isinstance(node.op, Collective):
        # Only their number is read: which ranks they are would be asked of every rank anew (`ir.varying`).
        ranks = node.op.members if len(node.op.members) else range(UNKNOWN_GROUP)
        name = LIKE_OTHERS.get(node.op.name, node.op.name)
        return machine.collective_seconds(name, sent_bytes(node), ranks)
    more = len(cost_of_lines(node).asides) + _pieces(node) - 1
    begins = machine.kernel * (1 + more * (machine.device == "GPU"))
    alone = begins + math.hypot(moving_seconds(node, machine), computing_seconds(node, machine))
    # A kernel that adds up what ranks hold works while their parts come.
    return max(0.0, alone - sum(seconds(value, machine) for value in node.inputs if is_summed_by_reader(value)))


def seconds_inside(
    node: Node, machine: Machine, known: dict[Graph, tuple[float, float]]
) -> tuple[float, float]:
    """(seconds that compute, seconds that communicate) of the graphs that a node runs: of all turns together, of one
    where nobody has counted them ahead, and of the longer one of two branches. known: of one run of graphs."""
    from mspc.ops.control.regions import (
        ONCE,
        If,  # late: most programs have no regions
    )

    found = [(0.0, 0.0)]
    for number, region in enumerate(node.regions):
        if region not in known:
            each = [
                seconds_inside(inner, machine, known) if inner.regions
                else (0.0, seconds(inner, machine)) if isinstance(inner.op, Collective)
                else (seconds(inner, machine), 0.0)
                for inner in region.nodes if not inner.op.is_view
            ]  # fmt: skip
            known[region] = sum(c for c, _ in each), sum(s for _, s in each)
        compute, communication = known[region]
        runs = ONCE.inside(node, number).count
        found.append((runs * compute, runs * communication))
    if isinstance(node.op, If):
        return max(found, key=sum)
    return sum(compute for compute, _ in found), sum(communication for _, communication in found)


def moving_seconds(node: Node, machine: Machine) -> float:
    """Time in which a node reads and writes memory, were there nothing to compute."""
    moved, kind = moved_bytes(node), kind_of_traffic(node)
    if machine.device != "GPU":
        return machine.moving_seconds(moved, kind)
    lines = cost_of_lines(node)
    asides = sum(machine.moving_seconds(nbytes, COLUMN_SUMS) for nbytes in lines.asides)
    return machine.moving_seconds(moved + lines.again, kind) + asides


def computing_seconds(node: Node, machine: Machine) -> float:
    """Time in which a node computes, were its operands at hand."""
    if not isinstance(node.op, Op):
        return 0.0
    lines = cost_of_lines(node)
    found = _alone(machine, ELEMENTWISE, lines.operations) + _alone(machine, DRAWS, lines.draws)
    operations = computed(node, machine)
    if operations:
        pieces = _pieces(node) if machine.device == "GPU" else 1
        dtype = operand_types(node)[0].dtype
        found += pieces * machine.work_seconds(kind_of_work(node), dtype, operations / pieces)
    return found


def _pieces(node: Node) -> int:
    product = product_of(node)
    return 1 if product is None else product.pieces


def computed(node: Node, machine: Machine) -> float:
    """Floating-point operations of products as a machine's kernels do them: on GPUs complete blocks of a product's
    result, and no scores that nobody sees."""
    operations = work_of(node)
    if not operations or machine.device != "GPU":
        return operations
    product = product_of(node)
    return product.filled_up if product is not None else operations * share_of_scores(node, BLOCK)


def _alone(machine: Machine, kind: str, amount: float) -> float:
    """Seconds of a kind of work that hides behind memory where a machine has no rate of it."""
    return machine.work_seconds(kind, FLOAT32, amount) if amount and kind in machine.work else 0.0


def kind_of_traffic(node: Node) -> str:
    """The kind of a node's traffic, as machines may have rates of; "" for most."""
    op = node.op
    if isinstance(op, Op) and op.traffic:
        return op.traffic
    if cost_of_lines(node).sums_columns:
        return COLUMN_SUMS
    return COLUMN_SUMS if isinstance(op, ReductionOp) and sums_columns(op, operand_types(node)[0]) else ""


def moved_bytes(node: Node) -> int:
    """Bytes that a node reads and writes: its operands, its result, and what it overwrites beside that. Of what a slice
    or a lookup takes a part of it reads that part; so does a kernel that reads at other places."""
    op, made = node.op, node.type.nbytes
    read = loaded_of_operands(node) or [value.type.nbytes for value in node.inputs]
    if not isinstance(op, Op):
        return sum(read) + made
    touched = op.touched_bytes(operand_types(node), element_types(node.type))
    if touched is not None:
        return touched
    if read and (op.moves or op.selects):
        read[0] = min(read[0], made)
    return sum(read) + max(made, sum(node.inputs[i].type.nbytes for i in op.mutates))


def work_of(node: Node) -> float:
    """Floating-point operations of a node's products of matrices; 0 for what memory bounds."""
    return node.op.operations(operand_types(node)) if isinstance(node.op, Op) else 0.0


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
    products: dict[tuple[tuple[str, ...], DType], list[float]] = {}
    for node in nodes:
        if not isinstance(node.op, Op) or "unused" in node.attrs or node.attrs.get("recomputed"):
            continue
        operations = work_of(node)
        if operations:
            key = kinds_of_slices(node), operand_types(node)[0].dtype
            products.setdefault(key, []).append(operations * share_of_scores(node))
        elif node.phase == "update" and node.op.mutates:
            updated += BOTH_WAYS * sum(node.inputs[i].type.nbytes for i in node.op.mutates)
    found = 0.0
    for (kinds, dtype), each in products.items():
        rates, together = [machine.work_rate(kind, dtype) for kind in kinds], sum(each)
        for operations in each:
            own = operations / ranks
            found += machine.kernel / TOGETHER + own / max(rate.best(own, together) for rate in rates)
    if updated:
        rate = machine.traffic.get(UPDATES, machine.memory)
        found += machine.kernel + updated / ranks / rate.best(updated / ranks, updated)
    return found
