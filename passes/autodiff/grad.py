"""Expands requests for gradients into the operators that compute them: forward and backward become one graph.

Input:  `%5 = Gradient(%loss, %para1_w)`  with `%6 = TupleGetItem(%5) {index: 0}`
Output: the backward operators in its place, scopes prefixed with `Gradients/`, phase `backward`, each linked to the
forward operator it belongs to. A node that runs regions gets regions that also return what their
gradients read, and a backward node that runs the gradients of these regions (`passes/lib/region_gradients.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.text.families import common_name
from mspc.ir.types import StackType
from mspc.ops.control.regions import RegionOp, is_stack_of_parameters
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.math.elementwise import Identity
from mspc.ops.tensor.reshape import filled
from mspc.passes.base import WHOLE, Pass, rewrite_nodes
from mspc.passes.lib.batch_rows import with_rows
from mspc.passes.lib.gradients import (
    Differentiate,
    Terms,
    add_term,
    backpropagate,
    drop_own_gradients,
    keep_earlier_values,
    summed,
)


class Grad(Pass):
    """Expand every Gradient node, inner ones first; those of a graph before those of the graphs that run it."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        differentiate = _region_differentiation()
        has_regions = any(node.regions for node in graph.nodes)
        changed = False
        if has_regions:
            from mspc.passes.lib.gradients import number_calls  # late: few networks have regions

            changed = number_calls(graph)
        for each in reversed(graph.graphs()):
            changed |= _expand(each, graph, differentiate)
        for each in graph.graphs():  # an outer request passes through the own gradients of inner graphs
            changed |= drop_own_gradients(each)
        if has_regions:
            from mspc.ops.control.regions import make_names_unique  # late: few networks have regions

            make_names_unique(graph.graphs())
        return changed


def _region_differentiation() -> Differentiate:
    """Return the function that differentiates nodes with regions; it makes the gradient of a region once."""
    known: list[Differentiate] = []

    def differentiate(
        b: Builder, node: Node, douts: Sequence[Value | None], needed: set[Value]
    ) -> Sequence[Value | None]:
        if not known:
            from mspc.passes.lib.region_gradients import RegionGradients  # late: few networks have regions

            known.append(RegionGradients())
        return known[0](b, node, douts, needed)

    return differentiate


def _expand(graph: Graph, program: Graph, differentiate: Differentiate) -> bool:
    """Expand the requests that are nodes of one graph of a program."""
    if not any(isinstance(node.op, Gradient) for node in graph.nodes):
        return False
    keep_earlier_values(graph)

    def visit(b: Builder, node: Node) -> Value | None:
        if isinstance(node.op, TupleGetItem) and isinstance(node.type, StackType):
            node.type = node.op.infer(node.inputs[0].type)  # a tensor, if a loop of known count scans it
        if not isinstance(node.op, Gradient):
            return None
        builder = Builder(graph, b.nodes)
        builder.phase = "backward"
        grads = _backward(builder, node, node.op, str(program.attrs.get("mode", "")), differentiate)
        builder.forward = None
        builder.like(node)
        if program.attrs.get("outputs") == "batch":
            grads = with_rows(builder, node.inputs[node.op.outputs :][: len(grads)], grads)
        return builder.emit(MakeTuple(), *grads)

    rewrite_nodes(graph, visit)
    _mark_updates(graph)
    return True


def _mark_updates(graph: Graph) -> None:
    """Give nodes that compute an update from gradients the phase `update`."""
    computed: set[Value] = set()
    for node in graph.nodes:
        if node.phase == "backward" or any(value in computed for value in node.inputs):
            computed.add(node)
    leading: set[Value] = set()
    for node in reversed(graph.nodes):
        if node.phase == "update" or node in leading:
            leading.update(node.inputs)
            if node in computed and node.phase == "forward":
                node.phase = "update"
    for node in graph.nodes:
        if node.phase == "update" and node in computed:
            _mark_regions(node, computed)


def _mark_regions(node: Node, computed: Collection[Value]) -> None:
    """Do the same in the regions of an update."""
    op = node.op
    for number, region in enumerate(node.regions):
        assert isinstance(op, RegionOp)
        entered = [op.inside(number, i) for i, value in enumerate(node.inputs) if value in computed]
        inside: set[Value] = {region.parameters[place] for place in entered if place is not None}
        for each in region.nodes:
            if any(value in inside for value in each.inputs):
                inside.add(each)
                each.phase = "update" if each.phase == "forward" else each.phase
                _mark_regions(each, inside)


def _backward(b: Builder, request: Node, op: Gradient, mode: str, differentiate: Differentiate) -> list[Value]:
    last = len(request.inputs) - (op.outputs if op.has_sens else 0)
    outputs, wanted = request.inputs[: op.outputs], request.inputs[op.outputs : last]
    forward = list(b.nodes)
    terms: Terms = {}
    b.like(request)
    b.scope = f"Gradients/{request.scope}"
    for i, output in enumerate(outputs):
        sens = request.inputs[last + i] if op.has_sens else filled(b, 1.0, output.tensor_type)
        add_term(terms, output, sens)
    backpropagate(b, forward, terms, wanted, differentiate)
    grads: list[Value] = []
    b.like(request)
    b.scope = f"Gradients/{request.scope}"
    b.forward = None
    for value in wanted:
        found = terms.get(value)
        grad = summed(b, found) if found else _zeros(b, value)
        # An Identity is there so that one function alone reads the value.
        source = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, Identity) else value
        if found and isinstance(source, Parameter) and not isinstance(grad, Node) and mode == "data_parallel":
            grad = b.emit(Identity(), grad)  # every rank has its own; their sum is the gradient
        name = _trained_name(source, mode)
        if name and isinstance(grad, Node):
            earlier = grad.attrs.get("gradient_for")
            grad.attrs["gradient_for"] = f"{earlier},{name}" if earlier else name
        grads.append(grad)
    return grads


def _trained_name(value: Value, mode: str) -> str:
    """Return the name of a parameter, or the common name of the parameters of equal layers; "" for other values. In
    sharded modes layouts say how a stack's gradient is reduced in each iteration, so it needs no name there."""
    if isinstance(value, Parameter):
        return value.name
    if not is_stack_of_parameters(value) or mode in ("semi_auto_parallel", "auto_parallel"):
        return ""
    names = tuple(member.name for member in value.inputs)
    return (common_name(names) if len(names) > 1 else "") or ",".join(names)


def _zeros(b: Builder, value: Value) -> Value:
    if isinstance(value.type, StackType):
        from mspc.passes.lib.gradients import zeros_like  # late: few networks have stacks

        return zeros_like(b, value)
    return filled(b, 0.0, value.tensor_type)
