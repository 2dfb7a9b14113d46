"""In data parallel mode, adds every parameter's gradient over all ranks before it is used.

Input:  the gradients of one rank's own batch. Output: the same with an AllReduce over all ranks after each of them,
and a multiplication by 1/ranks if `gradients_mean` is set. The loss stays each rank's own. Gradients that the script
adds up itself, as by `nn.DistributedGradReducer`, are left to it, and those of parameters with `layerwise_parallel`, of
which every rank has its own. A gradient that another gradient is computed from, as in an inner step, stays each rank's
own, too. Regions are opened: a gradient may be computed in a loop or a branch, and used in another one. It is added up
in the region that computes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.text.families import gradient_names
from mspc.ir.types import BOOL, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import RegionOp, is_stack_of_parameters
from mspc.ops.control.structural import Decide, RegionBoundary, carried_values
from mspc.ops.math.arithmetic import Mul
from mspc.ops.op import Op
from mspc.passes.base import GLOBAL, WHOLE, Pass
from mspc.passes.lib.opened_graphs import opened, unshare_regions
from mspc.passes.lib.redistribution import emit_collective

Trained = dict[Value, list[Parameter]]
"""The parameters of the program whose gradients nodes are."""


class ReduceGradients(Pass):
    needs = (GLOBAL,)
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        ranks = int(graph.attrs.get("ranks", 1))
        trained = trained_parameters(graph) if ranks > 1 else {}
        if not trained:
            return False
        with opened(graph):
            return _Reducer(graph, trained, ranks).run()


def summed_gradients(graph: Graph) -> set[Node]:
    """The gradients that are added over ranks with rows of their own, those in regions, too."""
    trained = trained_parameters(graph)
    with opened(graph):
        return _gradients_to_reduce(graph, trained, _readers_for_updates(graph, trained))


def trained_parameters(graph: Graph) -> Trained:
    """Return the parameters whose gradients nodes of a graph and its regions are. Gradients of inputs are left out:
    they are of a rank's own rows. A region that several nodes run is copied for each, as operands may differ."""
    unshare_regions(graph)
    found: Trained = {}
    _find_trained(graph, {p: [p] for p in graph.parameters if p.kind == "parameter"}, found)
    return found


def _find_trained(graph: Graph, origins: dict[Value, list[Parameter]], found: Trained) -> None:
    """origins: the program's parameters that parameters of a graph stand for."""
    named = {p.name: origins.get(p, []) for p in graph.parameters}
    for node in graph.nodes:
        trained = [parameter for name in gradient_names(node) for parameter in named.get(name, ())]
        if trained:
            found[node] = trained
        for number, region in enumerate(node.regions):
            assert isinstance(node.op, RegionOp)
            inside: dict[Value, list[Parameter]] = {}
            places = node.op.places(number, [value.type for value in node.inputs])
            for value, place in zip(node.inputs, places, strict=True):
                members = value.inputs if is_stack_of_parameters(value) else [value]
                standing = [parameter for member in members for parameter in origins.get(member, ())]
                inside |= {region.parameters[i]: standing for i in place if standing}
            _find_trained(region, inside, found)


def _gradients_to_reduce(graph: Graph, trained: Trained, readers: set[Node]) -> set[Node]:
    """Return the gradients of an opened graph that lead to updates, but not through the script's own reductions."""
    used = {value for node in readers for value in node.inputs}
    by_script = _reduced_by_script(graph)
    own = {node for node, those in trained.items() if any(p.attrs.get("layerwise_parallel") for p in those)}
    return {node for node in graph.nodes if node in trained and node in used - by_script - own}


def _operands(node: Node, turns: Mapping[Value, Value]) -> list[Value]:
    """Return the operands of a node of an opened graph, with those from other iterations of its loop."""
    return [*node.inputs, turns[node]] if node in turns else node.inputs


def _readers_for_updates(graph: Graph, trained: Trained) -> set[Node]:
    """Return the nodes that lead to updates otherwise than through another gradient: one that a loss is computed from,
    as in an inner step of meta-learning, is each rank's own."""
    turns = carried_values(graph)
    deciding = {node.op.owner for node in graph.nodes if isinstance(node.op, RegionBoundary) and node.op.op.mutates}
    readers: set[Node] = set()
    leading: set[Value] = set()
    known = -1
    while known < len(leading):  # again, as an iteration of a loop reads the results of the one before
        known = len(leading)
        for node in reversed(graph.nodes):
            decides = isinstance(node.op, Decide) and node.op.owner in deciding
            updates = isinstance(node.op, Op) and bool(node.op.mutates)
            if updates or decides or (node in leading and node not in trained):
                readers.add(node)
                leading.update(_operands(node, turns))
        known = known if turns else len(leading)
    return readers


def _reduced_by_script(graph: Graph) -> set[Value]:
    """Return the nodes that lead to updates only through a collective of the script. The condition of an update, which
    may depend on a gradient too, does not count."""
    turns = carried_values(graph)
    into_updates: set[Value] = set()
    into_collectives: set[Value] = set()
    known = -1
    while known < len(into_updates) + len(into_collectives):
        known = len(into_updates) + len(into_collectives)
        for node in reversed(graph.nodes):
            if isinstance(node.op, Collective) and node.op.agrees:
                into_collectives.update(node.inputs)
                continue
            if node in into_collectives:
                into_collectives.update(_operands(node, turns))
            is_condition = isinstance(node.type, TensorType) and node.type.dtype == BOOL
            if (isinstance(node.op, Op) and node.op.mutates) or (node in into_updates and not is_condition):
                into_updates.update(_operands(node, turns))
        known = known if turns else len(into_updates) + len(into_collectives)
    return into_collectives - into_updates


class _Reducer:
    """Inserts the reductions into an opened graph.

    ready: for the graph and each region around the current node, innermost last, the gradients whose first reader on
    the way to an update is still to come."""

    def __init__(self, graph: Graph, trained: Trained, ranks: int) -> None:
        self.graph, self.trained, self.ranks = graph, trained, ranks
        self.readers = _readers_for_updates(graph, trained)
        self.wanted = _gradients_to_reduce(graph, trained, self.readers)
        self.nodes: list[Node] = []
        self.ready: list[list[Node]] = [list[Node]()]
        self.reduced: dict[Value, Value] = {}

    def run(self) -> bool:
        for node in self.graph.nodes:
            if isinstance(node.op, RegionBoundary):
                if node.op.region:
                    self.ready.pop()
                if not node.op.is_end:
                    self.ready.append([])
            if node.phase == "update" or (node in self.readers and any(v in self.wanted for v in node.inputs)):
                if self.ready[-1]:  # those of one optimizer side by side; another one may follow
                    self._emit_reductions(self.ready[-1])
                    self.ready[-1].clear()
                node.inputs = [self.reduced.get(v, v) for v in node.inputs]
            self.nodes.append(node)
            if node in self.wanted:
                self.ready[-1].append(node)
        self.graph.nodes = self.nodes
        return bool(self.reduced)

    def _emit_reductions(self, gradients: list[Node]) -> None:
        """Emit the reductions, side by side so that they can share buckets, and then the means."""
        b, ranks = Builder(self.graph, self.nodes), self.ranks
        totals: dict[Value, Node] = {}
        for node in gradients:
            name = node.attrs["gradient_for"]
            b.like(node).phase = "backward"
            op = AllReduce(op="sum", mesh=(ranks,), axes=(0,))
            sent, totals[node] = emit_collective(b, op, node, None, node.name)
            sent.attrs["mirror_user_id"] = name
            sent.attrs["reason"] = f"data parallel: the gradient of {name} is the sum over all ranks' batches"
        if not self.graph.attrs.get("gradients_mean"):
            self.reduced |= totals
            return
        for node, total in totals.items():
            b.like(total)
            self.reduced[node] = b.emit(Mul(), total, b.constant(1.0 / ranks, total.tensor_type.dtype), name=total.name)
