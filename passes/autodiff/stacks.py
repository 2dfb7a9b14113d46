"""Sums and zeros of stacks (`StackType`): what is added or made for every turn is done by a loop over their entries."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.types import INT64, StackType, TensorType
from mspc.ops.control.loops import COUNT, For, TurnCount
from mspc.ops.control.regions import emit_regions
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.tensor.broadcast import filled


def sum_of_stacks(b: Builder, terms: Sequence[Value]) -> Value:
    """The stack of the sums of the entries, turn by turn. Some of the terms may be tensors, of loops whose turns are
    known, with an entry a turn along the first dimension: then so is the sum."""
    body = _body("sum_of_stacks", [_entry_type(term) for term in terms])
    inner = _inside(b, body)
    entries = body.parameters[1:]
    deeper = isinstance(entries[0].type, StackType)
    body.results = [sum_of_stacks(inner, entries) if deeper else inner.emit(AddN(), *entries)]
    known = [term.shape[0] for term in terms if not isinstance(term.type, StackType)]
    if known:
        made = emit_regions(b, For(scanned=len(terms), stacked=1, turns=known[0]), terms, [body])
        return b.emit(TupleGetItem(0), made)
    return _for_all(b, b.emit(TurnCount(), terms[0]), terms, body)


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of a value's type; of a stack as many."""
    if not isinstance(value.type, StackType):
        return filled(b, 0.0, value.tensor_type)
    body = _body("zeros_of_stack", [value.type.entry])
    body.results = [zeros_like(_inside(b, body), body.parameters[1])]
    return _for_all(b, b.emit(TurnCount(), value), [value], body)


def placeholder(b: Builder, type: TensorType) -> Value:
    """Something of a type that nobody is going to read, and that takes no memory."""
    if not isinstance(type, StackType):
        return filled(b, 0.0, type)
    body = _body("empty_stack", [])
    body.results = [placeholder(_inside(b, body), type.entry)]
    return _for_all(b, Constant(0, INT64), [], body)


def _entry_type(value: Value) -> TensorType:
    type = value.tensor_type
    return type.entry if isinstance(type, StackType) else type.with_shape(type.shape[1:])


def _body(name: str, entries: Sequence[TensorType]) -> Graph:
    body = Graph(name)
    body.parameters = [Parameter("turn", COUNT), *(Parameter(f"entry_{i}", type) for i, type in enumerate(entries))]
    body.returns_tuple = True
    return body


def _inside(b: Builder, body: Graph) -> Builder:
    inner = Builder(body)
    inner.scope, inner.frames, inner.phase = b.scope, b.frames, b.phase
    return inner


def _for_all(b: Builder, count: Value, stacks: Sequence[Value], body: Graph) -> Node:
    made = emit_regions(b, For(scanned=len(stacks), stacked=1), [count, *stacks], [body])
    return b.emit(TupleGetItem(0), made)
