"""Data parallel mode: adds every parameter's gradient over all ranks before it is used.

Input:  the gradients of one rank's own batch. Output: the same with an AllReduce over all ranks behind each of them,
and a multiplication by 1/ranks where `gradients_mean` is set. The loss stays each rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Mul
from mspc.passes.base import Pass
from mspc.passes.needs import WHOLE, Need


@dataclass(frozen=True)
class ReduceGradients(Pass):
    """Insert the AllReduce of every gradient that an update uses."""

    needs: ClassVar[tuple[Need, ...]] = (WHOLE,)

    def run(self, graph: Graph) -> bool:
        ranks = int(graph.attrs.get("ranks", 1))
        if ranks == 1:
            return False
        gradients = [node for node in graph.nodes if node.attrs.get("gradient_for")]
        reduced: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.phase == "update":
                if not reduced and gradients:
                    reduced = _reduce(Builder(graph, nodes), gradients, ranks)
                node.inputs = [reduced.get(v, v) for v in node.inputs]
            nodes.append(node)
        graph.nodes = nodes
        return bool(reduced)


def _reduce(b: Builder, gradients: list[Node], ranks: int) -> dict[Value, Value]:
    """Emit the reductions of all gradients, side by side so that they can share buckets, and then the means."""
    totals: dict[Value, Node] = {}
    for node in gradients:
        name = node.attrs["gradient_for"]
        b.like(node).phase = "backward"
        total = b.emit(AllReduce(op="sum", mesh=(ranks,), axes=(0,)), node, name=node.name)
        total.attrs["mirror_user_id"] = name
        total.attrs["reason"] = f"data parallel: the gradient of {name} is the sum over all ranks' batches"
        totals[node] = total
    if not b.graph.attrs.get("gradients_mean"):
        return dict(totals)
    means: dict[Value, Value] = {}
    for node, total in totals.items():
        b.like(total)
        means[node] = b.emit(Mul(), total, b.constant(1.0 / ranks, total.tensor_type.dtype), name=total.name)
    return means
