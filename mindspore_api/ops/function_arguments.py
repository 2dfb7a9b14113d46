"""Arguments of functions, converted for operators: axes, sizes, reductions and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, FLOAT32, INT64, DType, dtype_of
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import axes_in, axis_in, describe, ints_of

Shape = tuple[int, ...]


def _checked(check: Callable[..., Any], *arguments: Any) -> Any:
    """Return `check(*arguments)`; raise its error at the user's line."""
    try:
        return check(*arguments)
    except MspcError as error:
        raise ApiValueError(error.message, error.notes) from None


def ints(name: str, what: str, value: Any) -> Shape:
    """Return `value` as a tuple of ints; a single int is a tuple of one. Raise ValueError for anything else."""
    return _checked(ints_of, name, what, value)


def sizes_of(given: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes of a call `f(2, 3)` or `f((2, 3))`."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (list, tuple)) else tuple(given)


def axis_of(name: str, axis: int, rank: int) -> int:
    """Return `axis` counted from 0. Raise ValueError if a tensor of `rank` dimensions has no such axis."""
    given = ints(name, "axis", axis)
    if len(given) != 1:
        raise ApiValueError(f"{name}(): axis must be one integer, not {describe(axis)}")
    return _checked(axis_in, name, given[0], rank)


def reduced_axes(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    """Return the axes of a reduction, ascending; None and () mean all. Raise ValueError for a wrong or repeated
    axis."""
    return _checked(axes_in, name, () if axis is None else ints(name, "axis", axis), rank)


def keeps(name: str, keep: Any, spelled: Mapping[str, Any]) -> bool:
    """Return whether a reduction keeps its dimensions, for any spelling of the argument. Raise TypeError for another
    name."""
    for key, value in spelled.items():
        if key not in ("keep_dims", "keepdims", "keepdim"):
            raise ApiTypeError(f"{name}(): unexpected argument '{key}'")
        keep = value
    return bool(keep)


def no_tensor(name: str, operand: Any) -> NoReturn:
    """Raise TypeError: an operand is no tensor."""
    raise ApiTypeError(f"{name}(): an operand must be a tensor, not {describe(operand)}")


def no_such(name: str, what: str, value: Any, known: str) -> NoReturn:
    """Raise ValueError: an argument is none of those known."""
    raise ApiValueError(f"{name}(): {what} is {describe(value)}, not {known}")


def unbounded(name: str) -> NoReturn:
    """Raise ValueError: there is neither a minimum nor a maximum."""
    raise ApiValueError(f"{name}() needs a minimum or a maximum")


def share_of(shape: Shape, axes: Sequence[int], ddof: int) -> float:
    """Return one over the number of elements that a reduction along `axes` combines, less `ddof`; infinite if that is 0
    or less."""
    left = math.prod(shape[axis] for axis in axes) - ddof
    return 1.0 / left if left > 0 else math.inf


def summed_type(dtype: Any, wanted: Any) -> Any:
    """Return the element type of a sum or a product of elements of `dtype`: the requested one, else Int64 for integers
    and Bool. Raise TypeError if the requested type is no element type."""
    if wanted is not None:
        return element_type(wanted)
    return dtype if dtype.is_float or dtype.is_complex else INT64


def real_type(name: str, dtype: DType) -> DType:
    """Return the floating-point type for computing with elements: their own, Float32 for integers and Bool. Raise
    TypeError for complex numbers."""
    if dtype.is_complex:
        raise ApiTypeError(f"{name}(): input is {dtype}, not real", ["take its parts with ops.real and ops.imag"])
    return dtype if dtype.is_float else FLOAT32


def number_type(value: Any) -> DType:
    """Return the element type of a tensor made of this number; a tensor's own."""
    if isinstance(value, bool):
        return BOOL
    return getattr(value, "dtype", INT64 if isinstance(value, int) else FLOAT32)


def shape_of_sizes(name: str, sizes: Sequence[Any]) -> Shape:
    """Return a shape given as a tuple, or as separate sizes. Raise TypeError or ValueError if it is none."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)
    found = ints(name, "size", given)
    if any(n < 0 for n in found):
        raise ApiValueError(f"{name}(): sizes must be 0 or more, not {describe(found)}")
    return found


def per_dimension(name: str, what: str, value: Any, dims: int) -> Shape:
    """Return one integer for each dimension of an image, from one for all or one each. Raise TypeError or ValueError
    for other values."""
    found = ints(name, what, value)
    if len(found) not in (1, dims):
        raise ApiValueError(f"{name}(): {what} must be one integer or {dims} of them, not {describe(value)}")
    return found * dims if len(found) == 1 else found


def of_rank(name: str, what: str, shape: Shape, rank: int) -> None:
    """Raise ValueError if a shape has another number of dimensions."""
    if len(shape) != rank:
        raise ApiValueError(f"{name}(): the {what} must have {rank} dimensions, but its shape is {shape}", code="E0303")


def positive(name: str, what: str, value: Any) -> None:
    """Raise ValueError for a number that is not above 0, TypeError if it is none."""
    if isinstance(value, str | bytes | list | tuple | dict) or value is None:
        raise ApiTypeError(f"{name}(): {what} must be a number above 0, not {describe(value)}")
    if isinstance(value, int | float) and not value > 0:
        raise ApiValueError(f"{name}(): {what} must be above 0, not {value}")


def extremum(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, bool, bool]:
    """Return (axis, whether to keep dimensions, whether to return indices) for a call of `Tensor.max` or `Tensor.min`.
    Along a dimension indices are returned, unless the call has the names axis or keepdims. Raise TypeError if the call
    has none of the forms."""
    known = ("axis", "keepdims", "return_indices", "dim", "keepdim", "keep_dims")
    wrong = [key for key in named if key not in known]
    if wrong or len(given) > 2:
        what = f"unexpected argument '{wrong[0]}'" if wrong else "too many positional arguments"
        raise ApiTypeError(f"{name}(): {what}", ["it takes dim and keepdim, or axis, keepdims and return_indices"])
    axis = given[0] if given else named.get("axis", named.get("dim"))
    keep = given[1] if len(given) > 1 else keeps(name, False, {k: v for k, v in named.items() if k.startswith("keep")})
    by_values = "axis" in named or "keepdims" in named or "keep_dims" in named
    both = named.get("return_indices", not by_values) and isinstance(axis, int) and not isinstance(axis, bool)
    return axis, bool(keep), both


def summed_to(name: str, shape: Shape, wanted: Shape) -> Shape:
    """Return the axes along which a tensor of the shape `wanted` is broadcast to `shape`. Raise ValueError if it cannot
    be."""
    extra = len(shape) - len(wanted)
    if extra < 0 or any(n not in (1, m) for n, m in zip(wanted, shape[extra:], strict=True)):
        raise ApiValueError(f"{name}(): {wanted} cannot be repeated to {shape}")
    return tuple(d for d, m in enumerate(shape) if d < extra or wanted[d - extra] != m)


def least(name: str, what: str, value: Any, low: int) -> int:
    """Return `value`, an integer of at least `low`. Raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ApiValueError(f"{name}(): {what} must be an integer of at least {low}, not {describe(value)}")
    return int(value)


def within(name: str, shape: Shape, begin: Any, size: Any) -> None:
    """Raise ValueError if size[d] elements from begin[d] on are not all in the shape."""
    starts, sizes = ints(name, "begin", begin), ints(name, "size", size)
    if len(starts) != len(shape) or len(sizes) != len(shape):
        count = len(shape)
        raise ApiValueError(f"{name}(): begin {starts} and size {sizes} must have {count} entries, one a dimension")
    for d, (first, count, length) in enumerate(zip(starts, sizes, shape, strict=True)):
        if not 0 <= first <= length or count < -1 or first + count > length:
            raise ApiValueError(f"{name}(): dimension {d} has {length} elements, not {count} from {first} on")


def rounding(name: str, mode: Any) -> None:
    """Raise ValueError if `mode` is no rounding of a quotient."""
    if mode not in (None, "floor", "trunc"):
        raise ApiValueError(f"{name}(): rounding_mode is {describe(mode)}, not 'floor', 'trunc' or None")


def permutation(axes: Sequence[Any], rank: int) -> tuple[int, ...]:
    """Return the order of dimensions of a call `transpose(1, 0)` or `transpose((1, 0))`; reversed if none is given."""
    found = sizes_of(axes)
    return ints("Transpose", "perm", found) if found and found != (None,) else tuple(reversed(range(rank)))


def moved(name: str, rank: int, source: Any, destination: Any) -> Shape:
    """Return the order of dimensions after moving those at the positions `source` to `destination`."""
    sources, targets = ints(name, "source", source), ints(name, "destination", destination)
    sources, targets = (tuple(axis_of(name, place, rank) for place in places) for places in (sources, targets))
    if len(sources) != len(targets) or len({*sources}) < len(sources) or len({*targets}) < len(targets):
        said = f"source {source!r} and destination {destination!r}"
        raise ApiValueError(f"{name}: {said} must name different dimensions, and as many")
    order = [place for place in range(rank) if place not in sources]
    for target, place in sorted(zip(targets, sources, strict=True)):
        order.insert(target, place)
    return tuple(order)


def times(name: str, n: Any, shape: Shape, axis: int) -> int:
    """Return `n`, the number of differences to take along an axis. Raise ValueError if no element would be left."""
    size = shape[axis_of(name, axis, len(shape))]
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < max(1, size):
        raise ApiValueError(f"{name}: n must be an integer from 0 to {max(0, size - 1)}, not {n!r}")
    return n


def neighbours(shape: Shape, axis: int) -> tuple[Shape, Shape, Shape]:
    """Return (begin of all but the last along an axis, begin of all but the first, their sizes)."""
    place = axis % len(shape)
    second, size = ([0] * len(shape), list(shape))
    second[place], size[place] = 1, shape[place] - 1
    return (0,) * len(shape), tuple(second), tuple(size)


def exchanged(name: str, rank: int, axis0: int, axis1: int) -> tuple[int, ...]:
    """Return the order of dimensions with two of them exchanged. Raise ValueError for an axis out of range."""
    first, second = axis_of(name, axis0, rank), axis_of(name, axis1, rank)
    order = list(range(rank))
    order[first], order[second] = second, first
    return tuple(order)


def flattened(name: str, shape: Shape, start_dim: int, end_dim: int, order: str) -> Shape:
    """Return the shape with the dimensions start_dim to end_dim merged. Raise ValueError for an order other than "C"
    and "F"."""
    if order not in ("C", "F"):
        raise ApiValueError(f"{name}(): order {order!r} is neither 'C' nor 'F'")
    if not shape:
        return (1,)
    first, last = axis_of(name, start_dim, len(shape)), axis_of(name, end_dim, len(shape))
    if first > last:
        raise ApiValueError(f"{name}(): start_dim {start_dim} is after end_dim {end_dim}")
    return (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def part_sizes(name: str, wanted: Any, shape: Shape, axis: int) -> Shape:
    """Return the sizes of the parts along `axis`, of one size each or as listed. Raise ValueError for a size below 1,
    or sizes that do not add up to the dimension's."""
    size = shape[axis]
    if not isinstance(wanted, (list, tuple)):
        (step,) = ints(name, "split_size_or_sections", wanted)
        if step < 1:
            raise ApiValueError(f"{name}(): the size of a part must be positive, not {step}")
        return tuple(min(step, size - start) for start in range(0, size, step)) or (0,)
    sizes = ints(name, "split_size_or_sections", wanted)
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ApiValueError(f"{name}(): the parts {sizes} do not add up to {size}, the size of dimension {axis}")
    return sizes


def chunk_size(name: str, chunks: Any, shape: Shape, axis: int) -> int:
    """Return the size of each of `chunks` parts along `axis`, rounded up. Raise ValueError for less than one part."""
    (count,) = ints(name, "chunks", chunks)
    if count < 1:
        raise ApiValueError(f"{name}(): the number of parts must be positive, not {count}")
    return -(-shape[axis_of(name, axis, len(shape))] // count)


def part_of(shape: Shape, sizes: Sequence[int], axis: int, index: int) -> tuple[Shape, Shape, Shape]:
    """Return (begin, end, strides) of part number `index` of parts with `sizes` along `axis`."""
    begin, end = [0] * len(shape), list(shape)
    begin[axis] = sum(sizes[:index])
    end[axis] = begin[axis] + sizes[index]
    return tuple(begin), tuple(end), (1,) * len(shape)


def repeated_places(name: str, repeats: Any, shape: Shape, axis: int) -> np.ndarray:
    """Return the index along `axis` of every slice of the result; `repeats` is the count for all slices or for each.
    Raise ValueError if the number of counts is not that of the slices, or one is negative."""
    counts, size = ints(name, "repeats", repeats), shape[axis_of(name, axis, len(shape))]
    if len(counts) not in (1, size) or min(counts) < 0:
        raise ApiValueError(f"{name}(): repeats {repeats!r} must be a count, or one for each of {size} slices")
    return np.repeat(np.arange(size), counts)


def element_type(dtype: Any) -> DType:
    """Return an element type, given by name or as a Python or NumPy type. Raise TypeError for anything else."""
    try:
        return dtype_of({float: FLOAT32, int: INT64, bool: BOOL}.get(dtype, dtype))
    except (MspcError, TypeError, ValueError):
        message = f"{describe(dtype)} is not an element type"
        raise ApiTypeError(message, ["for example mindspore.float32"]) from None


def power(name: str, ord: Any) -> None:
    """Raise ValueError if a norm's order is no number."""
    if isinstance(ord, bool) or not isinstance(ord, int | float):
        raise ApiValueError(f"{name}(): vectors have no norm {describe(ord)}")


def require_float(name: str, dtype: DType) -> None:
    """Raise TypeError for an element type that is not floating point."""
    if not dtype.is_float:
        raise ApiTypeError(f"{name}(): input is {dtype}, not a floating-point tensor")


def norm_of(name: str, ord: Any, dim: Any, rank: int) -> tuple[str, Shape]:
    """Return (kind of the norm, its dimensions): "euclid" over all, "vector", and for matrices "lines" for the largest
    sum along a line, "singular" for the norm of singular values. Raise ValueError if vectors or matrices have no such
    norm, or the dimensions are neither one nor two."""
    axes = tuple(range(rank)) if dim is None else tuple(axis_of(name, d, rank) for d in ints(name, "dim", dim))
    if len(set(axes)) != len(axes):
        raise ApiValueError(f"{name}(): dim {dim} names a dimension twice", code="E0307")
    if ord is None:
        return "euclid", axes
    if not isinstance(ord, str | int | float):
        power(name, ord)
    if len(axes) == 2:
        kind = {"fro": "euclid", "nuc": "singular", 2: "singular", -2: "singular"}.get(ord)
        if kind is None and ord not in (1, -1, math.inf, -math.inf):
            raise ApiValueError(f"{name}(): matrices have no norm {describe(ord)}")
        return kind or "lines", axes
    if len(axes) != 1:
        raise ApiValueError(f"{name}(): the norm {describe(ord)} needs a dim of one dimension, or of two")
    power(name, ord)
    return "vector", axes


REDUCTIONS = ("mean", "sum", "none")


def check_reduction(name: str, reduction: Any, known: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ValueError for a reduction that is not one of those `known`."""
    if reduction not in known:
        listed = ", ".join(map(repr, known[:-1]))
        raise ApiValueError(f"{name}(): reduction is {describe(reduction)}, not {listed} or {known[-1]!r}")


def check_number(name: str, what: str, value: Any, least: float = -math.inf, below: float = math.inf) -> None:
    """Raise TypeError for no number, ValueError for one that is not in [least, below)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiTypeError(f"{name}(): {what} must be a number, not {describe(value)}")
    if not least <= value < below:
        wanted = f"at least {least:g}" if below == math.inf else f"in [{least:g}, {below:g})"
        raise ApiValueError(f"{name}(): {what} is {value}, not {wanted}")


def check_form(name: str, approximate: Any) -> None:
    """Raise ValueError for an unknown formula of GELU."""
    if approximate not in ("none", "tanh"):
        raise ApiValueError(f"{name}(): approximate is {describe(approximate)}, not 'none' or 'tanh'")


def check_classes(name: str, dtype: DType, ignore_index: Any) -> None:
    """Raise TypeError if classes are no integers."""
    if dtype.kind not in "iu":
        raise ApiTypeError(f"{name}(): the target is {dtype}, not integers that name classes")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ApiTypeError(f"{name}(): ignore_index must be an integer, not {describe(ignore_index)}")


def class_axis(name: str, shape: Shape) -> int:
    """Return the dimension of the classes: 1, or 0 for a vector. Raise ValueError for a scalar."""
    if not shape:
        raise ApiValueError(f"{name}(): the input is a scalar, it has no dimension of classes")
    return min(1, len(shape) - 1)


def check_target(name: str, shape: Shape, target: Shape, axis: int) -> None:
    """Raise ValueError if the target has not one class for each row of classes along `axis`."""
    wanted = (*shape[:axis], *shape[axis + 1 :])
    if target != wanted:
        raise ApiValueError(f"{name}(): the target has shape {target}, not {wanted} for an input of shape {shape}")


def class_shape(name: str, weight: Shape, shape: Shape, axis: int) -> Shape:
    """Return the shape of one weight for each class along `axis`. Raise ValueError for another number of weights."""
    if weight != (shape[axis],):
        raise ApiValueError(f"{name}(): weight has shape {weight}, not {(shape[axis],)}, one for each class")
    return (shape[axis],) + (1,) * (len(shape) - axis - 1)


def check_margins(shape: Shape, target: Shape, p: Any) -> None:
    """Raise ApiValueError for shapes or a power that `multi_margin_loss` does not accept."""
    if isinstance(p, bool) or p not in (1, 2):
        raise ApiValueError(f"multi_margin_loss(): p must be 1 or 2, not {describe(p)}")
    if len(shape) != 2 or target != shape[:1]:
        raise ApiValueError(
            f"multi_margin_loss(): input must be [rows, classes] and target [rows], not of shapes {shape} and {target}"
        )


def check_labels(shape: Shape, target: Shape) -> None:
    """Raise ApiValueError for shapes that `multilabel_margin_loss` does not accept."""
    if len(shape) not in (1, 2) or target != shape:
        raise ApiValueError(
            f"multilabel_margin_loss(): input must be [rows, classes] or [classes] and target of its shape, not of "
            f"shapes {shape} and {target}"
        )


def check_grid(image: Shape, grid: Shape, mode: Any, padding_mode: Any) -> None:
    """Raise ValueError for images and a grid of samples that do not fit each other, or another mode."""
    dims = 3 if len(image) == 5 else 2
    name = f"GridSampler{dims}D"
    if mode not in ("bilinear", "nearest"):
        raise ApiValueError(f"{name}: interpolation_mode must be 'bilinear' or 'nearest', not {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ApiValueError(f"{name}: padding_mode must be 'zeros', 'border' or 'reflection', not {padding_mode!r}")
    for what, shape in (("image", image), ("grid", grid)):
        if len(shape) != dims + 2:
            raise ApiValueError(f"{name}: the {what} must have {dims + 2} dimensions, but its shape is {shape}")
    if grid[-1] != dims:
        raise ApiValueError(f"{name}: the grid's last dimension must be {dims}, but its shape is {grid}")
    if 0 in image[2:]:
        raise ApiValueError(f"{name}: the image of shape {image} is empty")


def unpooled_sizes(shape: Shape, indices: Shape, kernel: Any, stride: Any, padding: Any, given: Any) -> Shape:
    """Return the height and width of images that a pooling makes of this shape: the smallest ones, if none are given.
    Raise ValueError for shapes or windows that do not fit."""
    name = "max_unpool2d"
    if len(shape) not in (3, 4) or shape != indices:
        raise ApiValueError(f"{name}(): the input of shape {shape} and indices {indices} must have 3 or 4 dimensions")
    if given is not None:
        if len(given) not in (2, len(shape)) or tuple(given[:-2]) not in ((), shape[:-2]):
            raise ApiValueError(f"{name}(): output_size {given} must be 2 numbers or the shape of all images")
        return tuple(given[-2:])
    sizes, pads = per_dimension(name, "kernel_size", kernel, 2), per_dimension(name, "padding", padding, 2)
    steps = per_dimension(name, "stride", stride, 2) if stride else sizes
    found = tuple(
        (n - 1) * step - 2 * pad + size for n, step, pad, size in zip(shape[-2:], steps, pads, sizes, strict=True)
    )
    if min(found) < 1:
        raise ApiValueError(f"{name}(): an input of shape {shape} with padding {padding} makes an image of {found}")
    return found


def check_rotary(x: Shape, cos: Shape, sin: Shape, mode: Any) -> None:
    """Raise ValueError for operands of a rotary embedding that do not fit, or another mode."""
    if mode != 0:
        no_such("rotary_position_embedding", "mode", mode, "0; pairs of neighbours are not built")
    fits = len(x) == len(cos) == 4 and cos == sin and x[3] == cos[3] and x[3] % 2 == 0
    if not fits or any(n not in (1, m) for n, m in zip(cos, x, strict=True)):
        raise ApiValueError(
            f"rotary_position_embedding(): x {x}, cos {cos} and sin {sin} must have 4 dimensions, the last one of one "
            "even size, and cos and sin broadcast to x"
        )


def wide(dtype: DType) -> DType:
    """Return the element type for a long sum: Float32 for narrower ones."""
    return FLOAT32 if dtype.is_float and dtype.itemsize < 4 else dtype


def contracted(name: str, axes: Any, left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Return the dimensions of two tensors over which to sum their products: the last `axes` of the left one and the
    first of the right one, or those given by a pair of numbers or lists. Raise ValueError if dimensions are missing, or
    sizes differ."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(left), len(right)):
            raise ApiValueError(f"{name}(): axes {axes} is not from 0 to {min(len(left), len(right))}")
        mine, theirs = range(len(left) - axes, len(left)), range(axes)
    elif isinstance(axes, (tuple, list)) and len(axes) == 2:
        first, second = (ints(name, "axes", [entry] if isinstance(entry, int) else entry) for entry in axes)
        mine = [axis_of(name, axis, len(left)) for axis in first]
        theirs = [axis_of(name, axis, len(right)) for axis in second]
    else:
        raise ApiValueError(f"{name}(): axes must be a number or a pair of lists, not {describe(axes)}")
    if [left[d] for d in mine] != [right[d] for d in theirs]:
        raise ApiValueError(
            f"{name}(): dimensions {tuple(mine)} of {tuple(left)} do not fit dimensions {tuple(theirs)} of "
            f"{tuple(right)}"
        )
    return tuple(mine), tuple(theirs)


def size_over(shape: Shape, dims: Sequence[int]) -> int:
    """Return the number of elements over some dimensions."""
    return math.prod(shape[d] for d in dims)


def refuse_check(name: str, error_if_nonfinite: Any) -> None:
    """Raise ValueError if a function should check the values of a tensor."""
    if error_if_nonfinite:
        raise ApiValueError(f"{name}(): error_if_nonfinite=True: contents are not known when a network is compiled")


def split_sizes(name: str, wanted: Any, size: int) -> tuple[Any, ...]:
    """Return the sizes of `wanted` parts, with the first ones longer by one if needed; for split positions (begin,
    size) of each part. Raise ValueError if there is less than one part, or the listed positions are no integers."""
    if isinstance(wanted, int):
        count = least(name, "indices_or_sections", wanted, 1)
        return tuple(size // count + (i < size % count) for i in range(count))
    if not isinstance(wanted, tuple | list):
        raise ApiValueError(f"{name}(): indices_or_sections must be an integer, a tuple or a list, not {wanted!r}")
    places = [slice(None, place).indices(size)[1] for place in ints(name, "indices_or_sections", wanted)]
    return tuple((first, max(0, last - first)) for first, last in zip([0, *places], [*places, size], strict=True))
