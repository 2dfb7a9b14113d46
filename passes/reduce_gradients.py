"""Data parallel mode: adds every parameter's gradient over all ranks before it is used.

Input:  the gradients of one rank's own batch. Output: the same with an AllReduce over all ranks behind each of them,
and a multiplication by 1/ranks where `gradients_mean` is set. The loss stays each rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.arithmetic import Mul
from mspc.ops.comm import AllReduce
from mspc.passes.base import Pass


@dataclass(frozen=True)
class ReduceGradients(Pass):
    """Insert the AllReduce of every gradient that an update uses."""

    def run(self, graph: Graph) -> bool:
        ranks = int(graph.attrs.get("ranks", 1))
        if ranks == 1:
            return False
        nodes: list[Node] = []
        builder = Builder(graph, nodes)
        reduced: dict[Value, Value] = {}
        for node in graph.nodes:
            if node.phase == "update":
                node.inputs = [reduced.get(v, v) for v in node.inputs]
            nodes.append(node)
            name = node.attrs.get("gradient_for")
            if not name:
                continue
            builder.like(node).phase = node.phase
            total = builder.emit(AllReduce(op="sum", mesh=(ranks,), axes=(0,)), node, name=node.name)
            total.attrs["mirror_user_id"] = name
            total.attrs["reason"] = f"data parallel: the gradient of {name} is the sum over all ranks' batches"
            reduced[node] = total
            if graph.attrs.get("gradients_mean"):
                factor = builder.constant(1.0 / ranks, node.tensor_type.dtype)
                reduced[node] = builder.emit(Mul(), total, factor, name=node.name)
        graph.nodes = nodes
        return bool(reduced)
