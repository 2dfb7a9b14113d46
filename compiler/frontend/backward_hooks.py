"""Compiles hooks on gradients: those of cells and of tensors, and `HookBackward`. They become part of the backward
graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.api.common import parameter as session
from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.custom import Run, anchored
from mspc.compiler.frontend.earlier_parameters import as_it_is
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import describe, tensors_in
from mspc.ir.graph import Node, Parameter, Value, interpose
from mspc.ir.types import TensorType
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.structural import TupleGetItem


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.dtype.has_gradient


def _placeholders(tracer: Tracer, values: Sequence[Value]) -> list[Value]:
    return [tracer.builder.emit(GradientPlaceholder(type=value.type)) for value in values]


def _rebuilt(like: Any, new: Mapping[Value, Any], otherwise: Any = None) -> Any:
    """Copy a structure with its tensors replaced; what has no replacement is `otherwise`, or itself if that is
    Ellipsis."""
    if isinstance(like, tuple | list):
        return tuple(_rebuilt(each, new, otherwise) for each in like)
    if isinstance(like, Value) and like in new:
        return new[like]
    return like if otherwise is ... else otherwise


def hooked_gradients(tracer: Tracer, label: str, found: Any, grads: Any) -> Any:
    """Return the gradients that a hook returns in place of a tuple of them; None changes nothing.

    Raises:
        MspcError: the number of gradients or a shape differs.
    """
    if found is None:
        return grads
    entries = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(entries) != len(grads):
        raise tracer.error(
            f"the {label} returns {len(entries)} gradient{'s' * (len(entries) != 1)}, and takes {len(grads)}",
            kind=TypeError,
        )
    return tuple(_replaced(tracer, label, new, old) for new, old in zip(entries, grads, strict=True))


def _replaced(tracer: Tracer, label: str, new: Any, old: Any) -> Any:
    if new is None or old is None:
        return old
    made = tracer.value(new, old.tensor_type.dtype, f"a gradient that the {label} returns")
    if made.shape != old.shape:
        raise tracer.error(
            f"the {label} returns a gradient of shape {made.shape} in place of one of shape {old.shape}",
            kind=ValueError,
        )
    return tracer.cast(made, old.tensor_type.dtype)


class HookedInputs:
    """The inputs of a cell with backward hooks: their gradients and those of the outputs meet in a hook."""

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
            self._grads = _rebuilt(tuple(tensors), dict(zip(sources, self._placeholders, strict=True)))
            self.inputs = _rebuilt(tuple(self.inputs), dict(zip(sources, marked, strict=True)), ...)

    def result_of(self, result: Any) -> Any:
        """Return the result of the cell, with the hooks on its gradients."""
        tracer, name = self._tracer, type(self._cell).__name__
        results = list(dict.fromkeys(value for value in tensors_in(result) if _has_gradient(value)))
        if not results:
            return result
        placeholders = _placeholders(tracer, results)
        first = len(tracer.builder.nodes)
        whole = tuple(tensors_in(result))
        grads = _rebuilt(whole, dict(zip(results, placeholders, strict=True)))
        for hook in self._before:
            found = self._run(hook, [self._cell, grads])
            grads = hooked_gradients(tracer, f"backward pre-hook of {name}", found, grads)
        of_results = dict(zip(whole, grads, strict=True))
        given = anchored(tracer, first, placeholders[0], [of_results[value] for value in results])
        inner: list[Value] = []
        if self._placeholders:
            first = len(tracer.builder.nodes)
            found, outer = self._grads, _rebuilt(whole, dict(zip(results, given, strict=True)))
            for hook in self._behind:
                answer = self._run(hook, [self._cell, found, outer])
                found = hooked_gradients(tracer, f"backward hook of {name}", answer, found)
            by_place = dict(zip(self._grads, found, strict=True))
            inner = anchored(tracer, first, self._placeholders[0], [by_place[each] for each in self._placeholders])
        op = OwnGradient(results=len(results), sources=len(results), inner=len(inner))
        made = tracer.emit(op, *results, *results, *placeholders, *given, *self._placeholders[: len(inner)], *inner)
        new = _rebuilt(result, dict(zip(results, made, strict=True)), ...)
        return tracer.own(list(new)) if isinstance(result, list) else new


def hook_backward(tracer: Tracer, hook: Any, args: Sequence[Any], run: Run) -> Any:
    """The result of `HookBackward(hook)(*args)`."""
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


class TensorHookHandle:
    """A hook of a tensor of the graph, which `remove` takes away."""

    def __init__(self, remove: Any) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Take the hook away."""
        self._remove()


def register_hook(tracer: Tracer, value: Value, args: Sequence[Any], kwargs: Mapping[str, Any], run: Run) -> Any:
    """`value.register_hook(hook)`. The hook takes the whole gradient of the tensor, uses before the call included.

    Raises:
        MspcError: the argument is no function, or the hook reads values that are computed later than the tensor.
    """
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
    """Put a hook between the operator of a node and all that reads the node, also what has read it before: the operator
    moves to a new node, and the node itself takes the result of OwnGradient."""
    nodes = tracer.builder.nodes
    if source not in nodes or any(nodes.index(source) < start for _, start, _ in tracer.differentiated):
        raise tracer.error(
            "register_hook() is called in another function, branch or loop than the tensor is computed in",
            ["call it right behind the line that computes the tensor"],
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
            ["call register_hook() behind the line that computes the value, on a tensor that is computed later"],
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
    """Return the gradient of a value that is differentiated by, as the hooks registered on it leave it."""
    hooks = list(tracer.leaf_hooks.get(value, ()))
    if isinstance(parameter, session.Parameter):
        hooks = [*parameter.gradient_hooks, *hooks]
    for hook in hooks:
        (grad,) = hooked_gradients(tracer, "hook", run(hook, [grad]), (grad,))
    return grad
