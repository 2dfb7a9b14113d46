"""The page shows what lives in a rank's memory while its step runs, by the plan that executors have."""

from __future__ import annotations

from typing import Any

from mspc.analysis.lifetimes import last_reads, viewed_operands
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Value, element_types
from mspc.ops.check_graph import check_graph
from mspc.ops.control.structural import taken_elements
from mspc.ops.op import Op
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_classes import CLASSES
from mspc.runtime.memory_plan import plan_memory


def memory_facts(graph: Graph) -> dict[str, Any]:
    """The memory of a step.

    `sizes` are the bytes of what is stored all the time and of the arena; `blocks` has a row for every block of the
    arena: offset, bytes, the first and the last node for which it is held, and the nodes whose results are in it;
    `kinds` which of `classes` these are.
    """
    plan = plan_memory(graph)
    last = _last_reads(graph)
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.is_view and node not in plan.copied:
            continue
        for number, (place, name) in enumerate(zip(plan.places[node], plan.classes[node], strict=True)):
            until = max(last.get((node, number), index), index)
            if place.kind != "arena" or not place.nbytes:
                continue
            if node in plan.shadow_weights.copies:  # it stands from step to step
                found[place.offset, place.nbytes] = [[0, len(graph.nodes), [index], CLASSES.index(name)]]
            else:
                _extend(found.setdefault((place.offset, place.nbytes), []), index, until, CLASSES.index(name))
    blocks = sorted(([*key, *rest] for key, rows in found.items() for rest in rows), key=lambda row: (row[2], row[0]))
    return {
        "sizes": sizes_of(plan),
        "classes": CLASSES,
        "blocks": [row[:-1] for row in blocks],
        "kinds": [row[-1] for row in blocks],
    }  # fmt: skip


def sizes_of(plan: MemoryPlan) -> dict[str, int]:
    """Bytes of what is stored all the time, of the arena and of the classes in it; and what lies on the host."""
    return {
        "weights": plan.weights, "states": plan.states, "inputs": plan.inputs, "constants": plan.constants,
        "arena": plan.arena, "gradients": plan.gradients, "activations": plan.activations,
        "temporary": plan.temporary, "lower_bound": plan.lower_bound, "peak": plan.peak,
        "on_host": plan.on_host,
    }  # fmt: skip


def _last_reads(graph: Graph) -> dict[tuple[Value, int], int]:
    """For every tensor of every value that is read or returned the position of the last node that reads it."""
    last_of = last_reads(graph, viewed_operands)
    found: dict[tuple[Value, int], int] = {}
    for index, node in enumerate(graph.nodes):
        until = last_of.get(node, index) if node.op.is_view else index
        for operand in node.inputs:
            taken = taken_elements(node.op)
            own = range(len(element_types(operand.type))) if taken is None else taken
            found.update({(operand, k): max(until, found.get((operand, k), 0)) for k in own})
    for value in graph.results:
        found.update({(value, k): len(graph.nodes) for k in range(len(element_types(value.type)))})
    return found


def _extend(rows: list[list[Any]], index: int, until: int, number: int) -> None:
    """Add a result to the rows of a place: to the last one where it is in what that one still holds, and is of the
    same class."""
    if rows and rows[-1][1] >= index and rows[-1][3] == number:
        rows[-1][1] = max(rows[-1][1], until)
        rows[-1][2].append(index)
        return
    if rows and rows[-1][1] >= index:
        rows[-1][1] = index - 1  # overwritten
    rows.append([index, until, [index], number])


def is_planned(graph: Graph) -> bool:
    """Whether the memory of a graph can be planned: it is a rank's own, its operators are known and operands fit."""
    if "rank" not in graph.attrs or not all(isinstance(node.op, Op) for node in graph.nodes):
        return False
    try:
        check_graph(graph)
    except MspcError:
        return False
    return True
