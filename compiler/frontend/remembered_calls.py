"""Remembers calls of cells and functions that a gradient may reuse, so that their forward part is in the graph once.

`loss = net(x)` and then `grad(net, weights)(x)` is one run of `net` and its gradient, even if `net` draws random
numbers or changes parameters. A run is reused only while the parameters that it read still have the same values.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Collection, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mspc.compiler.frontend.cell_marks import is_sharded_function
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure
from mspc.ir.graph import Node, Value, depending, interpose
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.mindspore_api.common.gradient import JitFunction
from mspc.mindspore_api.nn.cell import Cell
from mspc.ops.control.structural import Gradient, StopGradient
from mspc.ops.op import Op


@dataclass(frozen=True)
class RememberedCall:
    """A call that is in the graph.

    result: its return value. first, last: its nodes are `nodes[first:last]`. called: the function and its arguments,
    kept alive because the key holds their identities.
    """

    result: Any
    first: int
    last: int
    called: tuple[Any, ...]


def call_key(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return a key that is equal for calls of one function with the same arguments; None if `fn` is no cell or Python
    function."""
    while isinstance(fn, JitFunction | functools.partial):
        if isinstance(fn, functools.partial):
            args, kwargs = [*fn.args, *args], {**fn.keywords, **kwargs}
        fn = fn.func if isinstance(fn, functools.partial) else fn.fn
    if isinstance(fn, types.MethodType):
        owner = fn.__self__
        is_construct = isinstance(owner, Cell) and fn.__func__ is type(owner).construct
        fn, args = (owner, args) if is_construct else (fn.__func__, [owner, *args])
    if not (isinstance(fn, Cell | Closure | types.FunctionType) or is_sharded_function(fn)):
        return None
    names = _positional_names(fn) if kwargs else ()
    for name in names[len(args) :]:
        if name not in kwargs:
            break
        args, kwargs = [*args, kwargs[name]], {key: value for key, value in kwargs.items() if key != name}
    return _key(fn, ()), tuple(_key(arg, ()) for arg in args), _key(dict(kwargs), ())


def remember(tracer: Tracer, key: Hashable, result: Any, first: int, called: tuple[Any, ...]) -> None:
    """Record a call whose nodes begin at `first` and end here."""
    nodes = tracer.builder.nodes
    if len(nodes) > first and _is_complete(nodes[first:]):
        tracer.runs[key] = RememberedCall(result, first, len(nodes), called)


def _is_complete(nodes: Sequence[Node]) -> bool:
    """Return whether the nodes of a call include the functions of all its gradient requests. A call that reused an
    earlier one does not include it: an enclosing request would see the earlier call as a constant."""
    outputs = [value for node in nodes if isinstance(node.op, Gradient) for value in node.inputs[: node.op.outputs]]
    made: set[Value] = set(nodes) if outputs else set()
    return all(value in made for value in outputs if isinstance(value, Node))


def recalled(tracer: Tracer, key: Hashable | None) -> RememberedCall | None:
    """Return the run of an equal call, if nothing that it read or changed was changed after it."""
    run = None if key is None else tracer.runs.get(key)
    if run is None or not tracer.reuses_calls:
        return None
    nodes = tracer.builder.nodes
    for others, start, wanted in tracer.differentiated:
        # A call before the function of an outer request is no part of it, so that request would see a constant.
        if others is nodes and run.first < start and not depending(nodes[: run.last], wanted).isdisjoint(
            nodes[run.first : run.last]
        ):
            return None
    changed = {node.inputs[i] for node in nodes[run.last :] for i in updated_operands(node)}
    if changed and any(value in changed for node in nodes[run.first : run.last] for value in node.inputs):
        return None
    tracer.has_reused_calls = True
    return run


@contextmanager
def differentiated_by(tracer: Tracer, wanted: Sequence[Value]) -> Generator[None]:
    """Make the nodes emitted in the context the function of a request for gradients with respect to `wanted`.

    `tracer.differentiated` has the list of nodes, the index of the first one, and these values.
    """
    nodes = tracer.builder.nodes
    tracer.differentiated.append((nodes, len(nodes), wanted))
    try:
        yield
    finally:
        tracer.differentiated.pop()


@contextmanager
def without_gradient(tracer: Tracer, first: int) -> Generator[None]:
    """Stop gradients at the results of the nodes emitted from `first` on."""
    tracer.no_gradients += 1
    builder = tracer.builder
    try:
        yield
    finally:
        tracer.no_gradients -= 1
    made = builder.nodes[first:]
    del builder.nodes[first:]
    for node in made:
        if isinstance(node.type, TensorType) and node.type.dtype.has_gradient and not updated_operands(node):
            builder.nodes.append(interpose(node, StopGradient()))
        builder.nodes.append(node)
    forget(tracer, first)  # calls of the same functions outside have gradients


def forget(tracer: Tracer, first: int) -> None:
    """Exclude calls from node `first` on from reuse by gradients."""
    tracer.runs = {key: run for key, run in tracer.runs.items() if run.first < first}


def updated_operands(node: Node) -> tuple[int, ...]:
    """Return the indices of the operands that a node changes."""
    return node.op.mutates if isinstance(node.op, Op) else ()


def _positional_names(fn: Any) -> list[str]:
    if isinstance(fn, Closure):
        return [argument.arg for argument in (*fn.source.tree.args.posonlyargs, *fn.source.tree.args.args)]
    function = fn.construct if isinstance(fn, Cell) else fn
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _key(value: Any, around: Collection[int]) -> Hashable:
    """Return a key that is equal for equal arguments: tensors and objects by identity, numbers and containers by
    contents, nested functions with their captured values. around: identities of functions not to enter."""
    if isinstance(value, tuple | list):
        return type(value), tuple(_key(item, around) for item in value)
    if isinstance(value, dict):
        return dict, tuple((name, _key(item, around)) for name, item in value.items())
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, Closure) and id(value) not in around:
        names = sorted({n.id for n in ast.walk(value.source.tree) if isinstance(n, ast.Name)})
        inside = (*around, id(value))
        return id(value), tuple(_key(value.frame.lookup(name), inside) for name in names)
    return id(value)
