"""Operations that create, move and select elements by place, with starts known at compile time or not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import INT32, INT64
from mspc.mindspore_api import ops
from mspc.readers.stablehlo.emitter import BroadcastView, HloEmitter, Known, StackedRows, attribute, integer, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, integers
from mspc.readers.stablehlo.module import HloOperation


def broadcast(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a tensor that repeats its operand along new dimensions, the first by default, and those of size 1."""
    shape, value = tensor(operation.types[0]).shape, given[0]
    last = range(len(shape) - len(e.shape_of(value)), len(shape))
    dims = integers(operation, "dims", "broadcast_dimensions", default=last)
    if list(dims) != sorted(dims):
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        value, dims = e.transposed(value, order), tuple(dims[i] for i in order)
    if len(dims) != len(e.shape_of(value)) or any(d >= len(shape) for d in dims):
        raise MspcError(f"broadcast_in_dim: dims {dims} do not fit {e.shape_of(value)} in {shape}")
    base = value.base if isinstance(value, Known) else value.value if isinstance(value, BroadcastView) else value
    own = base.shape if isinstance(value, Known) else e.shape_of(base)
    wide = [1] * len(shape)
    for d, n in zip(dims, own, strict=True):
        wide[d] = n
    if isinstance(value, Known):
        return [Known(base.reshape(wide), shape)]
    return [e.spread(e.reshaped(base, wide), shape)]


def reshaped(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    return [e.reshaped(given[0], tensor(operation.types[0]).shape)]


def transposed(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    return [e.transposed(given[0], integers(operation, "dims", "permutation"))]


def in_memory(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a tensor whose elements have the same order in memory, in another shape. A layout lists the dimensions
    from the one whose elements are neighbours."""
    source, target = (
        [int(n) for n in re.findall(r"\d+", str(getattr(attribute(operation, name, default=""), "text", "")))]
        for name in ("source_layout", "result_layout")
    )
    found = tensor(operation.types[0])
    if found.dtype != e.type_of(given[0]).dtype:
        raise MspcError(f"a bitcast of {e.type_of(given[0])} to {found} changes the type of elements")
    order = list(reversed(target or range(found.rank - 1, -1, -1)))
    stored = e.transposed(given[0], tuple(reversed(source))) if len(source) > 1 else given[0]
    stored = e.reshaped(stored, tuple(found.shape[d] for d in order))
    return [e.transposed(stored, tuple(order.index(d) for d in range(found.rank))) if found.rank > 1 else stored]


def slice_limits(operation: HloOperation) -> tuple[tuple[int, ...], ...]:
    """Return the static begins, ends and steps of a slice."""
    if operation.entries and isinstance(operation.entries[0], list):
        begin, end, step = zip(*((*each, 1)[:3] for each in operation.entries[0]), strict=True) or ((), (), ())
        return begin, end, step
    begin, end = integers(operation, "start_indices"), integers(operation, "limit_indices")
    return begin, end, integers(operation, "strides", default=(1,) * len(begin))


def sliced(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a slice with static limits, which may be operands."""
    return [e.part(given[0], *([known_numbers(e, operation, each) for each in given[1:]] or slice_limits(operation)))]


def concatenated(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    dim = attribute(operation, "dim", "dimension", default=0)
    parts = [each for each in given if e.shape_of(each)[dim]] or list(given[:1])
    if len(parts) == 1:
        return parts
    shape = tensor(operation.types[0]).shape
    if all(isinstance(each, Known) for each in parts) and np.prod(shape) <= 1 << 12:
        return [Known(np.concatenate([np.broadcast_to(each.base, each.shape) for each in parts], dim), shape)]
    return [e.call(ops.Concat(dim), tuple(map(e.whole, parts)))]


def padded(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a tensor with elements around and between its own; their numbers may be operands."""
    if len(given) > 2:
        return [padded_by(e, given[0], given[1], *(known_numbers(e, operation, each) for each in given[2:]))]
    low = integers(operation, "low", "edge_padding_low")
    high = integers(operation, "high", "edge_padding_high")
    inside = integers(operation, "interior", "interior_padding", default=(0,) * len(low))
    return [padded_by(e, given[0], given[1], low, high, inside)]


def padded_by(
    e: HloEmitter, x: Any, value: Any, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> Any:  # fmt: skip
    """Return a tensor with elements `value` around and between its own; negative numbers take elements away."""
    pairs = tuple(zip(low, high, strict=True))
    is_zero = isinstance(value, Known) and not value.base.any() and e.type_of(x).dtype.kind in "iuf"
    if {*inside} <= {0} and is_zero and all(e.shape_of(x)) and min((*low, *high, 0)) == 0:
        return e.call(ops.Pad(pairs), e.whole(x)) if any((*low, *high)) else x
    return e.host("pad", (tuple(low), tuple(high), tuple(inside)), x, value)


def counted(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the numbers of places along a dimension."""
    type = tensor(operation.types[0])
    dim = attribute(operation, "dim", "iota_dimension", default=0)
    base = np.arange(type.shape[dim]).astype(type.dtype.numpy)
    return [Known(base.reshape([-1 if d == dim else 1 for d in range(type.rank)]), type.shape)]


def reversed_along(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    dims = integers(operation, "dims", "dimensions")
    if isinstance(given[0], Known):
        return [Known(np.flip(given[0].base, dims), given[0].shape)]
    if e.type_of(given[0]).dtype.is_complex:
        return [e.host("reverse", (dims,), given[0])]
    return [e.call(ops.ReverseV2(dims), e.whole(given[0])) if dims else given[0]]


def clipped(e: HloEmitter, start: Any, most: int) -> Any:
    """Return a start of a slice as an integer of shape () within bounds."""
    number = integer(start)
    if number is not None:
        return e.number(min(max(number, 0), most), INT64)
    start = e.whole(start)
    dtype = e.type_of(start).dtype
    if dtype not in (INT32, INT64):
        start = e.call(ops.Cast(), start, INT64)
        dtype = INT64
    low, high = (e.constant(np.array(n, dtype.numpy)) for n in (0, most))
    return e.call(ops.Minimum(), e.call(ops.Maximum(), start, low), high)


def dynamic_part(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a slice whose starts may be known only when it runs."""
    sizes = integers(operation, "sizes", "slice_sizes")
    x = given[0]
    shape = e.shape_of(x)
    if isinstance(x, StackedRows):
        return [e.reshaped(x.row, sizes)]
    starts = [clipped(e, start, n - size) for start, n, size in zip(given[1:], shape, sizes, strict=True)]
    numbers = [integer(start) for start in starts]
    begin = [0 if number is None else number for number in numbers]
    end = [n if number is None else number + size for number, n, size in zip(numbers, shape, sizes, strict=True)]
    x = e.part(x, begin, end)
    for d, (start, number, size) in enumerate(zip(starts, numbers, sizes, strict=True)):
        if number is None and size < shape[d]:
            x = _taken(e, x, start, d, size)
    return [x]


def _taken(e: HloEmitter, x: Any, start: Any, d: int, size: int) -> Any:
    """Return elements along a dimension from a start on."""
    dtype, shape = e.type_of(start).dtype, e.shape_of(x)
    places = start if size == 1 else e.call(ops.Add(), e.constant(np.arange(size, dtype=dtype.numpy)), start)
    return e.reshaped(e.call(ops.Gather(), e.whole(x), places, d), (*shape[:d], size, *shape[d + 1 :]))


def updated_part(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a tensor with a slice replaced whose starts may be known only when it runs."""
    x, update, *starts = given
    if isinstance(x, StackedRows):
        return [StackedRows(x.type, update)]
    shape, sizes = e.shape_of(x), e.shape_of(update)
    starts = [clipped(e, start, n - size) for start, n, size in zip(starts, shape, sizes, strict=True)]
    if sizes == shape or not all(sizes):
        return [update if sizes == shape else x]
    return [_put_anywhere(e, x, update, starts)]


def _put_anywhere(e: HloEmitter, x: Any, update: Any, starts: Sequence[Any]) -> Any:
    """Return a tensor with a slice replaced: every element looks whether it is in the slice."""
    shape, sizes = e.shape_of(x), e.shape_of(update)
    inside: Any = None
    for d, (n, size) in enumerate(zip(shape, sizes, strict=True)):
        if size == n:
            continue
        number = integer(starts[d])
        start = starts[d] if number is None else e.constant(np.array(number, np.int64))
        dtype = e.type_of(start).dtype
        place = e.call(ops.Sub(), e.constant(np.arange(n, dtype=dtype.numpy)), start)
        zero, most = (e.constant(np.array(k, dtype.numpy)) for k in (0, size - 1))
        own = e.call(ops.LogicalAnd(), e.call(ops.GreaterEqual(), place, zero), e.call(ops.LessEqual(), place, most))
        own = e.reshaped(own, [n if k == d else 1 for k in range(len(shape))])
        inside = own if inside is None else e.call(ops.LogicalAnd(), inside, own)
        if size > 1:
            row = e.call(ops.Minimum(), e.call(ops.Maximum(), place, zero), most)
            update = e.call(ops.Gather(), e.whole(update), row, d)
    return e.spread(e.call(ops.Select(), inside, e.loose(update), e.loose(x)), shape)


def dimension_size(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the size of a dimension, which is always known."""
    dim = attribute(operation, "dim", "dimension", default=0)
    return [e.number(e.shape_of(given[0])[dim], INT32)]


def known_numbers(e: HloEmitter, operation: HloOperation, value: Any) -> tuple[int, ...]:
    """Return integers that an operand must have at compile time. Raise MspcError if only the run knows them."""
    if not isinstance(value, Known):
        raise MspcError(f"{operation.name} has sizes or places that only the run knows")
    return tuple(int(n) for n in np.broadcast_to(value.base, value.shape).reshape(-1))


SHAPE_KINDS: Kinds = {
    "broadcast_in_dim": broadcast, "reshape": reshaped, "bitcast": in_memory, "transpose": transposed, "slice": sliced,
    "concatenate": concatenated, "pad": padded, "iota": counted, "reverse": reversed_along,
    "dynamic_slice": dynamic_part, "dynamic_update_slice": updated_part,
    "get_dimension_size": dimension_size, "broadcast": broadcast, "dynamic_reshape": reshaped,
    "dynamic_broadcast_in_dim": broadcast, "dynamic_iota": counted, "dynamic_pad": padded,
    "real_dynamic_slice": sliced,
}  # fmt: skip
