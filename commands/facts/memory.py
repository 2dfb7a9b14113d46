"""Memory of a rank's step: bytes by their use, and the blocks of the arena while a step runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mspc.analysis.aliasing import last_reads, viewed_operands
from mspc.ir.graph import Graph, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import extracted_elements
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_classes import CLASSES


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a rank's planned step, see `MemoryPlan`. step: all except parameters, inputs and constants; never less
    than `lower_bound`. gradients, activations, temporary: the most of each that is alive at once, see
    `runtime.memory_classes`. states_on_host, values_on_host: in host memory, not contained in the others."""

    weights: int
    states: int
    inputs: int
    constants: int
    step: int
    lower_bound: int
    gradients: int
    activations: int
    temporary: int
    states_on_host: int = 0
    values_on_host: int = 0

    @property
    def total(self) -> int:
        """All memory of the device."""
        return self.weights + self.states + self.inputs + self.constants + self.step

    @property
    def on_host(self) -> int:
        """All memory of the host."""
        return self.states_on_host + self.values_on_host


def memory_row(plan: MemoryPlan) -> MemoryRow:
    """Return the figures of a plan."""
    return MemoryRow(
        plan.weights, plan.states, plan.inputs, plan.constants,
        plan.arena, plan.lower_bound, plan.gradients, plan.activations, plan.temporary,
        plan.kept_on_host, plan.host_arena,
    )  # fmt: skip


def memory_sizes(plan: MemoryPlan) -> dict[str, int]:
    """Return the figures of a plan and their sums, by the names of the page."""
    row = memory_row(plan)
    return asdict(row) | {"arena": row.step, "peak": row.total, "on_host": row.on_host}


def memory_blocks(graph: Graph, plan: MemoryPlan) -> dict[str, Any]:
    """Return the memory of a step in the form of the page.

    `sizes` are the bytes of permanent storage and of the arena. `blocks` has a row for every block of the arena:
    offset, bytes, the first and the last node for which it is held, and the nodes with results in it. `kinds` has the
    index of each block's class in `classes`.
    """
    last = _last_reads(graph)
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.is_view and node not in plan.copied:
            continue
        for number, (place, name) in enumerate(zip(plan.places[node], plan.classes[node], strict=True)):
            until = max(last.get((node, number), index), index)
            if place.kind != "arena" or not place.nbytes:
                continue
            if node in plan.shadow_weights.copies:  # it persists between steps
                found[place.offset, place.nbytes] = [[0, len(graph.nodes), [index], CLASSES.index(name)]]
            else:
                _extend(found.setdefault((place.offset, place.nbytes), []), index, until, CLASSES.index(name))
    blocks = sorted(([*key, *rest] for key, rows in found.items() for rest in rows), key=lambda row: (row[2], row[0]))
    return {
        "sizes": memory_sizes(plan),
        "classes": CLASSES,
        "blocks": [row[:-1] for row in blocks],
        "kinds": [row[-1] for row in blocks],
    }  # fmt: skip


def _last_reads(graph: Graph) -> dict[tuple[Value, int], int]:
    """Return the position of the last node that reads each tensor, by (value, index of the tensor in it)."""
    last_of = last_reads(graph, viewed_operands)
    found: dict[tuple[Value, int], int] = {}
    for index, node in enumerate(graph.nodes):
        until = last_of.get(node, index) if node.op.is_view else index
        for operand in node.inputs:
            taken = extracted_elements(node.op)
            own = range(len(element_types(operand.type))) if taken is None else taken
            found.update({(operand, k): max(until, found.get((operand, k), 0)) for k in own})
    for value in graph.results:
        found.update({(value, k): len(graph.nodes) for k in range(len(element_types(value.type)))})
    return found


def _extend(rows: list[list[Any]], index: int, until: int, number: int) -> None:
    """Add a result to the rows of a block: to the last row if that is still alive and has the same class, else as a new
    row."""
    if rows and rows[-1][1] >= index and rows[-1][3] == number:
        rows[-1][1] = max(rows[-1][1], until)
        rows[-1][2].append(index)
        return
    if rows and rows[-1][1] >= index:
        rows[-1][1] = index - 1  # overwritten
    rows.append([index, until, [index], number])
