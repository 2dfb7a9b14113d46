"""Reverse mode over a list of nodes: operators are visited from the last to the first, every operator's `bprop` is
asked once, and the terms of one gradient are added by a single AddN so that a sharded sum is reduced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Node, Value, element_types
from mspc.ir.types import StackType, TupleType
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import NotDifferentiable, Op

Terms = dict[Value, list[Value]]
"""What has to be added up to the gradient of a value."""
Differentiate = Callable[[Builder, Node, Sequence[Value | None], set[Value]], Sequence[Value | None]]
"""Emits the gradient of a node that runs regions: of its results' gradients and the values on the way, those of its
operands."""


def backpropagate(
    b: Builder, forward: Sequence[Node], terms: Terms, wanted: Sequence[Value], differentiate: Differentiate
) -> None:
    """Emit the backward operators of the `forward` nodes.

    terms: the gradients of what is differentiated; behind the call also those of the wanted values that have any.
    wanted: values with respect to which is differentiated.
    """
    needed = depends_on(forward, wanted)
    parts: dict[Value, dict[int, list[Value]]] = {}
    for node in reversed(forward):
        if node not in needed or (node not in terms and node not in parts):
            continue
        b.like(node)
        b.scope = f"Gradients/{node.scope}"
        b.forward = node
        if isinstance(node.op, TupleGetItem):
            parts.setdefault(node.inputs[0], {}).setdefault(node.op.index, []).append(summed(b, terms.pop(node)))
            continue
        if isinstance(node.type, TupleType):
            mine = parts.pop(node, {})
            dout = [summed(b, mine[k]) if k in mine else None for k in range(len(node.type.elements))]
            if isinstance(node.op, MakeTuple):
                for value, grad in zip(node.inputs, dout, strict=True):
                    if grad is not None:
                        add_term(terms, value, grad)
                continue
            if node.regions:
                start = len(b.nodes)
                _note(b, node, differentiate(b, node, dout, needed), start, needed, terms)
                continue
        else:
            dout = summed(b, terms.pop(node) if node not in wanted else terms[node], node)
            if node in wanted:
                terms[node] = [dout]
        _apply(b, node, dout, needed, terms)


def _apply(b: Builder, node: Node, dout: object, needed: set[Value], terms: Terms) -> None:
    """Ask one operator for its gradients and note them as terms of its inputs' gradients."""
    if not isinstance(node.op, Op):
        raise node.error(f"{node.label}: no operator is known under this name, so it has no gradient")
    of_integers = not any(value in needed and differentiable(value) for value in node.inputs)
    if isinstance(node.op.bprop, NotDifferentiable) and of_integers:
        return  # a comparison, a place: no step of an integer is worth anything there
    start = len(b.nodes)
    try:
        grads = node.op.gradient(b, node.inputs, node, dout)
    except Exception as error:
        if hasattr(error, "message") and getattr(error, "location", None) is None:
            raise node.error(f"{node.label}: {getattr(error, 'message', error)}") from None
        raise
    _note(b, node, grads, start, needed, terms)


def _note(
    b: Builder, node: Node, grads: Sequence[Value | None], start: int, needed: set[Value], terms: Terms
) -> None:
    """Note the gradients of a node's inputs, made from position `start` on, as terms."""
    made = set(b.nodes[start:])
    for index, (value, grad) in enumerate(zip(node.inputs, grads, strict=True)):
        if grad is None or value not in needed:
            continue
        if isinstance(grad, Node) and grad in made:
            grad.forward_input = index
        add_term(terms, value, grad)


def depends_on(nodes: Sequence[Node], wanted: Sequence[Value]) -> set[Value]:
    """The wanted values and every floating-point value computed from them, or from what another rank has computed.
    Where integers are wanted, what is computed of them in integers is on the way, too, but for comparisons and the
    like, through which no gradient comes."""
    found: set[Value] = set(wanted)
    integers = {value for value in wanted if not differentiable(value)}
    for node in nodes:
        if integers and _hands_integers_on(node) and any(value in integers for value in node.inputs):
            integers.add(node)
            found.add(node)
        answers = isinstance(node.op, Collective) and node.op.answers
        if (answers or any(v in found for v in node.inputs)) and differentiable(node):
            found.add(node)
    return found


def differentiable(value: Value) -> bool:
    """Whether a value has elements that something can be differentiated by."""
    return any(type.dtype.has_gradient for type in element_types(value.type))


def _hands_integers_on(node: Node) -> bool:
    """Whether some of what a node computes has no floats, and a gradient that comes through the node."""
    if all(type.dtype.has_gradient for type in element_types(node.type)):
        return False
    if isinstance(node.op, MakeTuple | TupleGetItem) or node.regions:
        return True
    return not (isinstance(node.op, Op) and isinstance(node.op.bprop, NotDifferentiable))


def add_term(terms: Terms, value: Value, grad: Value) -> None:
    """Note a term of the gradient of a value; a constant has none."""
    if not isinstance(value, Constant):
        terms.setdefault(value, []).append(grad)


def summed(b: Builder, terms: list[Value], of: Node | None = None) -> Value:
    """The sum of the terms of one gradient, that of the result of `of` where it is known."""
    if len(terms) == 1:
        return terms[0]
    if any(isinstance(term.type, StackType) for term in terms):
        from mspc.passes.autodiff.stacks import sum_of_stacks  # late: few networks have loops

        total = sum_of_stacks(b, terms)
    else:
        forward, b.forward = b.forward, of
        total = b.emit(AddN(), *terms)
        b.forward = forward
    terms[:] = [total]
    return total
