"""Gradients: `grad`, `value_and_grad`, `GradOperation`, `bprop` of cells, and hooks on gradients."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.compiler.frontend.argument_binding import as_it_is
from mspc.compiler.frontend.remembered_calls import call_key, differentiated_by, forget, recalled, updated_operands
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure, Frame, describe, tensors_in
from mspc.ir.graph import Node, Parameter, Value, copied_node, depending, interpose
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.mindspore_api.common import parameter as session
from mspc.mindspore_api.common.gradient import NO_GRADIENTS, GradientFunction, JitFunction
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.structural import Depend, Gradient, TupleGetItem
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape

Run = Callable[[Any, list[Any]], Any]
"""Calls a function of the script with arguments."""


def own_gradient(tracer: Tracer, function: Any, args: Sequence[Any], result: Any, run: Run) -> Any:
    """Return `result`, computed from `args`, with the gradient `function(*args, result, gradient of the result)`. Raise
    MspcError if the function returns no gradient for a tensor, or one of another shape."""
    results = tensors_in(result)
    if not results or not tensors_in(tuple(args)):
        return result
    placeholders = _placeholders(tracer, results)

    def in_place(new: Sequence[Any]) -> Any:
        """Return the result with these values in place of its tensors."""
        values = iter(new)
        return _each(result, lambda value: next(values) if isinstance(value, Value) else value)

    first = len(tracer.builder.nodes)
    found = anchored(tracer, first, placeholders[0], run(function, [*args, result, in_place(placeholders)]))
    entries: tuple[Any, ...] = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(entries) < len(args):
        raise tracer.error(
            f"bprop returns {len(entries)} gradients for {len(args)} arguments", kind=TypeError, code="E0214"
        )
    pairs = [_for(tracer, arg, entry, i) for i, (arg, entry) in enumerate(zip(args, entries, strict=False))]
    sources, grads = ([pair[side] for pair in itertools.chain(*pairs)] for side in (0, 1))
    op = OwnGradient(results=len(results), sources=len(sources))
    return in_place(tracer.emit(op, *results, *sources, *placeholders, *grads))


def anchored(tracer: Tracer, first: int, placeholder: Value, grads: Any) -> Any:
    """Return gradients that a function of the script computes by the nodes from `first` on. The first gradient depends
    on the nodes that print, which depend on each other, because differentiation copies only the dependencies of the
    gradients. Raise MspcError if a node changes a parameter."""
    nodes = tracer.builder.nodes
    made, last = nodes[first:], placeholder
    del nodes[first:]
    for node in made:
        node.in_strategy = node.out_strategy = None  # backward operators follow their operands
        if isinstance(node.op, Op) and node.op.mutates:
            raise node.error(
                "a function of gradients must not change a parameter: it runs while gradients are computed",
                ["return the value with the gradients, and assign it in the function that calls grad()"],
            )
        if getattr(node.op, "has_side_effect", False):
            node.inputs[0] = tracer.builder.emit(Depend(), node.inputs[0], last)
            last = node
        nodes.append(node)
    if last is placeholder:
        return grads
    forget(tracer, first)  # positions of nodes changed
    entries = list(grads) if isinstance(grads, tuple | list) else [grads]
    for i, each in enumerate(entries):
        if isinstance(each, Value):
            entries[i] = tracer.builder.emit(Depend(), each, last)
            break
    return tuple(entries) if isinstance(grads, tuple | list) else entries[0]


def _each(like: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a structure with tuples in place of its lists, and `leaf` of each other value in it."""
    return tuple(_each(item, leaf) for item in like) if isinstance(like, tuple | list) else leaf(like)


def _exchanged(like: Any, new: Mapping[Value, Value]) -> Any:
    """Return a structure with other values in place of some of its tensors."""
    return _each(like, lambda value: new.get(value, value) if isinstance(value, Value) else value)


def _for(tracer: Tracer, arg: Any, grad: Any, place: int) -> list[tuple[Value, Value]]:
    """Return the tensors of one argument, each with its gradient."""
    tensors = tensors_in(arg)
    if not tensors:
        return []
    given = list(grad) if isinstance(grad, tuple | list) and isinstance(arg, tuple | list) else [grad]
    if len(given) != len(tensors):
        what = f"the {len(tensors)} tensors of argument {place}, which get no gradient"
        tracer.warn(f"bprop returns {describe(grad)} for {what}")
        return []
    found: list[tuple[Value, Value]] = []
    for value, each in zip(tensors, given, strict=True):
        dtype = value.tensor_type.dtype
        made = tracer.value(each, dtype, "bprop")
        if made.shape != value.shape:
            wrong = f"a gradient of shape {made.shape} for argument {place}, which has shape {value.shape}"
            raise tracer.error(f"bprop returns {wrong}", kind=ValueError, code="E0214")
        found.append((value, tracer.cast(made, dtype) if dtype.has_gradient else made))
    return found


Body = tuple[Any, int, int]
"""The result of the function, and the range of its nodes: the first, and one past the last."""


def call_gradient(
    tracer: Tracer, frame: Frame, node: ast.AST, request: GradientFunction, args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Call the gradient function `request`. Raise MspcError if an argument or a result cannot be differentiated."""
    tracer.at(frame, node)
    if tracer.no_gradients:
        raise tracer.error(NO_GRADIENTS, code="E0213")
    if kwargs:
        request, args = request.by_name(args, kwargs)
    fn, names = request.fn.fn if isinstance(request.fn, JitFunction) else request.fn, request.names

    def split(given: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        count = len(given) - len(names)
        return given[:count], dict(zip(names, given[count:], strict=True))

    def run(given: list[Any]) -> Body:
        first = len(tracer.builder.nodes)
        result = tracer.call(frame, node, fn, *split(given))
        if any(map(updated_operands, tracer.builder.nodes[first:])):
            forget(tracer, first)
        return result, first, len(tracer.builder.nodes)

    def earlier(given: list[Any]) -> Body | None:
        found = recalled(tracer, call_key(fn, *split(given)))
        return None if found is None else (found.result, found.first, found.last)

    given = [tracer.value(arg) if tracer.is_tensor(arg) else arg for arg in args]
    sens: Any = None
    if request.sens_param:
        if len(given) <= len(names):
            raise tracer.error("the last argument must be the gradient of the result (sens_param=True)", kind=TypeError)
        sens = given.pop(-1 - len(names))
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
        sources = [*[None] * len(places), *(request.weights or ())]
        values = [*(given[place] for place in places), *(_weight(tracer, each) for each in request.weights or ())]
        grads = [
            leaf_gradient(tracer, value, source, grad, lambda hook, args: tracer.call(frame, node, hook, args, {}))
            for value, source, grad in zip(values, sources, grads, strict=True)
        ]
    found = _arranged(request, tuple(grads[: len(inputs)]), tuple(grads[len(inputs) :]))
    if request.value:
        return result, found
    return (found, aux) if request.has_aux else found


def _arranged(request: GradientFunction, of_inputs: Any, of_weights: Any) -> Any:
    """Return the gradients as the gradient function does: of inputs, of weights, or of both."""
    if len(of_inputs) == 1 and not (request.positions_tuple or request.get_all):
        of_inputs = of_inputs[0]
    if not request.weights_tuple:
        of_weights = of_weights[0]
    if request.weights is None:
        return of_inputs
    return (of_inputs, of_weights) if request.positions or request.all_positions else of_weights


def _weight(tracer: Tracer, weight: Any) -> Value:
    """Return the parameter itself, even if operators read it in another element type."""
    return tracer.weight(weight) if isinstance(weight, session.Parameter) else tracer.value(weight)


def _places(tracer: Tracer, request: GradientFunction, given: list[Any]) -> list[int]:
    """Return the indices of the differentiated arguments."""
    if request.all_positions:
        return [i for i, arg in enumerate(given) if isinstance(arg, Value)]
    for place in request.positions:
        if place >= len(given):
            raise tracer.error(
                f"grad_position {place} is out of range: there are {len(given)} arguments",
                kind=ValueError,
                code="E0213",
            )
        arg = given[place]
        if not isinstance(arg, Value):
            raise tracer.error(
                f"argument {place} is {describe(arg)} and cannot be differentiated", kind=TypeError, code="E0213"
            )
    return list(request.positions)


def _differentiated(
    tracer: Tracer, fn: Any, given: list[Any], places: list[int], weights: list[Value],
    run: Callable[[list[Any]], Body], earlier: Callable[[list[Any]], Body | None],
) -> tuple[Any, list[Value], list[Value]]:  # fmt: skip
    """Return the result of the function, and the arguments and weights to differentiate by. run: calls the function.
    earlier: returns an equal call that is in the graph already, or None.

    The graph is flat. An argument or weight gets a value of its own, which only the function reads, if the graph has a
    path from it to the result that does not belong to the function.
    """

    def graph_value(value: Any) -> Any:
        return tracer.value(value) if isinstance(value, Tensor) else value

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
            new = (_copied_in_place if updates else _copied)(tracer, own, first, last)
            result = _exchanged(_each(result, graph_value), new)
    if before is None:
        with differentiated_by(tracer, wanted):
            result, first, last = run(given)
        result = _each(result, graph_value)
        own = _own_values(tracer, wanted, first, last)
        if own:
            _substitute(tracer, own, first, last)
            result = _exchanged(result, own)
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
    """Replace the operands of a function's nodes by these values. Only the current request reads these nodes."""
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
    """Copy a call that changes parameters: each copy follows its original, so it reads the parameters as they are
    there. Nodes that change them are not copied."""
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


def _outputs(
    tracer: Tracer, request: GradientFunction, result: Any, of_integers: bool = False
) -> tuple[list[Value], Any]:
    """Return (results to differentiate, other results). of_integers: integer results are differentiated, too."""
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
        counts = f"there are {len(outputs)} results, but the sensitivity has {len(given)} entries"
        raise tracer.error(counts, kind=ValueError)
    found: list[Value] = []
    for value, output in zip(given, outputs, strict=True):
        made = tracer.cast(tracer.value(value, output.tensor_type.dtype), output.tensor_type.dtype)
        if made.shape != output.shape and made.tensor_type.size == output.tensor_type.size == 1:
            made = tracer.emit(Reshape(shape=output.shape), made)
        if made.shape != output.shape:
            raise tracer.error(f"the sensitivity has shape {made.shape}, the result {output.shape}", kind=ValueError)
        found.append(made)
    return found


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.dtype.has_gradient


def _placeholders(tracer: Tracer, values: Sequence[Value]) -> list[Value]:
    return [tracer.builder.emit(GradientPlaceholder(type=value.type)) for value in values]


def hooked_gradients(tracer: Tracer, label: str, found: Any, grads: Any) -> Any:
    """Return the gradients that a hook returns in place of a tuple of them; None changes nothing. Raise MspcError if
    the number of gradients or a shape differs."""
    if found is None:
        return grads
    entries = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(entries) != len(grads):
        raise tracer.error(
            f"the {label} returns {len(entries)} gradient{'s' * (len(entries) != 1)}, and takes {len(grads)}",
            kind=TypeError,
        )
    replaced: list[Any] = []
    for new, old in zip(entries, grads, strict=True):
        if new is None or old is None:
            replaced.append(old)
            continue
        made = tracer.value(new, old.tensor_type.dtype, f"a gradient that the {label} returns")
        if made.shape != old.shape:
            wrong = f"a gradient of shape {made.shape} in place of one of shape {old.shape}"
            raise tracer.error(f"the {label} returns {wrong}", kind=ValueError)
        replaced.append(tracer.cast(made, old.tensor_type.dtype))
    return tuple(replaced)


class HookedInputs:
    """Inputs of a cell with backward hooks, to which the hooks on the gradients of inputs and outputs are attached."""

    def __init__(self, tracer: Tracer, cell: Cell, inputs: Sequence[Any], run: Run) -> None:
        self._tracer, self._cell, self._run = tracer, cell, run
        self._before, self._behind = cell.backward_hooks()
        self.inputs: Sequence[Any] = [
            as_it_is(tracer, each) if isinstance(each, session.Parameter) else each for each in inputs
        ]
        self._placeholders: list[Value] = []
        tensors = tensors_in(tuple(self.inputs))
        sources = list(dict.fromkeys(filter(_has_gradient, tensors))) if self._behind else []
        if sources:
            self._placeholders = _placeholders(tracer, sources)
            op = OwnGradient(results=len(sources), sources=len(sources))
            marked = tracer.emit(op, *sources, *sources, *self._placeholders, *self._placeholders)
            self._grads = tuple(map(dict(zip(sources, self._placeholders, strict=True)).get, tensors))
            self.inputs = _exchanged(tuple(self.inputs), dict(zip(sources, marked, strict=True)))

    def result_of(self, result: Any) -> Any:
        """Return the result of the cell, with the hooks on its gradients."""
        tracer, name = self._tracer, type(self._cell).__name__
        results = list(dict.fromkeys(value for value in tensors_in(result) if _has_gradient(value)))
        if not results:
            return result
        placeholders = _placeholders(tracer, results)
        first = len(tracer.builder.nodes)
        whole = tuple(tensors_in(result))
        grads = tuple(map(dict(zip(results, placeholders, strict=True)).get, whole))
        for hook in self._before:
            found = self._run(hook, [self._cell, grads])
            grads = hooked_gradients(tracer, f"backward pre-hook of {name}", found, grads)
        of_results = dict(zip(whole, grads, strict=True))
        given = anchored(tracer, first, placeholders[0], [of_results[value] for value in results])
        inner: list[Value] = []
        if self._placeholders:
            first = len(tracer.builder.nodes)
            found, outer = self._grads, tuple(map(dict(zip(results, given, strict=True)).get, whole))
            for hook in self._behind:
                answer = self._run(hook, [self._cell, found, outer])
                found = hooked_gradients(tracer, f"backward hook of {name}", answer, found)
            by_place = dict(zip(self._grads, found, strict=True))
            inner = anchored(tracer, first, self._placeholders[0], [by_place[each] for each in self._placeholders])
        op = OwnGradient(results=len(results), sources=len(results), inner=len(inner))
        made = tracer.emit(op, *results, *results, *placeholders, *given, *self._placeholders[: len(inner)], *inner)
        new = _exchanged(result, dict(zip(results, made, strict=True)))
        return tracer.own(list(new)) if isinstance(result, list) else new


def hook_backward(tracer: Tracer, hook: Any, args: Sequence[Any], run: Run) -> Any:
    """Call `HookBackward(hook)(*args)`."""
    values = [as_it_is(tracer, tracer.value(arg, None, "an input of HookBackward")) for arg in args]
    if not values or not all(map(_has_gradient, values)):
        return (values[0] if len(values) == 1 else tuple(values))
    placeholders = _placeholders(tracer, values)
    first = len(tracer.builder.nodes)
    grads = hooked_gradients(tracer, "hook", run(hook, [tuple(placeholders)]), tuple(placeholders))
    given = anchored(tracer, first, placeholders[0], list(grads))
    made = tracer.emit(OwnGradient(len(values), len(values)), *values, *values, *placeholders, *given)
    return made[0] if len(values) == 1 else made


# Hooks of tensors -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorHookHandle:
    """Handle of a hook on a tensor of the graph. remove: removes it."""

    remove: Callable[[], None]


def register_hook(tracer: Tracer, value: Value, args: Sequence[Any], kwargs: Mapping[str, Any], run: Run) -> Any:
    """Evaluate `value.register_hook(hook)`. The hook receives the whole gradient of the tensor, including uses before
    the call. Raise MspcError if the argument is no function, or the hook reads values that are computed later than the
    tensor."""
    given = [*args, *(kwargs[name] for name in ("hook", "hook_fn") if name in kwargs)]
    if len(given) != 1 or isinstance(given[0], Value) or given[0] is None or isinstance(given[0], str | int | float):
        said = describe(given[0]) if len(given) == 1 else f"{len(given)} arguments"
        raise tracer.error(f"register_hook() takes a function, not {said}", kind=TypeError)
    hook = given[0]
    requested = any(value in wanted for _, _, wanted in tracer.differentiated)
    if isinstance(value, Parameter) or requested:
        hooks = tracer.leaf_hooks.setdefault(value, [])
        hooks.append(hook)
        return TensorHookHandle(lambda: hooks.remove(hook))
    if not isinstance(value, Node) or not _has_gradient(value):
        return TensorHookHandle(lambda: None)
    return _hook_node(tracer, tracer.hooked.get(value, value), value, hook, run)


def _hook_node(tracer: Tracer, source: Node, value: Value, hook: Any, run: Run) -> TensorHookHandle:
    """Insert a hook between the operator of a node and all readers of the node, earlier ones included: the operator
    moves to a new node, and the node itself becomes the result of OwnGradient."""
    nodes = tracer.builder.nodes
    if source not in nodes or any(nodes.index(source) < start for _, start, _ in tracer.differentiated):
        raise tracer.error(
            "register_hook() is called in another function, branch or loop than the tensor is computed in",
            ["call it directly after the line that computes the tensor"],
        )
    place, first = nodes.index(source), len(nodes)
    placeholder = tracer.builder.emit(GradientPlaceholder(type=source.type))
    found = hooked_gradients(tracer, "hook", run(hook, [placeholder]), (placeholder,))
    (grad,) = anchored(tracer, first + 1, placeholder, list(found))
    own = tracer.builder.emit(OwnGradient(), source, source, placeholder, grad)
    made = nodes[first:]
    late = set(nodes[place:first])
    if any(each in late and each is not source for node in made for each in node.inputs):
        raise tracer.error(
            "the hook reads a value that is computed later than the tensor",
            ["call register_hook() after the line that computes the value, on a tensor that is computed later"],
        )
    moved = interpose(source, TupleGetItem(index=0))
    own.inputs[:2], source.inputs = [moved, moved], [own]
    del nodes[first:]
    nodes[place:place] = [moved, *made]
    tracer.runs.clear()  # positions of nodes changed
    tracer.hooked[value] = moved

    def remove() -> None:
        own.inputs[-1] = placeholder

    return TensorHookHandle(remove)


def leaf_gradient(tracer: Tracer, value: Value, parameter: Any, grad: Value, run: Run) -> Value:
    """Return the gradient of a differentiated value after the hooks registered on it. parameter: the script's, or
    None."""
    hooks = list(tracer.leaf_hooks.get(value, ()))
    if isinstance(parameter, session.Parameter):
        tracer.reads.attribute(parameter, "gradient_hooks", parameter.gradient_hooks)
        hooks = [*parameter.gradient_hooks, *hooks]
    for hook in hooks:
        (grad,) = hooked_gradients(tracer, "hook", run(hook, [grad]), (grad,))
    return grad
