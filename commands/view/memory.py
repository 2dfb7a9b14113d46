"""What lives in a rank's memory while its step runs, by the plan that executors have."""

from __future__ import annotations

from typing import Any

from mspc.analysis.lifetimes import last_reads, viewed_operands
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ops.check_graph import check_graph
from mspc.ops.op import Op
from mspc.runtime.memory_plan import plan_memory


def memory_facts(graph: Graph) -> dict[str, Any]:
    """The memory of a step.

    `sizes` are the bytes of what stands all the time and of the arena; `blocks` has a row for every piece of the arena:
    offset, bytes, the first and the last node for which it is kept, and the nodes whose results stand in it.
    """
    plan = plan_memory(graph)
    last = last_reads(graph, viewed_operands)
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.is_view and node not in plan.copied:
            continue
        until = max(last.get(node, index), index)
        for place in plan.places[node]:
            if place.kind == "arena" and place.nbytes:
                _extend(found.setdefault((place.offset, place.nbytes), []), index, until)
    blocks = [[*key, *rest] for key, rows in found.items() for rest in rows]
    return {
        "sizes": {
            "weights": plan.weights, "states": plan.states, "inputs": plan.inputs, "constants": plan.constants,
            "arena": plan.arena, "gradients": plan.gradients, "activations": plan.activations,
            "lower_bound": plan.lower_bound, "peak": plan.peak,
        },
        "blocks": sorted(blocks, key=lambda row: (row[2], row[0])),
    }  # fmt: skip


def _extend(rows: list[list[Any]], index: int, until: int) -> None:
    """Add a result to the rows of a place: to the last one where it stands in what that one still holds."""
    if rows and rows[-1][1] >= index:
        rows[-1][1] = max(rows[-1][1], until)
        rows[-1][2].append(index)
    else:
        rows.append([index, until, [index]])


def is_planned(graph: Graph) -> bool:
    """Whether the memory of a graph can be planned: it is a rank's own, its operators are known and operands fit."""
    if "rank" not in graph.attrs or not all(isinstance(node.op, Op) for node in graph.nodes):
        return False
    try:
        check_graph(graph)
    except MspcError:
        return False
    return True
