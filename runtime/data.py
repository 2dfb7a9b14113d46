"""Inputs of `mspc run DIR`: global arrays of an npz file, or synthetic ones, sliced for a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of
from mspc.ir.files.regular import check_regular
from mspc.ir.graph import PADDING, Layouts, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, TensorType
from mspc.runtime.comm.interface import Communicator

Array = Any


def local_slice(array: Array, layout: Layouts, rank: int) -> Array:
    """Return a rank's slice of a full array, as a new writable contiguous array."""
    return np.array(_part(array, layout, rank), order="C")


def _part(array: Array, layout: Layouts, rank: int) -> Array:
    """Return a rank's slice of a full array, as a view."""
    if not isinstance(layout, Layout) or layout.is_replicated:
        return array
    return array[layout.slices_for(rank, array.shape)]


def full_type(parameter: Parameter) -> TensorType:
    """Return the type of a parameter before slicing. Raise MspcError if it is not a tensor, or the parameter is not a
    slice of it, as in a modified file."""
    own, layout = parameter.type, parameter.layout
    type = parameter.global_type if parameter.global_type is not None else own
    if not isinstance(type, TensorType) or not isinstance(own, TensorType):
        raise MspcError(
            f"{parameter.kind} {parameter.name!r} is a {type}; the program takes tensors only", code="E0802"
        )
    if parameter.global_type is not None and isinstance(layout, Layout):
        fits = len(layout.dims) == len(type.shape) and type.dtype == own.dtype
        if not fits or not layout.holds(type.shape, own.shape, PADDING in parameter.attrs):
            raise MspcError(f"{parameter.kind} {parameter.name!r}: {own} at {layout} is no slice of {type}")
    return type


def slices_of(parameter: Parameter, rank: int) -> tuple[slice, ...] | None:
    """Return the index range of `rank`'s slice of `parameter` in the global tensor, or None for the whole tensor."""
    layout = parameter.layout
    if not isinstance(layout, Layout) or layout.is_replicated:
        return None
    return layout.held_slices(rank, full_type(parameter).shape, parameter.tensor_type.shape)


def padded_slice(parameter: Parameter, array: Array) -> Array:
    """Return a slice of a parameter extended by the rank's zero padding."""
    missing = [(0, n - m) for n, m in zip(parameter.tensor_type.shape, array.shape, strict=True)]
    return np.pad(array, missing) if any(after for _, after in missing) else array


def slice_parameter(parameter: Parameter, array: Array, rank: int, what: str, copied: bool = True) -> Array:
    """Return `rank`'s slice of the full `array` of `parameter`. copied: as a new contiguous array, not possibly a view.
    Raise MspcError if the array's shape or kind of number differs from the parameter's."""
    type = full_type(parameter)
    if tuple(array.shape) != type.shape:
        raise MspcError(
            f"{what} {parameter.name!r} has shape {tuple(array.shape)}; the program takes {type.shape}", code="E0802"
        )
    _check_kind(parameter, array, what)
    if PADDING in parameter.attrs:
        places = slices_of(parameter, rank)
        return padded_slice(parameter, array if places is None else array[places]).astype(type.dtype.numpy, copy=False)
    part = local_slice if copied else _part
    return part(array, parameter.layout, rank).astype(type.dtype.numpy, copy=False)


def typed_as(parameter: Parameter, part: Array, what: str) -> Array:
    """Return a slice of `parameter` in its element type. Raise MspcError for another kind of number."""
    _check_kind(parameter, part, what)
    return part.astype(full_type(parameter).dtype.numpy, copy=False)


def _check_kind(parameter: Parameter, array: Array, what: str) -> None:
    wanted = full_type(parameter).dtype.numpy
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise MspcError(
            f"{what} {parameter.name!r} is {array.dtype.name}; the program takes {wanted.name}", code="E0802"
        )


def gather(local: Array, layout: Layouts, shape: tuple[int, ...], comm: Communicator) -> Array:
    """Return the global array from the slices of all ranks; all ranks call this together.

    Only ranks that differ along sharding axes exchange slices, so that no slice is sent twice.
    """
    if comm.size == 1 or not isinstance(layout, Layout) or layout.is_replicated:
        return np.array(local[tuple(map(slice, shape))])
    axes = tuple(axis for dim in layout.dims for axis in dim)
    members = layout.group(axes, comm.rank)
    stacked = comm.all_gather(np.asarray(local)[None], members, 0)
    global_array = np.empty(shape, stacked.dtype)
    for member, piece in zip(members, stacked, strict=True):
        places = layout.held_slices(member, shape, piece.shape)
        global_array[places] = piece[tuple(slice(s.stop - s.start) for s in places)]
    return global_array


ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an npz file with arrays, and of an empty one."""


class Batches:
    """Arrays that a rank feeds at every step. inputs: the graph's fed parameters, with their layouts and global types.
    arrays: global, by name; the first axis is one step's batch, or steps times that; after the last step the data start
    over. Raise MspcError if an array is missing, unknown, or has another shape or kind of number."""

    def __init__(self, inputs: Sequence[Parameter], arrays: dict[str, Array], rank: int, source: str) -> None:
        names = [parameter.name for parameter in inputs]
        takes = f"the network takes {', '.join(names) or 'no arrays'}"
        for name in names:
            if name not in arrays:
                raise MspcError(f"{source} has no array {name!r}", notes=[takes])
        for name in arrays:
            if name not in names:
                raise MspcError(f"{source} has an array {name!r} that the network does not take", notes=[takes])
        self._steps: list[list[Array]] = [
            _steps(parameter, _restored(parameter, arrays[parameter.name]), source) for parameter in inputs
        ]
        self._inputs = list(inputs)
        self._rank = rank
        self._source = source
        self._slices: dict[tuple[int, int], Array] = {}

    @property
    def count(self) -> int:
        """Number of different steps in the data."""
        return max((len(steps) for steps in self._steps), default=1)

    def step(self, number: int) -> list[Array]:
        """Return this rank's slices for step `number`, counted from 0."""
        return [self._slice(i, number % len(steps)) for i, steps in enumerate(self._steps)]

    def _slice(self, index: int, batch: int) -> Array:
        found = self._slices.get((index, batch))
        if found is None:
            parameter = self._inputs[index]
            found = slice_parameter(parameter, self._steps[index][batch], self._rank, f"{self._source}: array")
            self._slices[index, batch] = found
        return found


def load_batches(path: Path, inputs: Sequence[Parameter], rank: int) -> Batches:
    """Return the batches of an npz file. Raise MspcError if the file is missing, damaged, or does not fit."""
    return Batches(inputs, read_arrays(path), rank, str(path))


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an npz file by name. Raise MspcError if the file is missing, damaged, or not an npz file."""
    try:
        check_regular(path)
        with open(path, "rb") as stream:
            if stream.read(4) not in ARCHIVES:
                raise MspcError(f"{path} is not an npz file; write it with numpy.savez(path, name=array, ...)")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _array(file[name], name) for name in file.files}
    except FileNotFoundError:
        raise MspcError(f"there is no file {path}", code="E0101") from None
    except MspcError:
        raise
    except IsADirectoryError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # NumPy raises many kinds for damaged archives
        raise MspcError(f"cannot read {path}: {reason_of(error)}") from None
    return arrays


def storable(array: Array) -> Array:
    """Return an array in a type that npz files support: BFloat16 becomes Float32, which represents its values
    exactly."""
    return array.astype(np.float32) if array.dtype.name == BFLOAT16.name.lower() else array


def _array(entry: Any, name: str) -> Array:
    """Return an entry of an npz file. NumPy returns bytes if it is not an array; raise ValueError then."""
    if not isinstance(entry, np.ndarray):
        raise ValueError(f"its entry {name!r} is no array")
    return entry


def synthetic_batches(inputs: Sequence[Parameter], rank: int) -> Batches:
    """Return batches of floats uniform in [0, 1) with seed 0, and zeros for integers and booleans; the global arrays
    are equal on every rank."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for parameter in inputs:
        type = full_type(parameter)
        if type.dtype.is_float:
            arrays[parameter.name] = rng.random(type.shape).astype(type.dtype.numpy)
        else:
            arrays[parameter.name] = np.zeros(type.shape, type.dtype.numpy)
    return Batches(inputs, arrays, rank, "synthetic data")


def _restored(parameter: Parameter, array: Array) -> Array:
    """Return the array of a BFloat16 input with its dtype restored: NumPy reads it back as untyped 2-byte elements."""
    dtype = full_type(parameter).dtype
    return array.view(dtype.numpy) if dtype == BFLOAT16 and array.dtype == np.dtype("V2") else array


def _steps(parameter: Parameter, array: Array, source: str) -> list[Array]:
    shape = full_type(parameter).shape
    if array.shape == shape:
        return [array]
    if shape and array.ndim == len(shape) and array.shape[1:] == shape[1:] and array.shape[0]:
        batch = shape[0]
        if array.shape[0] % batch == 0:
            return [array[i : i + batch] for i in range(0, array.shape[0], batch)]
    steps = f" or (steps x {shape[0]}{''.join(f', {n}' for n in shape[1:])})" if shape else ""
    raise MspcError(
        f"{source}: array {parameter.name!r} has shape {array.shape}; the program takes {shape}{steps}", code="E0802"
    )
