"""Finds what a plan may keep in the host's memory, and marks it as a script's own `offload()` does: cells whose values
gradients read, and states of optimizers."""

from __future__ import annotations

from collections.abc import Collection

from mspc.ir.graph import OFFLOAD, Graph, Parameter
from mspc.passes.autodiff.recomputable_cells import within

AUTO = "Auto"


def mark_offloaded(graph: Graph, cells: Collection[str]) -> list[str]:
    """Mark the forward operators of cells to have on the host what gradients read of them. What the script has marked,
    or what is computed again, stays so.

    Returns:
        The cells that have no operator.
    """
    forward = [node for node in graph.nodes if node.phase == "forward"]
    missing: list[str] = []
    for cell in cells:
        own = [node for node in forward if within(node.scope, cell)]
        for node in own:
            if not node.attrs.get("recompute"):
                node.attrs.setdefault(OFFLOAD, f"{cell}, {AUTO}")
        if not own:
            missing.append(cell)
    return missing


def states_of(graph: Graph) -> list[Parameter]:
    """The parameters that updates change beside trained ones, and which are of the shape of one: no counters."""
    trained = {p.shape for p in graph.parameters if p.trainable}
    changed = {node.inputs[i] for node in graph.nodes if node.phase == "update" for i in node.op.mutates}
    return [
        p for p in graph.parameters
        if p in changed and not p.trainable and p.shape in trained and p.tensor_type.size > 1
    ]  # fmt: skip


def mark_states(graph: Graph) -> int:
    """Let states of optimizers live on the host, each fetched when the compiler finds it best. How many there are."""
    found = states_of(graph)
    for state in found:
        state.attrs.setdefault(OFFLOAD, 0)
    return len(found)
