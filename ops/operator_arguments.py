"""The arguments of a user's call, divided into tensors and attributes known at compile time."""

from __future__ import annotations

import linecache
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError, is_about_digits, value_repr
from mspc.ir.graph import Constant, Parameter, Value
from mspc.ir.text.limits import LONGEST_LIST
from mspc.ir.types import DType, dtype_of

INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_HOME = str(Path(__file__).parents[1])
"""The folder of mspc: errors raised in it have messages of its own."""
PLAIN = (str, bool, int, float, tuple, list, type(None))
"""Types whose values print themselves well in a message."""


def split_call(
    name: str, args: Sequence[Any], tensors: int, attributes: Sequence[str], optional: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (tensor operands, attributes by name) of a call `name(*tensors, *attributes)`. Raise MspcError for too few
    or too many arguments. optional: how many of the last attributes may be left out; they are then missing in the
    result."""
    most = tensors + len(attributes)
    least = most - optional
    if not least <= len(args) <= most:
        count = str(most) if least == most else f"{least} to {most}"
        what = f"{tensors} tensor{'s' * (tensors != 1)} and {', '.join(attributes)}"
        raise MspcError(f"{name} takes {count} arguments ({what}), not {len(args)}", kind=TypeError, code="E0301")
    return tuple(args[:tensors]), dict(zip(attributes, args[tensors:], strict=False))


def plain(value: Any) -> Any:
    """Return a value known at compile time (a constant, a tensor, an array or a list) as numbers and tuples of them."""
    value = value.value if isinstance(value, Constant) else value
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain, cast("Sequence[Any]", value))) if isinstance(value, (list, tuple)) else value


def int_of(name: str, what: str, value: Any) -> int:
    """Return `value` as an int. Raise MspcError unless it is an integer known at compile time."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if INT64_MIN <= number <= UINT64_MAX:
                return number
            raise MspcError(f"{name}: {what} is an integer that does not fit 64 bits", kind=ValueError)
    raise MspcError(
        f"{name}: {what} must be an integer known at compile time, not {describe(value)}", kind=TypeError, code="E0305"
    )


def ints_of(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Return `value` as a tuple of ints; a single int is a tuple of one. Raise MspcError for anything else."""
    if isinstance(value, (tuple, list)):
        entries = cast(Sequence[Any], value)
        if len(entries) > LONGEST_LIST:
            raise MspcError(f"{name}: {what} has {len(entries)} members, more than {LONGEST_LIST}", kind=ValueError)
        return tuple(int_of(name, f"{what}[{i}]", entry) for i, entry in enumerate(entries))
    try:
        return (int_of(name, what, value),)
    except MspcError:
        raise MspcError(
            f"{name}: {what} must be integers known at compile time, not {describe(value)}",
            kind=TypeError, code="E0305",
        ) from None


def size_of(name: str, what: str, value: Any) -> int:
    """Return `value` as a number of elements. Raise MspcError unless it is one known at compile time."""
    size = int_of(name, what, value)
    if size < 0:
        raise MspcError(f"{name}: {what} must not be negative, and is {size}", code="E0311")
    return size


def shape_of(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Return `value` as a shape; a single int is one of one dimension. Raise MspcError for anything else."""
    shape = ints_of(name, what, value)
    if any(size < 0 for size in shape):
        raise MspcError(f"{name}: {what} {shape} has a negative size", code="E0311")
    if math.prod(shape) > INT64_MAX:
        raise MspcError(f"{name}: {what} {shape} has more elements than 64 bits count")
    return shape


def dtype_arg(name: str, what: str, value: Any) -> DType:
    """Return `value` as an element type. Raise MspcError if it names none."""
    try:
        return dtype_of(value)
    except (MspcError, TypeError):
        raise MspcError(f"{name}: {what} must be an element type, not {describe(value)}", kind=TypeError) from None


def number_of(name: str, what: str, value: Any) -> int | float:
    """Return `value` as a number. Raise MspcError unless it is one known at compile time."""
    if isinstance(value, Constant) and value.value.size == 1:
        value = value.value.item()
    if isinstance(value, int | float):
        return value
    raise MspcError(f"{name}: {what} must be a number known at compile time, not {describe(value)}", code="E0305")


def constant_of(name: str, what: str, value: Any) -> Any:
    return plain(value)


def sequence_of(name: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tensors of a call `name((a, b))` or `name(a, b)`."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return tuple(cast(Sequence[Any], args[0]))
    return tuple(args)


def axis_in(name: str, axis: int, rank: int) -> int:
    """Return `axis` counted from 0. Raise MspcError if a tensor of `rank` dimensions has no such axis."""
    if not isinstance(cast(object, axis), int):
        raise MspcError(f"{name}: axis must be an int, not {describe(axis)}", kind=TypeError)
    if not -rank <= axis < rank:
        raise MspcError(f"{name}: axis {axis} is out of range for {rank} dimensions", code="E0306")
    return axis % rank


def axes_in(name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return ascending non-negative axes; all if none are given. Raise MspcError for an invalid or repeated axis."""
    if not rank and tuple(axes) in ((0,), (-1,)):  # a number is as a vector of one element
        return ()
    found = sorted(axis_in(name, axis, rank) for axis in axes) if axes else list(range(rank))
    if len(set(found)) != len(found):
        raise MspcError(f"{name}: axis {tuple(axes)} names a dimension twice", code="E0307")
    return tuple(found)


def describe(value: Any) -> str:
    """Return a short text of a wrong argument for messages, never a memory address."""
    if isinstance(value, Parameter) and value.kind == "parameter":
        return f"parameter '{value.name}'"
    if isinstance(value, Value):
        return "a tensor"
    if hasattr(type(value), "message_label"):
        return str(value.message_label)
    items: Sequence[Any] = value if type(value) in (tuple, list) else ()
    if any(isinstance(item, Value) or hasattr(type(item), "message_label") for item in items):
        return f"({', '.join(map(describe, items))})"
    return value_repr(value) if type(value) in PLAIN else type(value).__name__


def misfit(name: str, attributes: Mapping[str, Any], operands: Iterable[Any], error: Exception) -> str:
    """Return the message for an operator that Python or NumPy could not compute: the error's own text if mspc raised it
    or it is about an index, or the integer that no element type holds, or all arguments."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    line = linecache.getline(file, trace.tb_lineno) if trace is not None and file.startswith(_HOME) else ""
    if (line.lstrip().startswith("raise ") or isinstance(error, IndexError)) and not is_about_digits(error):
        return f"{name}: {error}"
    operands = list(operands)
    large = next(_large([*attributes.values(), *operands]), None)
    if large is not None:
        return f"{name}: {value_repr(large)} is beyond the 64 bits of an integer"
    shown = [f"{key}={describe(value)}" for key, value in attributes.items()]
    shown += [str(getattr(x, "type", None) or describe(x)) for x in operands]
    return f"{name}: these arguments do not fit: {', '.join(shown)}"


def _large(values: Iterable[Any]) -> Iterator[int]:
    """Yield the integers among values, and in tuples and lists, that no element type holds."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _large(cast(Sequence[Any], value))
        elif isinstance(value, int) and not INT64_MIN <= value <= UINT64_MAX:
            yield value


def require_elements(name: str, shape: Sequence[int], axes: Iterable[int], what: str) -> None:
    """Raise MspcError if one of the dimensions `axes` of input 0 has size 0; the message names `what` the dimension
    lacks."""
    for axis in axes:
        if not shape[axis]:
            raise MspcError(f"{name}: dimension {axis} of input 0 is empty and has no {what}")
