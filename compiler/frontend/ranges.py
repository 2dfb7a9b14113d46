"""Ranges of which the run knows the bounds: how many numbers they have, and what the number of a turn is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import TensorRange
from mspc.ir.graph import Constant, Value
from mspc.ir.types import INT64


def range_of(tracer: Tracer, args: Sequence[Any]) -> TensorRange:
    """`range(...)` with tensors among its arguments. Raises MspcError where one is no integer."""
    if not 1 <= len(args) <= 3:
        raise tracer.error(f"range() takes 1 to 3 arguments, it is given {len(args)}", kind=TypeError)
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    return TensorRange(*(_bound(tracer, value) for value in (start, stop, step)))


def _bound(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    tensor = tracer.value(value, None, "range(): an argument")
    type = tensor.tensor_type
    if type.size != 1 or type.dtype.kind not in "iu":
        notes = ["cast it first: n.astype(mindspore.int64)"] if type.size == 1 else []
        raise tracer.error(f"range() counts by integers of one element, not by a tensor {type}", notes, TypeError)
    return reshape(tracer, tracer.cast(tensor, INT64), ())


def count_of(tracer: Tracer, numbers: TensorRange | range) -> Value | int:
    """How many numbers a range has."""
    if isinstance(numbers, range):
        return len(numbers)
    emit, op = tracer.emit, tracer.op
    start, stop, step = numbers.start, numbers.stop, numbers.step
    if isinstance(start, int) and start == 0 and isinstance(step, int) and step == 1:
        count = stop
    elif isinstance(step, int) and step == 1:
        count = emit(op("Sub"), stop, start)
    else:  # the quotient rounded up
        count = emit(op("Neg"), emit(op("FloorDiv"), emit(op("Sub"), _int(start), stop), step))
    return emit(op("Maximum"), count, 0)


def _int(value: Any) -> Any:
    return Constant(value, INT64) if isinstance(value, int) else value


def number_at(tracer: Tracer, numbers: TensorRange | range, turn: Value) -> Value:
    """The number of a turn, which is a number of Python."""
    step = turn if isinstance(numbers.step, int) and numbers.step == 1 else tracer.emit(
        tracer.op("Mul"), turn, numbers.step
    )  # fmt: skip
    if isinstance(numbers.start, int) and numbers.start == 0:
        found = step
    else:
        found = tracer.emit(tracer.op("Add"), step, numbers.start)
    tracer.weak.add(found)
    return found
