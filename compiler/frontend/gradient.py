"""Calls of `grad(fn)`, `value_and_grad(fn)` and `GradOperation()(fn)`: the function is inlined and a
Gradient node asks for the derivatives. The pass `grad` expands it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.api.common import parameter as session
from mspc.api.common.gradient import NO_GRADIENTS, GradientFunction, JitFunction
from mspc.api.common.tensor import Tensor
from mspc.compiler.frontend.remembered_calls import (
    call_key,
    depending,
    differentiated_by,
    forget,
    recalled,
    updated_operands,
)
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure, Frame, describe, tensors_in
from mspc.ir.graph import Node, Parameter, Value, copied_node
from mspc.ir.types import TensorType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.elementwise import Identity
from mspc.ops.tensor.reshape import Reshape

Body = tuple[Any, int, int]
"""What the function returns, and its nodes: the first, and the one behind the last."""


def call_gradient(
    tracer: Tracer,
    frame: Frame,
    node: ast.AST,
    request: GradientFunction,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The result of calling `request`.

    Raises:
        MspcError: an argument or a result cannot be differentiated.
    """
    tracer.at(frame, node)
    if tracer.no_gradients:
        raise tracer.error(NO_GRADIENTS)
    if kwargs:
        request, args = request.by_name(args, kwargs)
    fn, names = request.fn.fn if isinstance(request.fn, JitFunction) else request.fn, request.names

    def split(given: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        count = len(given) - len(names)
        return given[:count], dict(zip(names, given[count:], strict=True))

    def run(given: list[Any]) -> tuple[Any, int, int]:
        first = len(tracer.builder.nodes)
        result = tracer.call(frame, node, fn, *split(given))
        if any(map(updated_operands, tracer.builder.nodes[first:])):
            forget(tracer, first)
        return result, first, len(tracer.builder.nodes)

    def earlier(given: list[Any]) -> tuple[Any, int, int] | None:
        found = recalled(tracer, call_key(fn, *split(given)))
        return None if found is None else (found.result, found.first, found.last)

    return _requested(tracer, frame, node, request, args, run, earlier)


def _requested(
    tracer: Tracer,
    frame: Frame,
    node: ast.AST,
    request: GradientFunction,
    args: Sequence[Any],
    run: Callable[[list[Any]], Body],
    earlier: Callable[[list[Any]], Body | None],
) -> Any:
    """The result of calling `request` with `args`.

    run: calls the function with arguments. earlier: such a call that is in the graph already, if there is one.

    Raises:
        MspcError: an argument or a result cannot be differentiated.
    """
    tracer.at(frame, node)
    given = [tracer.value(arg) if tracer.is_tensor(arg) else arg for arg in args]
    sens: Any = None
    if request.sens_param:
        if len(given) <= len(request.names):
            raise tracer.error("the last argument must be the gradient of the result (sens_param=True)", kind=TypeError)
        sens = given.pop(-1 - len(request.names))
    places = _places(tracer, request, given)
    weights = [_weight(tracer, weight) for weight in request.weights or ()]
    for weight in weights:
        if not weight.tensor_type.dtype.has_gradient:
            raise tracer.error(
                f"parameter '{weight.name}' is {weight.tensor_type.dtype} and has no gradient", kind=TypeError
            )
    result, inputs, weights = _differentiated(tracer, request.fn, given, places, weights, run, earlier)
    tracer.at(frame, node)
    of_integers = any(not value.tensor_type.dtype.has_gradient for value in inputs)
    outputs, aux = _outputs(tracer, request, result, of_integers)
    sensitivities = _sensitivities(tracer, outputs, sens) if request.sens_param else []
    grads: list[Any] = []
    if inputs or weights:
        op = Gradient(outputs=len(outputs), has_sens=request.sens_param)
        made = tracer.builder.emit(op, *outputs, *inputs, *weights, *sensitivities)
        grads = [tracer.builder.emit(TupleGetItem(index=i), made) for i in range(len(inputs) + len(weights))]
        grads = _hooked(tracer, frame, node, [given[place] for place in places], request.weights or (), grads)
    of_inputs: Any = tuple(grads[: len(inputs)])
    of_weights: Any = tuple(grads[len(inputs) :])
    if len(inputs) == 1 and not (request.positions_tuple or request.get_all):
        of_inputs = of_inputs[0]
    if not request.weights_tuple:
        of_weights = of_weights[0]
    has_inputs = bool(request.positions) or request.all_positions
    if request.weights is None:
        found = of_inputs
    else:
        found = (of_inputs, of_weights) if has_inputs else of_weights
    if request.value:
        return result, found
    return (found, aux) if request.has_aux else found


def _hooked(
    tracer: Tracer, frame: Frame, node: ast.AST, inputs: list[Any], weights: Sequence[Any], grads: list[Any]
) -> list[Any]:
    """Return gradients as the hooks of tensors and parameters leave them."""
    for weight in weights:
        if isinstance(weight, session.Parameter):
            tracer.reads.attribute(weight, "gradient_hooks", weight.gradient_hooks)
    if not tracer.leaf_hooks and not any(getattr(weight, "gradient_hooks", ()) for weight in weights):
        return grads
    from mspc.compiler.frontend.backward_hooks import leaf_gradient  # late: few networks have hooks

    values = [*inputs, *(_weight(tracer, weight) for weight in weights)]
    sources = [*[None] * len(inputs), *weights]
    return [
        leaf_gradient(tracer, value, source, grad, lambda hook, args: tracer.call(frame, node, hook, args, {}))
        for value, source, grad in zip(values, sources, grads, strict=True)
    ]


def _weight(tracer: Tracer, weight: Any) -> Value:
    """The parameter itself, also where operators read it in another element type."""
    return tracer.weight(weight) if isinstance(weight, session.Parameter) else tracer.value(weight)


def _places(tracer: Tracer, request: GradientFunction, given: list[Any]) -> list[int]:
    """Indices of the arguments to differentiate by."""
    if request.all_positions:
        return [i for i, arg in enumerate(given) if isinstance(arg, Value)]
    for place in request.positions:
        if place >= len(given):
            raise tracer.error(
                f"grad_position {place} is out of range: there are {len(given)} arguments", kind=ValueError
            )
        arg = given[place]
        if not isinstance(arg, Value):
            raise tracer.error(f"argument {place} is {describe(arg)} and cannot be differentiated", kind=TypeError)
    return list(request.positions)


def _differentiated(
    tracer: Tracer,
    fn: Any,
    given: list[Any],
    places: list[int],
    weights: list[Value],
    run: Callable[[list[Any]], Body],
    earlier: Callable[[list[Any]], Body | None],
) -> tuple[Any, list[Value], list[Value]]:
    """Return the result of the function, and the arguments and weights to differentiate by.

    The graph is flat. An argument or weight gets a value of its own, which only the function reads, if the graph has a
    path from it to the result that does not belong to the function.
    """
    before = None if _separate(tracer, fn, given, places, weights) else earlier(given)
    inputs = [given[place] for place in places]
    wanted = list(dict.fromkeys([*inputs, *weights]))
    if before is not None:
        result, first, last = before
        own = _own_values(tracer, wanted, first, last)
        updates = bool(own) and any(map(updated_operands, tracer.builder.nodes[first:last]))
        if updates and tracer.differentiated:
            before = None  # copies beside the call's updates would move the nodes of the requests around this one
        else:
            copied = _copied_in_place if updates else _copied
            result = _mapped(_graph_values(tracer, result), copied(tracer, own, first, last))
    if before is None:
        with differentiated_by(tracer, wanted):
            result, first, last = run(given)
        result = _graph_values(tracer, result)
        own = _own_values(tracer, wanted, first, last)
        if own:
            _substitute(tracer, own, first, last)
            result = _mapped(result, own)
    return result, [own.get(value, value) for value in inputs], [own.get(value, value) for value in weights]


def _separate(tracer: Tracer, fn: Any, given: list[Any], places: list[int], weights: list[Value]) -> bool:
    """Give a differentiated argument a value of its own if the function may read the same value another way (as a
    second argument, captured, or as a weight). Return whether there is such an argument."""
    before = list(given)
    separated = False
    for place in places:
        value = given[place]
        shared = sum(v is value for v in before) > 1 or value in weights
        is_input = isinstance(value, Parameter) and value.kind == "input"
        if shared or isinstance(fn, Closure) or not (is_input or isinstance(value, Node)):
            given[place] = tracer.builder.emit(Reshape(shape=value.shape), value)
            separated = True
    return separated


def _own_values(tracer: Tracer, wanted: list[Value], first: int, last: int) -> dict[Value, Value]:
    """Return a new value for each differentiated one if one of them is computed from another, or if the function, whose
    nodes are `nodes[first:last]`, reads a captured value that is computed from one of them."""
    nodes = tracer.builder.nodes
    body = set(nodes[first:last])
    read = {v for node in nodes[first:last] for v in node.inputs if isinstance(v, Node) and v not in body}
    read.update(value for value in wanted if isinstance(value, Node))
    if not read or (len(wanted) == 1 and read.issubset(wanted)) or read.isdisjoint(depending(nodes[:first], wanted)):
        return {}
    b = tracer.builder
    return {value: Node(Identity(), [value], value.type, "", "", b.scope, b.frames, b.phase) for value in wanted}


def _substitute(tracer: Tracer, own: Mapping[Value, Value], first: int, last: int) -> None:
    """Let the nodes of a function, which only the request at hand reads, read these values."""
    nodes = tracer.builder.nodes
    new = dict(own)
    for node in nodes[first:last]:
        written = [node.inputs[i] for i in updated_operands(node)]
        node.inputs = [value if value in written else new.get(value, value) for value in node.inputs]
        for value in written:
            new.pop(value, None)  # later nodes read the updated parameter
    nodes[first:first] = [value for value in own.values() if isinstance(value, Node)]
    tracer.runs.clear()


def _copied(tracer: Tracer, own: Mapping[Value, Value], first: int, last: int) -> dict[Value, Value]:
    """Copy the nodes of a call that depend on these values, at the end of the graph: the call itself may be part of
    another function."""
    nodes = tracer.builder.nodes
    new = dict(own)
    copies: list[Node] = []
    for node in nodes[first:last]:
        if any(value in new for value in node.inputs):
            copy = copied_node(node, [new.get(value, value) for value in node.inputs])
            copies.append(copy)
            new[node] = copy
    nodes += [*(value for value in own.values() if isinstance(value, Node)), *copies]
    return new


def _copied_in_place(tracer: Tracer, own: Mapping[Value, Value], first: int, last: int) -> dict[Value, Value]:
    """The same for a call that changes parameters: each copy is beside its original, so that it reads parameters as
    they are at that place. The nodes that change them are in the graph once."""
    nodes = tracer.builder.nodes
    new = dict(own)
    body: list[Node] = [value for value in own.values() if isinstance(value, Node)]
    for node in nodes[first:last]:
        body.append(node)
        written = [node.inputs[i] for i in updated_operands(node)]
        for value in written:
            new.pop(value, None)  # later nodes read the updated parameter
        if not written and any(value in new for value in node.inputs):
            new[node] = copied_node(node, [new.get(value, value) for value in node.inputs])
            body.append(new[node])
    nodes[first:last] = body
    tracer.runs.clear()
    return new


def _mapped(result: Any, new: Mapping[Value, Value]) -> Any:
    if isinstance(result, tuple | list):
        return tuple(_mapped(item, new) for item in result)
    return new.get(result, result) if isinstance(result, Value) else result


def _graph_values(tracer: Tracer, result: Any) -> Any:
    if isinstance(result, Tensor):
        return tracer.value(result)
    if isinstance(result, tuple | list):
        return tuple(_graph_values(tracer, item) for item in result)
    return result


def _outputs(
    tracer: Tracer, request: GradientFunction, result: Any, of_integers: bool = False
) -> tuple[list[Value], Any]:
    """(results to differentiate, the others). of_integers: integers among the results have gradients, too."""
    primary, aux = result, ()
    if request.has_aux:
        if not isinstance(result, tuple | list) or len(result) < 2:
            raise tracer.error(
                f"has_aux=True needs a function that returns (loss, further results), not {describe(result)}",
                kind=TypeError,
            )
        primary, aux = result[0], tuple(result[1:])
    tensors = [value for value in tensors_in(primary) if isinstance(value.type, TensorType)]
    found = [value for value in tensors if of_integers or value.tensor_type.dtype.has_gradient]
    if isinstance(primary, Parameter):
        found = [primary]
    if not found:
        found = tensors
        if primary is None:
            found = [tracer.value(0.0)]
        if not found:
            raise tracer.error(
                f"the function returns {describe(primary)}; there is nothing to differentiate", kind=TypeError
            )
        tracer.warn(f"the function returns {describe(primary)}: all its gradients are zero, as in MindSpore")
    return found, aux


def _sensitivities(tracer: Tracer, outputs: list[Value], sens: Any) -> list[Value]:
    given = list(sens) if isinstance(sens, tuple | list) else [sens]
    if len(given) != len(outputs):
        raise tracer.error(
            f"there are {len(outputs)} results, but the sensitivity has {len(given)} entries", kind=ValueError
        )
    found: list[Value] = []
    for value, output in zip(given, outputs, strict=True):
        made = tracer.cast(tracer.value(value, output.tensor_type.dtype), output.tensor_type.dtype)
        if made.shape != output.shape and made.tensor_type.size == output.tensor_type.size == 1:
            made = tracer.emit(Reshape(shape=output.shape), made)
        if made.shape != output.shape:
            raise tracer.error(f"the sensitivity has shape {made.shape}, the result {output.shape}", kind=ValueError)
        found.append(made)
    return found
