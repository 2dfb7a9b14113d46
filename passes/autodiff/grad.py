"""Expands requests for gradients into the operators that compute them: forward and backward become one graph.

Input:  `%5 = Gradient(%loss, %para1_w)`  with `%6 = TupleGetItem(%5) {index: 0}`
Output: the backward operators in its place, scopes prefixed with `Gradients/`, phase `backward`, each linked to the
forward operator it belongs to. Reverse mode: operators are visited from the last to the first, every operator's
`bprop` is asked once, and the terms of one gradient are added by a single AddN so that a sharded sum is reduced once.
"""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import NotDifferentiable, Op
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.passes.autodiff.custom_gradients import drop_own_gradients
from mspc.passes.autodiff.earlier_values import keep_earlier_values
from mspc.passes.base import WHOLE, Pass
from mspc.passes.sharding.batch import with_rows


@dataclass(frozen=True)
class Grad(Pass):
    """Expand every Gradient node, inner ones first."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Gradient) for node in graph.nodes):
            return drop_own_gradients(graph)
        keep_earlier_values(graph)
        nodes: list[Node] = []
        replaced: dict[Value, Value] = {}
        for node in graph.nodes:
            node.inputs = [replaced.get(v, v) for v in node.inputs]
            if not isinstance(node.op, Gradient):
                nodes.append(node)
                continue
            builder = Builder(graph, nodes)
            builder.phase = "backward"
            grads = _backward(builder, node, node.op)
            builder.forward = None
            builder.like(node)
            if graph.attrs.get("outputs") == "batch":
                grads = with_rows(builder, node.inputs[node.op.outputs :][: len(grads)], grads)
            replaced[node] = builder.emit(MakeTuple(), *grads)
        graph.nodes = nodes
        graph.results = [replaced.get(v, v) for v in graph.results]
        drop_own_gradients(graph)
        _mark_updates(graph)
        return True


def _mark_updates(graph: Graph) -> None:
    """What a program computes from gradients on the way to an update is part of the update."""
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


def _backward(b: Builder, request: Node, op: Gradient) -> list[Value]:
    """Emit the backward operators of one request and return the gradients."""
    last = len(request.inputs) - (op.outputs if op.has_sens else 0)
    outputs, wanted = request.inputs[: op.outputs], request.inputs[op.outputs : last]
    forward = list(b.nodes)
    needed = _depends_on(forward, wanted)
    terms: dict[Value, list[Value]] = {}
    parts: dict[Value, dict[int, list[Value]]] = {}
    b.like(request)
    b.scope = f"Gradients/{request.scope}"
    for i, output in enumerate(outputs):
        sens = request.inputs[last + i] if op.has_sens else _filled(b, 1.0, output.tensor_type)
        _add(terms, output, sens)
    for node in reversed(forward):
        if node not in needed or (node not in terms and node not in parts):
            continue
        b.like(node)
        b.scope = f"Gradients/{node.scope}"
        b.forward = node
        if isinstance(node.op, TupleGetItem):
            parts.setdefault(node.inputs[0], {}).setdefault(node.op.index, []).append(_sum(b, terms.pop(node)))
            continue
        if isinstance(node.type, TupleType):
            mine = parts.pop(node, {})
            dout = [_sum(b, mine[k]) if k in mine else None for k in range(len(node.type.elements))]
            if isinstance(node.op, MakeTuple):
                for value, grad in zip(node.inputs, dout, strict=True):
                    if grad is not None:
                        _add(terms, value, grad)
                continue
        else:
            dout = _sum(b, terms.pop(node) if node not in wanted else terms[node], node)
            if node in wanted:
                terms[node] = [dout]
        _apply(b, node, dout, needed, terms)
    grads: list[Value] = []
    data_parallel = b.graph.attrs.get("mode") == "data_parallel"
    b.like(request)
    b.scope = f"Gradients/{request.scope}"
    b.forward = None
    for value in wanted:
        found = terms.get(value)
        grad = _sum(b, found) if found else _filled(b, 0.0, value.tensor_type)
        if found and isinstance(value, Parameter) and not isinstance(grad, Node) and data_parallel:
            grad = b.emit(Identity(), grad)  # every rank has its own; what they add up to is the gradient
        if isinstance(value, Parameter) and isinstance(grad, Node):
            earlier = grad.attrs.get("gradient_for")
            grad.attrs["gradient_for"] = f"{earlier},{value.name}" if earlier else value.name
        grads.append(grad)
    return grads


def _apply(b: Builder, node: Node, dout: object, needed: set[Value], terms: dict[Value, list[Value]]) -> None:
    """Ask one operator for its gradients and note them as terms of its inputs' gradients."""
    if not isinstance(node.op, Op):
        raise node.error(f"{node.label}: no operator is known under this name, so it has no gradient")
    of_integers = not any(value in needed and _differentiable(value) for value in node.inputs)
    if isinstance(node.op.bprop, NotDifferentiable) and of_integers:
        return  # a comparison, a place: no step of an integer is worth anything there
    start = len(b.nodes)
    try:
        grads = node.op.gradient(b, node.inputs, node, dout)
    except Exception as error:
        if hasattr(error, "message") and getattr(error, "location", None) is None:
            raise node.error(f"{node.label}: {getattr(error, 'message', error)}") from None
        raise
    made = set(b.nodes[start:])
    for index, (value, grad) in enumerate(zip(node.inputs, grads, strict=True)):
        if grad is None or value not in needed:
            continue
        if isinstance(grad, Node) and grad in made:
            grad.forward_input = index
        _add(terms, value, grad)


def _depends_on(nodes: list[Node], wanted: list[Value]) -> set[Value]:
    """The wanted values and every floating-point value computed from them, or from what another rank has computed.
    Where integers are wanted, what is computed of them in integers is on the way, too."""
    found: set[Value] = set(wanted)
    integers = {value for value in wanted if not _differentiable(value)}
    for node in nodes:
        if integers and not _differentiable(node) and any(value in integers for value in node.inputs):
            integers.add(node)
            found.add(node)
        answers = isinstance(node.op, Collective) and node.op.answers
        if (answers or any(v in found for v in node.inputs)) and _differentiable(node):
            found.add(node)
    return found


def _differentiable(value: Value) -> bool:
    types = value.type.elements if isinstance(value.type, TupleType) else (value.type,)
    return any(isinstance(t, TensorType) and t.dtype.has_gradient for t in types)


def _add(terms: dict[Value, list[Value]], value: Value, grad: Value) -> None:
    if not isinstance(value, Constant):
        terms.setdefault(value, []).append(grad)


def _sum(b: Builder, terms: list[Value], of: Node | None = None) -> Value:
    """The sum of the terms of one gradient, that of the result of `of` where it is known."""
    if len(terms) == 1:
        return terms[0]
    forward, b.forward = b.forward, of
    total = b.emit(AddN(), *terms)
    b.forward = forward
    terms[:] = [total]
    return total


def _filled(b: Builder, value: float, type: TensorType) -> Value:
    scalar = b.constant(value, type.dtype)
    return b.emit(BroadcastTo(shape=type.shape), scalar) if type.shape else scalar
