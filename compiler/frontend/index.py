"""Subscripts: of tensors, which become one StridedSlice or Gather, and of what is known at compile time."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.operators import is_graph_value
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import contains_tensor, describe
from mspc.ir.diagnostics import kind_of
from mspc.ir.graph import Value


def subscript(tracer: Tracer, base: Any, index: Any) -> Any:
    """`base[index]`; the place must have been given to the tracer.

    Raises:
        MspcError: the index does not fit, or is of a kind that is not supported.
    """
    if is_graph_value(base):
        return tensor_subscript(tracer, tracer.value(base), index)
    if isinstance(base, Tensor | np.ndarray) and contains_tensor(index):
        return tensor_subscript(tracer, tracer.value(base), index)
    if contains_tensor(index):
        if isinstance(base, dict):
            raise tracer.error("a tensor cannot be a key", kind=TypeError)
        raise tracer.error(
            f"the index is {describe(index)}; {describe(base)} takes an index known at compile time",
            kind=TypeError,
        )
    try:
        return base[index]
    except Exception as error:
        raise tracer.error(_complaint(base, index, error), getattr(error, "notes", ()), kind=kind_of(error)) from None


def _complaint(base: Any, index: Any, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no key {index!r}"
    if isinstance(error, IndexError) and hasattr(base, "__len__"):
        what = type(base).__name__ if isinstance(base, Cell | tuple | list | str) else "value"
        return f"index {index} is out of range: the {what} has {len(base)} elements"
    if isinstance(error, TypeError) and not hasattr(base, "__getitem__"):
        return f"{describe(base)} has no elements"
    return getattr(error, "message", None) or str(error)


def tensor_subscript(tracer: Tracer, x: Value, index: Any) -> Any:
    """A slice of a tensor: integers, slices, None, `...`, or one tensor or list of integers that
    picks rows."""
    if isinstance(index, list) or isinstance(index, Tensor | np.ndarray) or is_graph_value(index):
        return _gather(tracer, x, index)
    entries = index if isinstance(index, tuple) else (index,)
    return _strided(tracer, x, _expanded(tracer, x, entries))


def _gather(tracer: Tracer, x: Value, index: Any) -> Any:
    rows = tracer.value(index)
    if not rows.tensor_type.dtype.is_integer:
        raise tracer.error(
            f"a tensor of {rows.tensor_type.dtype} cannot be an index; rows are picked by integers",
            [
                "for a mask use ops.select(mask, a, b) or multiply by it: the result's shape "
                "must be known at compile time"
            ],
            kind=IndexError,
        )
    if not x.shape:
        raise tracer.error("a scalar tensor has no elements to pick", kind=IndexError)
    gather, operands = tracer.op("Gather").call(x, rows, 0)
    return tracer.emit(gather, *operands)


def _expanded(tracer: Tracer, x: Value, entries: tuple[Any, ...]) -> list[Any]:
    """The entries with `...` written out and whole dimensions at the end."""
    named = sum(1 for entry in entries if entry is not None and entry is not Ellipsis)
    if named > len(x.shape):
        raise tracer.error(
            f"{named} indices for a tensor of {len(x.shape)} dimensions, whose shape is {x.shape}",
            kind=IndexError,
        )
    rest: list[Any] = [slice(None)] * (len(x.shape) - named)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise tracer.error("an index holds '...' more than once", kind=IndexError)
    if not dots:
        return [*entries, *rest]
    return [*entries[: dots[0]], *rest, *entries[dots[0] + 1 :]]


def _strided(tracer: Tracer, x: Value, entries: list[Any]) -> Any:
    begin: list[int] = []
    end: list[int] = []
    strides: list[int] = []
    new_axis = shrink = dim = 0
    whole = True
    for place, entry in enumerate(entries):
        if entry is None:
            begin.append(0)
            end.append(1)
            strides.append(1)
            new_axis |= 1 << place
            whole = False
            continue
        size = x.shape[dim]
        if isinstance(entry, slice):
            start, stop, step = _bounds(tracer, entry, size, dim)
            whole = whole and (start, stop, step) == (0, size, 1)
        else:
            start, stop, step = _element(tracer, entry, size, dim)
            shrink |= 1 << place
            whole = False
        begin.append(start)
        end.append(stop)
        strides.append(step)
        dim += 1
    if whole:
        return x
    op = tracer.op(
        "StridedSlice",
        begin=tuple(begin),
        end=tuple(end),
        strides=tuple(strides),
        new_axis_mask=new_axis,
        shrink_axis_mask=shrink,
    )
    return tracer.emit(op, x)


def _bounds(tracer: Tracer, entry: slice, size: int, dim: int) -> tuple[int, int, int]:
    parts = [_integer(tracer, part, dim) for part in (entry.start, entry.stop, entry.step)]
    if parts[2] is not None and parts[2] <= 0:
        raise tracer.error(f"the step of a slice must be positive, not {parts[2]}", kind=ValueError)
    start, stop, step = slice(*parts).indices(size)
    count = len(range(start, stop, step))
    if not count:
        raise tracer.error(f"the slice takes nothing from dimension {dim}, whose size is {size}", kind=ValueError)
    return start, min(stop, start + (count - 1) * step + 1) if step > 1 else stop, step


def _element(tracer: Tracer, entry: Any, size: int, dim: int) -> tuple[int, int, int]:
    if isinstance(entry, bool) or entry is None:
        raise tracer.error(f"{entry!r} cannot be an index", kind=IndexError)
    place = _integer(tracer, entry, dim)
    assert place is not None
    if not -size <= place < size:
        raise tracer.error(f"index {place} is out of range for dimension {dim}, whose size is {size}", kind=IndexError)
    return place % size, place % size + 1, 1


def _integer(tracer: Tracer, part: Any, dim: int) -> int | None:
    if part is None:
        return None
    if is_graph_value(part):
        raise tracer.error(
            f"the index of dimension {dim} is {describe(part)}; beside other indices it must "
            f"be known at compile time"
        )
    if isinstance(part, Tensor) and part.size == 1:
        part = part.item()
    try:
        return operator.index(part)
    except TypeError:
        raise tracer.error(
            f"the index of dimension {dim} is {describe(part)}, not an integer", kind=IndexError
        ) from None


def unpacked(tracer: Tracer, value: Any, what: str) -> list[Any]:
    """The elements of something that is iterated over at compile time.

    Raises:
        MspcError: it is a tensor, or it cannot be iterated over in an order that is always the same.
    """
    if isinstance(value, Value) or tracer.is_tensor(value):
        shape = tuple(value.shape)
        raise tracer.error(
            f"{what} goes over a tensor of shape {shape}",
            ["loop over range(x.shape[0]) and take x[i], or use ops.unstack"],
            kind=TypeError,
        )
    if isinstance(value, set | frozenset):
        raise tracer.error(f"{what} goes over a set, whose order is not defined", ["use sorted(...)"], kind=TypeError)
    if isinstance(value, list | tuple):
        return list(value)
    try:
        return list(value)
    except TypeError:
        raise tracer.error(f"{what} goes over {describe(value)}, which has no elements", kind=TypeError) from None
