"""Whether the types in a graph are what its operators make of their operands: a file that was changed by hand may say
anything."""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ops.op import Op


def check_types(graph: Graph) -> None:
    """Compare the type of every node of a known operator with the one that follows from its operands.

    Raises:
        MspcError: they differ, or the operands do not fit the operator.
    """
    for node in graph.nodes:
        if not isinstance(node.op, Op):
            continue
        try:
            made = node.op.infer(*[value.type for value in node.inputs])  # type: ignore[misc]  # as in Builder.emit
        except MspcError as error:
            raise MspcError(f"{node.label}: {error.message}", notes=error.notes, frames=node.frames) from None
        if made != node.type:
            raise MspcError(
                f"{node.label}: the type {node.type} is written, its operands make {made}", frames=node.frames
            )
