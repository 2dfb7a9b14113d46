"""Compiles operators and gradients that the script defines itself: `Custom`, and `bprop` of cells."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mspc.api.ops.own_operators import Custom
from mspc.compiler.frontend.primitives import operand
from mspc.compiler.frontend.remembered_calls import forget
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame, describe, tensors_in
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import NamedLayout
from mspc.ir.types import TensorType
from mspc.ops.control.custom import Custom as CustomOp
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient, ScriptFunction, rule_of
from mspc.ops.control.structural import Depend
from mspc.ops.op import Op

Run = Callable[[Any, list[Any]], Any]
"""Calls a function of the script with arguments."""


def call_custom(
    tracer: Tracer, frame: Frame, node: ast.AST, custom: Custom, args: Sequence[Any], run: Run
) -> Any:
    """The result of `custom(*args)`."""
    tracer.at(frame, node)
    tracer.particulars += 1  # functions of the script are asked for types
    given = [operand(tracer, arg) for arg in args]
    try:
        op, operands = custom.function_on(given, _type_of)
        op = replace(op, called=ScriptFunction.of(_name(tracer, custom.func), custom.func))
        if custom.in_strategy is not None and tracer.sharded:
            op = replace(op, cuts=_stated_rule(op, custom, [value.tensor_type for value in operands]))
    except MspcError as error:
        raise tracer.error(error.message, error.notes, kind=error.kind or RuntimeError) from None
    made, result = tracer.emit_on(op, operands, instance=custom.instance_name)
    if custom.in_strategy is not None:
        if tracer.sharded:
            made.in_strategy = tuple(_of_tensors(custom.in_strategy, given))
        else:
            tracer.keep(custom)
            tracer.ignored.add(id(custom))
    made.attrs.update(custom.attrs)
    return result if custom.own_gradient is None else own_gradient(tracer, custom.own_gradient, given, result, run)


def _type_of(value: Any) -> TensorType | None:
    return value.tensor_type if isinstance(value, Value) else None


def _name(tracer: Tracer, function: Any) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__).rpartition(".")[2]
    file = tracer.sources.file(code.co_filename).name if code is not None else ""
    return f"{file}:{code.co_firstlineno} {name}" if file and code is not None else name


def _of_tensors(strategy: Any, given: Any) -> Iterator[Any]:
    """The entries of a strategy for the tensors among the arguments, nested as these."""
    for entry, value in zip(strategy, given, strict=False):
        if isinstance(value, tuple | list) and not isinstance(entry, NamedLayout):
            yield from _of_tensors(entry, value)
        elif isinstance(value, Value):
            yield entry


def _stated_rule(op: CustomOp, custom: Custom, types: list[TensorType]) -> str:
    """The rule that a strategy states: dimensions that it shards along the same axes are sharded together."""
    entries = list(_of_tensors(custom.in_strategy, _nested(op.given, iter(types))))
    if len(entries) != len(types):
        raise MspcError(f"Custom: in_strategy has {len(entries)} entries for {len(types)} tensors")
    rows = [_labels(entry, t.shape, f"input {i}") for i, (entry, t) in enumerate(zip(entries, types, strict=True))]
    shapes = [t.shape for t in types]
    asked = list(custom.out_strategy or ())
    if asked and len(asked) != len(op.results):
        raise MspcError(f"Custom: out_strategy has {len(asked)} entries for {len(op.results)} results")
    for i, type in enumerate(op.results):
        if asked:
            rows.append(_labels(asked[i], type.shape, f"result {i}"))
        else:
            like = [row for row, shape in zip(rows, shapes, strict=False) if shape == type.shape]
            rows.append(like[0] if like else [""] * len(type.shape))
    return rule_of(shapes, [t.shape for t in op.results], rows)


def _nested(given: Any, types: Iterator[TensorType]) -> Any:
    """The arguments with a Value-like place for each tensor."""
    if isinstance(given, tuple):
        return tuple(_nested(each, types) for each in given)
    return Value(next(types)) if given == "tensor" else given


def _labels(entry: Any, shape: Sequence[int], what: str) -> list[str]:
    """A name for every dimension that an entry shards: that of its mesh axes, or, of a tuple, of its place from the
    right; "" for those that it does not shard."""
    shard_counts = list(entry.strategy if isinstance(entry, NamedLayout) else entry)
    if len(shard_counts) != len(shape):
        raise MspcError(f"Custom: the strategy of {what} has {len(shard_counts)} entries for {len(shape)} dimensions")
    if not isinstance(entry, NamedLayout):
        return [f"d{len(shard_counts) - i}" if shards > 1 else "" for i, shards in enumerate(shard_counts)]
    axes = [axis if isinstance(axis, tuple) else (axis,) for axis in entry.tensor_map]
    return [
        "m" + "_".join(map(str, axis)) if shards > 1 else ""
        for axis, shards in zip(axes, shard_counts, strict=True)
    ]


def own_gradient(tracer: Tracer, function: Any, args: Sequence[Any], result: Any, run: Run) -> Any:
    """`result`, computed from `args`, with the gradient that `function(*args, result, gradient of the result)` gives.

    Raises:
        MspcError: it returns no gradient for a tensor, or one of another shape.
    """
    results = tensors_in(result)
    if not results or not tensors_in(tuple(args)):
        return result
    placeholders = [tracer.builder.emit(GradientPlaceholder(type=value.type)) for value in results]
    dout = _rebuilt(result, iter(placeholders))
    first = len(tracer.builder.nodes)
    found = anchored(tracer, first, placeholders[0], run(function, [*args, result, dout]))
    entries: tuple[Any, ...] = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(entries) < len(args):
        raise tracer.error(f"bprop returns {len(entries)} gradients for {len(args)} arguments", kind=TypeError)
    pairs = [_for(tracer, arg, entry, i) for i, (arg, entry) in enumerate(zip(args, entries, strict=False))]
    sources, grads = ([pair[side] for pair in itertools.chain(*pairs)] for side in (0, 1))
    op = OwnGradient(results=len(results), sources=len(sources))
    values = tracer.emit(op, *results, *sources, *placeholders, *grads)
    return _rebuilt(result, iter(values))


def anchored(tracer: Tracer, first: int, placeholder: Value, grads: Any) -> Any:
    """Return the gradients that a function of the script computes by the nodes from `first` on. The first one waits for
    the nodes that print, which wait for each other: differentiation copies only what the gradients depend on.

    Raises:
        MspcError: a node changes a parameter.
    """
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


def inserted_gradient(tracer: Tracer, function: Any, arg: Any, run: Run) -> Any:
    """A tensor whose gradient passes through a function."""
    from mspc.compiler.frontend.earlier_parameters import as_it_is  # late: as custom gradients are

    value = as_it_is(tracer, tracer.value(arg))
    return own_gradient(tracer, function, [value], value, lambda call, given: run(call, given[-1:]))


def _rebuilt(like: Any, values: Iterator[Any]) -> Any:
    if isinstance(like, tuple | list):
        return tuple(_rebuilt(each, values) for each in like)
    return next(values) if isinstance(like, Value) else like


def _for(tracer: Tracer, arg: Any, grad: Any, place: int) -> list[tuple[Value, Value]]:
    """The tensors of one argument, each with its gradient."""
    tensors = tensors_in(arg)
    if not tensors:
        return []
    given = list(grad) if isinstance(grad, tuple | list) and isinstance(arg, tuple | list) else [grad]
    if len(given) != len(tensors):
        tracer.warn(
            f"bprop returns {describe(grad)} for the {len(tensors)} tensors of argument {place}, which get no gradient"
        )
        return []
    found: list[tuple[Value, Value]] = []
    for value, each in zip(tensors, given, strict=True):
        dtype = value.tensor_type.dtype
        made = tracer.value(each, dtype, "bprop")
        if made.shape != value.shape:
            raise tracer.error(
                f"bprop returns a gradient of shape {made.shape} for argument {place}, which has shape {value.shape}",
                kind=ValueError,
            )
        found.append((value, tracer.cast(made, dtype) if dtype.has_gradient else made))
    return found
