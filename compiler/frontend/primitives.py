"""Turns calls of operators inside `construct` into nodes with the user's strategies and attributes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame, tensors_in
from mspc.ir.diagnostics import MspcError, kind_of
from mspc.ir.graph import Value, with_instance
from mspc.ir.layout import NamedLayout
from mspc.mindspore_api.common.seed import seeds_of_call
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.ops.eager import called
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.ops.control.structural import Depend
from mspc.ops.op import Op, RequestedSharding
from mspc.ops.operator_arguments import misfit
from mspc.ops.tensor.reshape import Cast, Reshape

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def operand(tracer: Tracer, value: Any) -> Any:
    """Return an argument of an operator with tensors of the script as graph values, also inside tuples."""
    if isinstance(value, Tensor | np.ndarray):
        return tracer.value(value)
    if isinstance(value, tuple | list) and any(isinstance(v, Tensor | np.ndarray | tuple | list) for v in value):
        return tuple(operand(tracer, v) for v in value)
    return value


def call_primitive(
    tracer: Tracer, frame: Frame, node: ast.AST, primitive: Primitive, args: Args, kwargs: Kwargs
) -> Any:
    """Emit one operator with the user's strategies, and casts if element types must be promoted."""
    tracer.at(frame, node)
    try:
        primitive, args = primitive.applied(args, kwargs)
    except MspcError as error:
        raise tracer.error(error.message, error.notes, kind=error.kind or TypeError) from None
    instance = primitive.instance_name
    if isinstance(primitive.op, Depend):
        return _depend(tracer, primitive.op, args, instance)
    given = [operand(tracer, arg) for arg in args]
    op, operands = _prepared(tracer, _drawing(tracer, primitive), given, instance)
    ins, outs = _of_operands(op, primitive.in_strategy, given, operands), primitive.out_strategy
    try:
        made, result = tracer.emit_on(op, operands, instance=instance)
    except MspcError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise tracer.error(misfit(op.name, op.attributes(), operands, error), kind=kind_of(error)) from None
    if op.mutates and not op.updates_aside:
        made.phase = "update"
    if ins is not None or outs is not None:
        if tracer.sharded:
            mistake = op.strategy_mistake(RequestedSharding(ins, outs, primitive.attrs))
            if mistake:
                raise tracer.error(f"{made.label}: {mistake}", ["take the strategy away"], RuntimeError)
            entries = ins or ((1,) * len(made.shape),)
            shards = [len(entry.strategy if isinstance(entry, NamedLayout) else entry) for entry in entries]
            if isinstance(op, Cast) and shards != [len(made.shape)]:
                tracer.warn(f"{made.label}: its strategy {ins} fits no tensor of shape {made.shape} and is ignored")
                return result
            if isinstance(op, Reshape) and made.type == made.inputs[0].type:
                tracer.warn(f"{made.label} changes nothing, so its strategy {ins} is ignored")
                return result
            made.in_strategy, made.out_strategy = ins, outs
        else:
            tracer.keep(primitive)
            tracer.ignored.add(id(primitive))
    if primitive.attrs:
        made.attrs.update(primitive.attrs)
    return result


def _of_operands(op: Op, strategy: Any, given: Sequence[Any], operands: Sequence[Any]) -> Any:
    """Remove the strategy entries of tensors that the call received but the operator does not read, if these are
    unsharded and the operator does not define itself which operands have entries."""
    tensors = [value for value in given if isinstance(value, Value)]
    if strategy is None or not len(strategy) == len(tensors) > len(operands):
        return strategy
    if type(op).strategy_dims is not Op.strategy_dims:
        return strategy
    read = [any(value is operand for operand in operands) for value in tensors]
    left = [entry for entry, is_read in zip(strategy, read, strict=True) if not is_read]
    if any(shards != 1 for entry in left for shards in (entry.strategy if isinstance(entry, NamedLayout) else entry)):
        return strategy
    return tuple(entry for entry, is_read in zip(strategy, read, strict=True) if is_read)


def _drawing(tracer: Tracer, primitive: Primitive) -> Op:
    """Return the operator; a random one with seeds for this call: a layer called twice draws different numbers."""
    op = primitive.op
    if not op.seeds:
        return op
    chosen: Any = tuple(getattr(op, name) for name in op.seeds)
    key = id(primitive) if any(chosen) else 0
    call = tracer.draws[key]
    tracer.draws[key] += 1
    tracer.keep(primitive)
    return replace(op, **dict(zip(op.seeds, seeds_of_call(chosen, call), strict=True)))


def _prepared(tracer: Tracer, op: Op, args: list[Any], instance: str) -> tuple[Op, Sequence[Any]]:
    try:
        op, operands = op.call(*args)
        return called(op), operands
    except MspcError as error:
        if error.location is not None:
            raise
        message = with_instance(error.message, op.name, instance)
        raise tracer.error(message, error.notes, error.kind or ValueError) from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        if isinstance(error, TypeError) and f"{type(op).__name__}.call()" in str(error):
            text = f"{op.name}: {error}".replace(f"{type(op).__name__}.call()", "it")
        else:
            text = misfit(op.name, {}, args, error)
        raise tracer.error(text, kind=kind_of(error)) from None


def _depend(tracer: Tracer, op: Depend, args: Args, instance: str) -> Any:
    if len(args) < 2:
        raise tracer.error("Depend takes a value and the values that must be computed before it", kind=TypeError)
    value, after = operand(tracer, args[0]), [v for arg in args[1:] for v in tensors_in(operand(tracer, arg))]
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return tuple(_depend(tracer, op, (v, *args[1:]), instance) for v in value)
    return tracer.emit(op, value, *after, instance=instance) if after else value
