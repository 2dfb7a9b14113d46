"""Operations of XLA that no operator of mspc computes, as rows of the library: general gathers and scatters, windows,
sorts and reductions whose regions are programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, DType, TensorType, dtype_of
from mspc.ops.math.library import LibraryFunction, LibraryRow, ResultTypes, same_type, shared_rule
from mspc.ops.math.xla_elementwise import ELEMENTWISE, Program, run_program, total_order
from mspc.ops.op import NotDifferentiable, sample
from mspc.sharding.rules import broadcast_rule

Array = Any
Sizes = Sequence[int]


def _elementwise_rule(*given: Any) -> str:
    return broadcast_rule(tuple(type.shape for type in given if isinstance(type, TensorType)))


def _common(types: Sequence[Any], dtype: DType) -> ResultTypes:
    return ((dtype, np.broadcast_shapes(*(each.shape for each in types))),)


def _elementwise(name: str) -> LibraryRow:
    """Return the row of an elementwise operation whose result has the element type of its last operand."""
    function = ELEMENTWISE[name]

    def types(*given: Any) -> ResultTypes:
        operands = [each for each in given if isinstance(each, TensorType)]
        return _common(operands, operands[-1].dtype)

    return LibraryRow(function, types, rule=_elementwise_rule)


# Gathers and scatters. `where` is (dimensions of windows, collapsed dimensions, batching dimensions of the operand and
# of the indices, the operand's dimension of each index, the dimension of the indices with them).


def _places(indices: Array, index_dim: int) -> Array:
    """Return the indices with their vectors along the last dimension."""
    indices = indices.astype(np.int64)
    return indices[..., None] if index_dim == indices.ndim else np.moveaxis(indices, index_dim, -1)


def _starts(where: Any, places: Array, rank: int) -> Array:
    """Return the start of each window in all dimensions of the operand: [..., rank]."""
    _, _, batching, indices_batching, index_map, index_dim = where
    starts = np.zeros((*places.shape[:-1], rank), np.int64)
    for k, dim in enumerate(index_map):
        starts[..., dim] = places[..., k]
    for dim, own in zip(batching, indices_batching, strict=True):
        axis = own - (own > index_dim)
        shape = [1] * (places.ndim - 1)
        shape[axis] = places.shape[axis]
        starts[..., dim] = np.arange(places.shape[axis]).reshape(shape)
    return starts


def gathered_shape(x: TensorType, indices: TensorType, where: Any, sizes: Sizes) -> tuple[int, ...]:
    offsets, collapsed, batching, _, _, index_dim = where
    batch = [n for d, n in enumerate(indices.shape) if d != index_dim]
    window = [n for d, n in enumerate(sizes) if d not in (*collapsed, *batching)]
    rank = len(batch) + len(window)
    of_window, of_batch = iter(window), iter(batch)
    return tuple(next(of_window) if d in offsets else next(of_batch) for d in range(rank))


def _window_index(starts: Array, sizes: Mapping[int, int]) -> list[Array]:
    """Return the index of the elements of windows that begin at `starts` [..., rank]. sizes: of the dimensions of a
    window, which come last."""
    front, index = starts.shape[:-1], list[Array]()
    for d in range(starts.shape[-1]):
        own = np.asarray(starts[..., d]).reshape((*front, *(1 for _ in sizes)))
        if d in sizes:
            own = own + np.arange(sizes[d]).reshape([sizes[d] if d == each else 1 for each in sizes])
        index.append(own)
    return index


def gather(x: Array, indices: Array, where: Any, sizes: Sizes) -> Array:
    """Return windows of an array; start indices are clamped so that windows stay inside."""
    offsets, collapsed, batching, _, _, index_dim = where
    places = _places(indices, index_dim)
    starts = np.clip(_starts(where, places, x.ndim), 0, np.array(x.shape) - np.array(sizes))
    index = _window_index(starts, {d: sizes[d] for d in range(x.ndim) if d not in (*collapsed, *batching)})
    found = x[tuple(index)] if index else np.broadcast_to(x, places.shape[:-1])
    others = [d for d in range(found.ndim) if d not in offsets]
    return found.transpose(np.argsort([*others, *offsets]))


_AT: Mapping[str, Any] = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def single_operation(program: Program) -> str:
    """Return the name of the one commutative operation of a region of two arguments, "" if it has another form."""
    instructions, results = program
    if len(instructions) == 1 and results == (2,) and sorted(instructions[0][1]) == [0, 1]:
        return instructions[0][0]
    return ""


def scatter(*given: Any) -> Any:
    """Return operands combined with updates; updates that exceed the operand are skipped."""
    *arrays, where, program = given
    count = (len(arrays) - 1) // 2
    operands, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
    windows, inserted, batching, _, _, index_dim = where
    places = _places(indices, index_dim)
    rank = operands[0].ndim
    starts = _starts(where, places, rank)
    kept = [d for d in range(rank) if d not in (*inserted, *batching)]
    others = [d for d in range(updates[0].ndim) if d not in windows]
    moved = [each.transpose([*others, *windows]) for each in updates]
    sizes = dict(zip(kept, (updates[0].shape[d] for d in windows), strict=True))
    ends = np.array([sizes.get(d, 1) for d in range(rank)])
    inside = np.asarray(((starts >= 0) & (starts + ends <= np.array(operands[0].shape))).all(-1))
    inside = np.broadcast_to(inside.reshape((*inside.shape, *(1 for _ in kept))), moved[0].shape)
    index = [np.broadcast_to(own, moved[0].shape)[inside] for own in _window_index(starts, sizes)]
    found = _combined(operands, tuple(index), [each[inside] for each in moved], program)
    return found[0] if count == 1 else tuple(found)


def _combined(operands: Sequence[Array], index: Any, updates: Sequence[Array], program: Program) -> list[Array]:
    """Return the operands with updates at some elements, one after the other."""
    made = [np.array(each) for each in operands]
    name = single_operation(program)
    if name in _AT and made[0].dtype.kind != "V":
        of_bools = {"add": np.logical_or, "maximum": np.logical_or, "minimum": np.logical_and,
                    "multiply": np.logical_and}  # fmt: skip
        function = of_bools.get(name, _AT[name]) if made[0].dtype == bool else _AT[name]
        function.at(made[0], index, updates[0])
        return made
    if program == ((), (1,)):
        made[0][index] = updates[0]
        return made
    for at in range(len(updates[0])):
        place = tuple(each[at] for each in index)
        new = run_program(program, [*(each[place] for each in made), *(each[at] for each in updates)])
        for each, value in zip(made, new, strict=True):
            each[place] = value
    return made


# Reductions and windows.


def reduced_types(*given: Any) -> ResultTypes:
    *types, dims, _ = given
    count = len(types) // 2
    shape = tuple(n for d, n in enumerate(types[0].shape) if d not in dims)
    return tuple((type.dtype, shape) for type in types[:count])


def _reduced_rule(*given: Any) -> str:
    *types, dims, _ = given
    own = [-1 if d in dims else d for d in range(types[0].rank)]
    outs = [shape for _, shape in reduced_types(*given)]
    half = len(types) // 2
    left = [axis for axis in own if axis >= 0]
    return shared_rule(types, outs, [own] * half + [[]] * half, [left] * half)


def reduce(*given: Any) -> Any:
    """Return arrays reduced along some dimensions by a program."""
    *arrays, dims, program = given
    count = len(arrays) // 2
    kept = [d for d in range(arrays[0].ndim) if d not in dims]
    rows = [x.transpose([*dims, *kept]).reshape(-1, *(x.shape[d] for d in kept)) for x in arrays[:count]]
    shape = tuple(arrays[0].shape[d] for d in kept)
    found: list[Array] = [np.broadcast_to(init, shape) for init in arrays[count:]]
    for at in range(len(rows[0])):
        found = run_program(program, [*found, *(each[at] for each in rows)])
    found = [np.broadcast_to(each, shape) for each in found]
    return found[0] if count == 1 else tuple(found)


def padded(x: Array, value: Array, low: Sizes, high: Sizes, inside: Sizes) -> Array:
    """Return an array with elements around and between its own; negative numbers take elements away."""
    size = [max(0, (n - 1) * (i + 1) + 1) if n else 0 for n, i in zip(x.shape, inside, strict=True)]
    made = np.full([max(0, n + max(0, a) + max(0, b)) for n, a, b in zip(size, low, high, strict=True)], value, x.dtype)
    if x.size:
        made[tuple(slice(max(0, a), max(0, a) + n, i + 1) for n, a, i in zip(size, low, inside, strict=True))] = x
    return made[tuple(slice(max(0, -a), max(0, n - max(0, -b))) for n, a, b in zip(made.shape, low, high, strict=True))]


def _padded_types(x: TensorType, value: TensorType, low: Sizes, high: Sizes, inside: Sizes) -> ResultTypes:
    sizes = zip(x.shape, low, high, inside, strict=True)
    return ((x.dtype, tuple(max(0, a + b + ((n - 1) * (i + 1) + 1 if n else 0)) for n, a, b, i in sizes)),)


def _padded_rule(x: TensorType, value: TensorType, *around: Sizes) -> str:
    own = [-1 if any(each[d] for each in around) else d for d in range(x.rank)]
    return shared_rule((x, value), [_padded_types(x, value, *around)[0][1]], [own, []], [own])


def window_sizes(shape: Sizes, window: Any) -> tuple[int, ...]:
    """Return the numbers of windows. window: sizes, strides, dilations of the operand and of windows, padding."""
    sizes, strides, base, apart, pads = window
    found = []
    for n, size, stride, dilation, gap, (low, high) in zip(shape, sizes, strides, base, apart, pads, strict=True):
        whole = low + high + ((n - 1) * dilation + 1 if n else 0)
        found.append(max(0, (whole - ((size - 1) * gap + 1)) // stride + 1) if whole >= (size - 1) * gap + 1 else 0)
    return tuple(found)


def is_untouched(window: Any, dim: int) -> bool:
    """Return whether windows have one element along a dimension, in its place."""
    sizes, strides, base, _, pads = window
    return sizes[dim] == strides[dim] == base[dim] == 1 and tuple(pads[dim]) == (0, 0)


def _windows_rule(*given: Any) -> str:
    *types, window, _ = given
    own = [d if is_untouched(window, d) else -1 for d in range(types[0].rank)]
    half = len(types) // 2
    out = window_sizes(types[0].shape, window)
    return shared_rule(types, [out] * half, [own] * half + [[]] * half, [own] * half)


def reduce_window(*given: Any) -> Any:
    """Return every window reduced by a program."""
    *arrays, window, program = given
    sizes, strides, base, apart, pads = window
    count = len(arrays) // 2
    out = window_sizes(arrays[0].shape, window)
    lows, highs = [low for low, _ in pads], [high for _, high in pads]
    whole = [padded(x, init, lows, highs, [n - 1 for n in base])
             for x, init in zip(arrays[:count], arrays[count:], strict=True)]  # fmt: skip
    found: list[Array] = [np.broadcast_to(init, out) for init in arrays[count:]]
    for place in itertools.product(*map(range, sizes)):
        part = tuple(slice(at * gap, at * gap + (n - 1) * stride + 1 if n else at * gap, stride)
                     for at, gap, n, stride in zip(place, apart, out, strides, strict=True))  # fmt: skip
        found = run_program(program, [*found, *(x[part] for x in whole)])
    return found[0] if count == 1 else tuple(np.broadcast_to(each, out) for each in found)


def select_and_scatter(x: Array, source: Array, init: Array, window: Any, select: Program, combine: Program) -> Array:
    """Return the sums of a source's elements at the place that a program selects in each window."""
    sizes, strides, _, _, pads = window
    places = np.arange(x.size).reshape(x.shape)
    lows, highs = [low for low, _ in pads], [high for _, high in pads]
    flat = padded(places, np.array(-1), lows, highs, [0] * x.ndim)
    whole = padded(x, np.zeros((), x.dtype), lows, highs, [0] * x.ndim)
    best, at = np.zeros(source.shape, x.dtype), np.full(source.shape, -1)
    for place in itertools.product(*map(range, sizes)):
        part = tuple(slice(k, k + (n - 1) * stride + 1, stride)
                     for k, n, stride in zip(place, source.shape, strides, strict=True))  # fmt: skip
        other, number = whole[part], flat[part]
        keeps = (at >= 0) & (run_program(select, [best, other])[0] | (number < 0))
        best, at = np.where(keeps, best, other), np.where(keeps, at, number)
    made = np.full(x.size, init, x.dtype)
    inside = at.reshape(-1) >= 0
    (made,) = _combined([made], (at.reshape(-1)[inside],), [source.reshape(-1)[inside]], combine)
    return made.reshape(x.shape)


def _selected_rule(x: TensorType, source: TensorType, init: TensorType, window: Any, *_: Any) -> str:
    own = [d if is_untouched(window, d) else -1 for d in range(x.rank)]
    return shared_rule((x, source, init), [x.shape], [own, own, []], [own])


# Sorts.


def sort_by_comparator(*given: Any) -> Any:
    """Return arrays sorted along a dimension by a program that compares two elements."""
    *arrays, dim, program = given
    rows = [np.moveaxis(x, dim, -1) for x in arrays]
    n = rows[0].shape[-1]
    key = _simple_key(program, rows)
    if key is not None:
        order = np.argsort(key, axis=-1, kind="stable")
    else:
        pairs = [each for x in rows for each in (x[..., :, None], x[..., None, :])]
        pairs = [np.broadcast_to(each, (*rows[0].shape[:-1], n, n)) for each in pairs]
        before = run_program(program, pairs)[0]
        before = np.broadcast_to(before, (*rows[0].shape[:-1], n, n))
        earlier = np.arange(n)[:, None] < np.arange(n)[None, :]
        place = (before | (~np.swapaxes(before, -1, -2) & earlier)).sum(-2)
        order = np.argsort(place, axis=-1, kind="stable")
    found = [np.moveaxis(np.take_along_axis(x, order, -1), -1, dim) for x in rows]
    return found[0] if len(found) == 1 else tuple(found)


def _simple_key(program: Program, rows: Sequence[Array]) -> Array | None:
    """Return numbers in whose order rows are sorted, if the program is one comparison of two elements."""
    instructions, results = program
    if len(instructions) != 1 or results != (2 * len(rows),) or instructions[0][0] != "compare":
        return None
    _, (a, b), settings = instructions[0]
    if a // 2 != b // 2 or a == b or settings[0] not in ("LT", "GT"):
        return None
    x = rows[a // 2]
    if x.dtype.kind in "fV":
        x = total_order(x) if settings[1:] == ("TOTALORDER",) else None
    if x is None or x.dtype.kind == "c":
        return None
    rising = (settings[0] == "LT") == (a < b)
    x = x.astype(np.int8) if x.dtype == bool else x
    return x if rising else np.invert(x) if x.dtype.kind in "iu" else None


def _sorted_rule(*given: Any) -> str:
    *types, dim, _ = given
    own = [-1 if d == dim else d for d in range(types[0].rank)]
    return shared_rule(types, [type.shape for type in types], [own] * len(types), [own] * len(types))


# Others.


def fft(x: Array, kind: str, lengths: Sizes, dtype: str) -> Array:
    axes = tuple(range(-len(lengths), 0))
    function = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}[kind]
    return function(x, tuple(lengths), axes).astype(dtype)


def fft_types(x: TensorType, kind: str, lengths: Sizes, dtype: str) -> ResultTypes:
    shape = [*x.shape[: x.rank - len(lengths)], *lengths]
    if kind == "RFFT":
        shape[-1] = lengths[-1] // 2 + 1
    return ((dtype_of(dtype), tuple(shape)),)


def triangular_solve(a: Array, b: Array, left: bool, lower: bool, unit: bool, transposed: str) -> Array:
    dtype = b.dtype
    if dtype.itemsize == 2:  # LAPACK has no halves
        a, b = a.astype(np.float32), b.astype(np.float32)
    a = np.tril(a) if lower else np.triu(a)
    if unit:
        n = a.shape[-1]
        a = a * (1 - np.eye(n, dtype=a.dtype)) + np.eye(n, dtype=a.dtype)
    if transposed != "NO_TRANSPOSE":
        a = np.swapaxes(a.conj() if transposed == "ADJOINT" else a, -1, -2)
    if left:
        return np.linalg.solve(a, b).astype(dtype)
    return np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2).astype(dtype)


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """Return the largest elements of each row and their positions; the first of equal elements."""
    key = total_order(x) if x.dtype.kind in "fV" else x.astype(np.int8) if x.dtype == bool else x
    order = np.argsort(np.invert(key), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _bitcast_types(x: TensorType, dtype: str) -> ResultTypes:
    to = dtype_of(dtype)
    if to.itemsize < x.dtype.itemsize:
        return ((to, (*x.shape, x.dtype.itemsize // to.itemsize)),)
    return ((to, x.shape[:-1] if to.itemsize > x.dtype.itemsize else x.shape),)


def _bitcast_rule(x: TensorType, dtype: str) -> str:
    out = _bitcast_types(x, dtype)[0][1]
    common = min(x.rank, len(out))
    own, new = ([d if d < common else -1 for d in range(rank)] for rank in (x.rank, len(out)))
    return shared_rule((x,), [out], [own], [new])


STRUCTURAL: Mapping[str, LibraryRow] = {
    "gather": LibraryRow(gather, lambda x, i, where, sizes: ((x.dtype, gathered_shape(x, i, where, sizes)),)),
    "scatter": LibraryRow(scatter, lambda *given: tuple(
        (x.dtype, x.shape) for x in given[: (len(given) - 3) // 2])),
    "reduce": LibraryRow(reduce, reduced_types, rule=_reduced_rule),
    "reduce_window": LibraryRow(reduce_window, lambda *given: tuple(
        (x.dtype, window_sizes(x.shape, given[-2])) for x in given[: (len(given) - 2) // 2]), rule=_windows_rule),
    "select_and_scatter": LibraryRow(select_and_scatter, same_type, rule=_selected_rule),
    "sort": LibraryRow(sort_by_comparator, lambda *given: tuple((x.dtype, x.shape) for x in given[:-2]),
                       rule=_sorted_rule),
    "fft": LibraryRow(fft, fft_types),
    "triangular_solve": LibraryRow(triangular_solve, lambda a, b, *_: ((b.dtype, b.shape),)),
    "top_k": LibraryRow(top_k, lambda x, k: ((x.dtype, (*x.shape[:-1], k)), (dtype_of("int32"), (*x.shape[:-1], k)))),
    "bitcast_convert": LibraryRow(ELEMENTWISE["bitcast_convert"], _bitcast_types, rule=_bitcast_rule),
    "convert": LibraryRow(ELEMENTWISE["convert"], lambda x, dtype: ((dtype_of(dtype), x.shape),),
                          rule=_elementwise_rule),
    "compare": LibraryRow(ELEMENTWISE["compare"], lambda a, b, *_: _common((a, b), BOOL), rule=_elementwise_rule),
    "is_finite": LibraryRow(ELEMENTWISE["is_finite"], lambda x: ((BOOL, x.shape),), rule=_elementwise_rule),
    "map": LibraryRow(lambda *given: run_program(given[-1], given[:-1])[0],
                      lambda *given: _common(given[:-2], dtype_of(given[-2])), rule=_elementwise_rule),
    "pad": LibraryRow(padded, _padded_types, rule=_padded_rule),
    "reverse": LibraryRow(np.flip, same_type),
}  # fmt: skip
"""Operations that are not elementwise, or whose results have other element types."""

FUNCTIONS: Mapping[str, LibraryRow] = {
    **STRUCTURAL, **{name: _elementwise(name) for name in ELEMENTWISE if name not in STRUCTURAL},
}  # fmt: skip
"""All functions by the names of XLA's operations."""


class XlaFunction(LibraryFunction):
    """A function of the table in `ops/math/xla_functions.py`, by the name of XLA's operation. Called as
    `XlaFunction(name, settings)(x)`."""

    function: str = "popcnt"
    table = FUNCTIONS
    widens = False
    bprop = NotDifferentiable("StableHLO programs bring their gradients")
    samples = (
        sample((4, 6), dtypes=("Int32",), gradient=False),
        sample((4, 6), (), function="reduce", options=((1,), ((("maximum", (0, 1), ()),), (2,))), gradient=False),
        sample((4, 6), (), function="reduce_window", gradient=False, options=(
            ((1, 2), (1, 2), (1, 1), (1, 1), ((0, 0), (1, 1))), ((("maximum", (0, 1), ()),), (2,)))),
        sample((4, 6), function="sort", options=(1, ((("compare", (0, 1), ("LT", "TOTALORDER")),), (2,))),
               gradient=False),
    )  # fmt: skip
