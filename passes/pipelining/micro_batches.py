"""Finds the loop over micro-batches, of which a program has one at most, and checks who reads its sums."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ops.control.loops import Scan
from mspc.ops.control.structural import Depend

_SUMS = "accu_grads."
"""How MindSpore names parameters to which it adds the gradients of micro-batches behind a script's back."""


def check_sums(graph: Graph) -> None:
    """Raise MspcError where something is computed of a parameter to which MindSpore would add gradients."""
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if isinstance(value, Parameter) and value.name.startswith(_SUMS) and not isinstance(node.op, Depend):
                if index not in node.op.mutates:
                    raise node.error(
                        f"{node.label} reads {value.name!r}, to which nothing adds gradients here",
                        ["the gradients of a PipelineCell are sums over its micro-batches: use them themselves"],
                        RuntimeError,
                    )


def micro_batch_loop(graph: Graph) -> Node | None:
    """The loop over micro-batches. Raises MspcError where there are several."""
    found = [node for node in graph.nodes if isinstance(node.op, Scan) and node.op.micro_batches]
    if len(found) > 1:
        raise found[1].error(
            "a program with several stages has one loop over micro-batches, and this is the second",
            ["call one PipelineCell in a step"],
        )
    return found[0] if found else None
