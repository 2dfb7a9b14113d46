"""The inputs of `mspc run DIR` are global arrays of an npz file, or made up ones, of which a rank gets its slices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of
from mspc.ir.files.regular import check_regular
from mspc.ir.graph import Parameter
from mspc.ir.types import BFLOAT16
from mspc.runtime.slices import full_type, slice_parameter

Array = Any
ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06")
"""How an npz file begins, one that holds arrays and an empty one."""


class Batches:
    """The arrays that a rank feeds at every step.

    Args:
        inputs: the graph's fed parameters, with their layouts and global types. arrays: global, by name;
        the first
            axis is one step's batch, or steps times that; steps beyond the data begin again with the first.

    Raises:
        MspcError: an array is missing, unknown, or has another shape or kind of number.
    """

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
        """This rank's slices for step `number`, counted from 0."""
        return [self._slice(i, number % len(steps)) for i, steps in enumerate(self._steps)]

    def _slice(self, index: int, batch: int) -> Array:
        found = self._slices.get((index, batch))
        if found is None:
            parameter = self._inputs[index]
            found = slice_parameter(parameter, self._steps[index][batch], self._rank, f"{self._source}: array")
            self._slices[index, batch] = found
        return found


def load_batches(path: Path, inputs: Sequence[Parameter], rank: int) -> Batches:
    """Batches of an npz file.

    Raises:
        MspcError: the file is missing, damaged, or does not fit.
    """
    return Batches(inputs, read_arrays(path), rank, str(path))


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an npz file by name.

    Raises:
        MspcError: the file is missing or damaged, or another one.
    """
    try:
        check_regular(path)
        with open(path, "rb") as stream:
            if stream.read(4) not in ARCHIVES:
                raise MspcError(f"{path} is not an npz file; write it with numpy.savez(path, name=array, ...)")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _array(file[name], name) for name in file.files}
    except FileNotFoundError:
        raise MspcError(f"there is no file {path}") from None
    except MspcError:
        raise
    except IsADirectoryError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # NumPy raises many kinds for damaged archives
        raise MspcError(f"cannot read {path}: {reason_of(error)}") from None
    return arrays


def storable(array: Array) -> Array:
    """An array as an npz file takes it, which knows no BFloat16: Float32 holds its values unchanged."""
    return array.astype(np.float32) if array.dtype.name == BFLOAT16.name.lower() else array


def _array(entry: Any, name: str) -> Array:
    """An entry of an npz file, which NumPy gives as bytes where it is no array."""
    if not isinstance(entry, np.ndarray):
        raise ValueError(f"its entry {name!r} is no array")
    return entry


def synthetic_batches(inputs: Sequence[Parameter], rank: int) -> Batches:
    """Floats uniform in [0, 1), integers and booleans 0, from seed 0; the same global arrays on every
    rank."""
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
    """The array of a BFloat16 input as NumPy reads back what it has written: two bytes an element that mean nothing."""
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
    raise MspcError(f"{source}: array {parameter.name!r} has shape {array.shape}; the program takes {shape}{steps}")
