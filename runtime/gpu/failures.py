"""What is said of a node that fails on a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.runtime.faults.failure import NodeFailure
from mspc.runtime.gpu.progress import out_of_memory


def failure_of(
    error: Exception, node: Node | None, what: str, graph: Graph, place: tuple[int, int], peak: int,
    memory: Mapping[str, int],
) -> NodeFailure:  # fmt: skip
    """The error of a rank.

    Args:
        node: that raised `error`; None: the graph itself. what: it did: "failed". place: the rank, and the index of its
        GPU. peak, memory: see `out_of_memory`.
    """
    rank, gpu = place
    message = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}"
    notes = list(error.notes) if isinstance(error, MspcError) else []
    label = "the graph" if node is None else node.label
    index, region = _place_of(node, graph)
    frames = node.frames if node is not None else ()
    if type(error).__name__ == "OutOfMemoryError":
        found = out_of_memory(node, _asked_bytes(error), peak, memory, rank, gpu)
        return NodeFailure(*found, frames, index, region)
    if node is not None:
        operands = ", ".join(str(value.type) for value in node.inputs)
        notes.append(f"its operands are ({operands}), its result {node.type}")
    return NodeFailure(f"{label} {what} on rank {rank} (GPU {gpu}): {message}", notes, frames, index, region)


def _place_of(node: Node | None, graph: Graph) -> tuple[int, str]:
    """The place of a node in its graph, and that graph's name where it is a region; -1 for none."""
    for each in graph.graphs():
        if node in each.nodes:
            return each.nodes.index(node), "" if each is graph else each.name
    return -1, ""


def _asked_bytes(error: Exception) -> int:
    """How many bytes CuPy was asked for and had not."""
    asked = re.search(r"[\d,]+", str(error))
    return int(asked[0].replace(",", "")) if asked else 0
