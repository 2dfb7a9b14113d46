"""This module takes slices of global tensors for ranks, and gathers global tensors from the slices that ranks hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Layouts, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.runtime.comm.interface import Communicator

Array = Any


def local_slice(array: Array, layout: Layouts, rank: int) -> Array:
    """A rank's slice of a full array, as a writable contiguous array of its own."""
    return np.array(_part(array, layout, rank), order="C")


def _part(array: Array, layout: Layouts, rank: int) -> Array:
    """A rank's slice of a full array, in its memory."""
    if not isinstance(layout, Layout) or layout.is_replicated:
        return array
    return array[layout.slices_for(rank, array.shape)]


def full_type(parameter: Parameter) -> TensorType:
    """The type of a parameter before slicing.

    Raises:
        MspcError: it is no tensor, or the parameter is no slice of it, as in a file that was changed.
    """
    own, layout = parameter.type, parameter.layout
    type = parameter.global_type if parameter.global_type is not None else own
    if not isinstance(type, TensorType) or not isinstance(own, TensorType):
        raise MspcError(f"{parameter.kind} {parameter.name!r} is a {type}; the program takes tensors only")
    if parameter.global_type is not None and isinstance(layout, Layout):
        fits = len(layout.dims) == len(type.shape) and type.dtype == own.dtype
        if not fits or layout.local_shape(type.shape) != own.shape:
            raise MspcError(f"{parameter.kind} {parameter.name!r}: {own} at {layout} is no slice of {type}")
    return type


def slices_of(parameter: Parameter, rank: int) -> tuple[slice, ...] | None:
    """The place in the global tensor of the slice that `rank` holds of `parameter`; None for all of it."""
    layout = parameter.layout
    if not isinstance(layout, Layout) or layout.is_replicated:
        return None
    return layout.slices_for(rank, full_type(parameter).shape)


def slice_parameter(parameter: Parameter, array: Array, rank: int, what: str, copied: bool = True) -> Array:
    """The slice of the full `array` that `rank` holds of `parameter`. copied: as a contiguous array of its own, not one
    that may lie in the memory of the full one.

    Raises:
        MspcError: the array has another shape, or another kind of number, than the parameter.
    """
    type = full_type(parameter)
    if tuple(array.shape) != type.shape:
        raise MspcError(f"{what} {parameter.name!r} has shape {tuple(array.shape)}; the program takes {type.shape}")
    _check_kind(parameter, array, what)
    part = local_slice if copied else _part
    return part(array, parameter.layout, rank).astype(type.dtype.numpy, copy=False)


def typed_as(parameter: Parameter, part: Array, what: str) -> Array:
    """A slice of `parameter` in its element type. Raises MspcError for another kind of number."""
    _check_kind(parameter, part, what)
    return part.astype(full_type(parameter).dtype.numpy, copy=False)


def _check_kind(parameter: Parameter, array: Array, what: str) -> None:
    wanted = full_type(parameter).dtype.numpy
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise MspcError(f"{what} {parameter.name!r} is {array.dtype.name}; the program takes {wanted.name}")


def gather(local: Array, layout: Layouts, shape: tuple[int, ...], comm: Communicator) -> Array:
    """The global array of which every rank holds the slice that `layout` says; all ranks call this together.

    Only the ranks that differ along axes that shard the tensor exchange slices, so no slice travels twice.
    """
    if comm.size == 1 or not isinstance(layout, Layout) or layout.is_replicated:
        return np.array(local)
    axes = tuple(axis for dim in layout.dims for axis in dim)
    members = layout.group(axes, comm.rank)
    stacked = comm.all_gather(np.asarray(local)[None], members, 0)
    global_array = np.empty(shape, stacked.dtype)
    for member, piece in zip(members, stacked, strict=True):
        global_array[layout.slices_for(member, shape)] = piece
    return global_array


def result_layout(layout: Layouts) -> Layout | None:
    """The layout of a result that is one tensor."""
    return layout if isinstance(layout, Layout) else None
