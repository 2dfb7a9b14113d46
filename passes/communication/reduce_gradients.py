"""In data parallel mode, adds every parameter's gradient over all ranks before it is used.

Input:  the gradients of one rank's own batch. Output: the same with an AllReduce over all ranks behind each of them,
and a multiplication by 1/ranks where `gradients_mean` is set. The loss stays each rank's own. Gradients that the script
adds up itself, as by `nn.DistributedGradReducer`, are left to it, and those of parameters with `layerwise_parallel`, of
which every rank has its own. A gradient that another gradient is computed from, as in an inner step, stays each rank's
own, too.
"""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Mul
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.communication.wide_sums import emit_collective
from mspc.passes.needs import GLOBAL


@dataclass(frozen=True)
class ReduceGradients(Pass):
    """Insert the AllReduce of every gradient that an update uses."""

    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        ranks = int(graph.attrs.get("ranks", 1))
        if ranks == 1:
            return False
        wanted = summed_gradients(graph)
        reduced: dict[Value, Value] = {}
        ready: list[Node] = []
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.phase == "update":
                if ready:  # those of one optimizer side by side; another one may follow
                    reduced |= _reduce(Builder(graph, nodes), ready, ranks)
                    ready = []
                node.inputs = [reduced.get(v, v) for v in node.inputs]
            nodes.append(node)
            if node in wanted:
                ready.append(node)
        graph.nodes = nodes
        return bool(reduced)


def summed_gradients(graph: Graph) -> set[Node]:
    """The gradients that are added over ranks with rows of their own."""
    by_script = _reduced_by_script(graph)
    own = {p.name for p in graph.parameters if p.attrs.get("layerwise_parallel")}
    used = _used_by_updates(graph)
    return {node for node in graph.nodes if _names(node) - own and node in used and node not in by_script}


def _used_by_updates(graph: Graph) -> set[Value]:
    """Gradients that lead to an update otherwise than through another gradient: one that a loss is computed from, as
    in an inner step of meta-learning, is each rank's own."""
    leading: set[Value] = set()
    for node in reversed(graph.nodes):
        if (isinstance(node.op, Op) and node.op.mutates) or (node in leading and not _names(node)):
            leading.update(node.inputs)
    return leading


def _names(gradient: Node) -> set[str]:
    """Of the parameters whose gradient this is."""
    return {name for name in str(gradient.attrs.get("gradient_for", "")).split(",") if name}


def _reduced_by_script(graph: Graph) -> set[Value]:
    """What leads to updates through a collective of the script's alone. Whether an update happens at all, which may
    depend on a gradient too, says nothing of how it is added up."""
    into_updates: set[Value] = set()
    into_collectives: set[Value] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.op, Collective) and node.op.agrees:
            into_collectives.update(node.inputs)
            continue
        if node in into_collectives:
            into_collectives.update(node.inputs)
        if (isinstance(node.op, Op) and node.op.mutates) or (node in into_updates and not _is_condition(node)):
            into_updates.update(node.inputs)
    return into_collectives - into_updates


def _is_condition(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.dtype == BOOL


def _reduce(b: Builder, gradients: list[Node], ranks: int) -> dict[Value, Value]:
    """Emit the reductions of all gradients, side by side so that they can share buckets, and then the means."""
    totals: dict[Value, Node] = {}
    for node in gradients:
        name = node.attrs["gradient_for"]
        b.like(node).phase = "backward"
        sent, totals[node] = emit_collective(b, AllReduce(op="sum", mesh=(ranks,), axes=(0,)), node, None, node.name)
        sent.attrs["mirror_user_id"] = name
        sent.attrs["reason"] = f"data parallel: the gradient of {name} is the sum over all ranks' batches"
    if not b.graph.attrs.get("gradients_mean"):
        return dict(totals)
    means: dict[Value, Value] = {}
    for node, total in totals.items():
        b.like(total)
        means[node] = b.emit(Mul(), total, b.constant(1.0 / ranks, total.tensor_type.dtype), name=total.name)
    return means
