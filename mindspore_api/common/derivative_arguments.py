"""Checks of compile-time arguments of Jacobian products and of `vmap`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe


def no_weights(name: str, weights: Any) -> None:
    """Raise ValueError if gradients of parameters are requested."""
    if weights is not None:
        note = "value_and_grad(fn, None, weights) gives gradients of parameters"
        raise ApiValueError(f"{name}(): weights must be None", [note])


def lacking(name: str, fn: Any) -> None:
    """Raise TypeError if `fn` cannot be called."""
    if not callable(fn):
        raise ApiTypeError(f"{name}() takes a function, not {describe(fn)}")


def ensemble(fn: Any) -> tuple[Any, ...]:
    """Return the cells of a CellList, or () for another function."""
    from mspc.mindspore_api.nn.container import CellList  # it imports tensors

    return tuple(fn) if isinstance(fn, CellList) else ()


def axes_of(name: str, axes: Any, count: int = 1, nested: bool = False) -> tuple[Any, ...]:
    """Return one axis or position for each of `count` arguments, given as one for all or one each; nested: an entry may
    be a tuple of them. Raise TypeError or ValueError for other values."""
    found = tuple(axes) if isinstance(axes, tuple | list) else (axes,) * count
    if not all(_is_axis(axis, nested) for axis in found):
        raise ApiTypeError(f"{name}(): axes must be integers or None, not {describe(axes)}")
    if count > 1 and len(found) != count:
        raise ApiValueError(f"{name}(): {len(found)} axes {axes} for {count} tensors")
    return found


def _is_axis(axis: Any, nested: bool) -> bool:
    if nested and isinstance(axis, tuple | list):
        return all(_is_axis(each, nested) for each in axis)
    return axis is None or (isinstance(axis, int) and not isinstance(axis, bool))


def batch_size(name: str, shapes: Sequence[Any], axes: Sequence[Any], cells: int = 0) -> int:
    """Return the number of slices. shapes: lists for arguments that are tuples. cells: the required number, unless 0.
    Raise ValueError if tensors have different numbers of slices, or none is sliced."""
    sizes = {cells} - {0}
    for shape, axis in _pairs(name, shapes, axes):
        if axis is None:
            continue
        if shape is None or not -len(shape) <= axis < len(shape):
            raise ApiValueError(f"{name}(): there is no axis {axis} in an argument of shape {shape}", code="E0306")
        sizes.add(shape[axis])
    if len(sizes) != 1 or 0 in sizes:
        raise ApiValueError(f"{name}(): arguments have {sorted(sizes)} slices along in_axes, not one number of them")
    return sizes.pop()


def _pairs(name: str, shapes: Sequence[Any], axes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every tensor's shape and axis."""
    for shape, axis in zip(shapes, axes, strict=True):
        if not isinstance(shape, list):
            yield shape, axis
            continue
        inner = axis if isinstance(axis, tuple | list) else (axis,) * len(shape)
        if len(inner) != len(shape):
            raise ApiValueError(f"{name}(): {len(inner)} axes {axis} for a tuple of {len(shape)}")
        yield from _pairs(name, shape, inner)
