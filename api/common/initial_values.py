"""Initial values are described here before they are made: the same seed and counter give the same numbers on every
rank.

An `InitialValue` knows shape, dtype and how to draw; nothing is sampled before someone asks, and a rank
may ask for its slice alone. Those of mspc's own initializers can be described as data (`ir/initial_value.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.initializer_names import as_initializer
from mspc.api.common.initializers import (
    Constant,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    Uniform,
    XavierUniform,
    sampled_by,
)
from mspc.api.common.seed import next_initial_value
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.initial_value import (
    Description,
    RandomStream,
    Slices,
    clear_row,
    draw_blocks,
    exact_in,
    part_of,
)
from mspc.ir.types import DType, dtype_of

__all__ = [
    "HeNormal", "HeUniform", "InitialValue", "Initializer", "Normal", "Uniform", "XavierUniform", "as_initializer",
    "checked_shape", "initial_value",
]  # fmt: skip


class InitialValue:
    """Values that will be sampled: by what, of which shape and dtype, with which seed and counter.

    zero_row: this index of the first dimension holds zeros instead. in_parts: whether a part costs no more than its
    share.
    """

    in_parts = False

    def __init__(self, init: Initializer, shape: tuple[int, ...], dtype: DType) -> None:
        self.init = init
        self.shape = shape
        self.dtype = dtype
        self.seed, self.counter = next_initial_value()
        self.zero_row: int | None = None

    @staticmethod
    def filled(number: Any, shape: tuple[int, ...], dtype: DType) -> InitialValue:
        """One number everywhere; the random numbers of the values that are requested later do not depend on it."""
        made = object.__new__(InitialValue)
        made.init, made.shape, made.dtype = Constant(number), shape, dtype
        made.seed = made.counter = 0
        made.zero_row = None
        return made

    def description(self) -> Description | None:
        """The values as data; None where only an initializer from outside mspc knows them, or an array.

        Raises:
            MspcError: the initializer makes no such tensor.
        """
        found = None if sampled_by(self.init) else self.init.of_shape(self.shape).distribution()
        if found is None:
            return None
        described = Description(found, self.shape, self.dtype, self.seed, self.counter, self.zero_row)
        described.check()
        return described

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """The values in `slices` of the global tensor (None: all of it), the same as in the global tensor.

        Besides the result no more than a block is held at a time, unless the initializer draws a tensor as one.
        """
        described = self.description()
        if described is not None:
            return described.fill(slices)
        own = sampled_by(self.init)
        init = self.init if own else self.init.of_shape(self.shape)
        stream = RandomStream(self.seed, self.counter)
        if own != "_initialize" and init.needs_random and init.independent:
            result = draw_blocks(init.draw, stream, self.shape, self.dtype, slices)
        else:
            is_random = own == "_initialize" or init.needs_random
            values = init.draw(stream.generator() if is_random else None, self.shape)
            result = part_of(values, self.shape, self.dtype, slices)
        clear_row(result, self.zero_row, self.shape, slices)
        return result

    def restyled(self, dtype: DType) -> InitialValue:
        """Sampled by the same random numbers in another element type."""
        return self._with(dtype=dtype)

    def cast(self, dtype: DType) -> InitialValue | None:
        """These values, cast to another element type; None where that rounds twice, so that they must be made first."""
        if dtype == self.dtype:
            return self
        described = self.description()
        return self.restyled(dtype) if described is not None and exact_in(described, dtype) else None

    def without_row(self, row: int) -> InitialValue:
        """The same values with zeros in one row."""
        return self._with(zero_row=row)

    def _with(self, **changes: Any) -> InitialValue:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as int, list or tuple. Raises TypeError or ValueError."""
    if type(shape) is tuple and all([type(n) is int and n >= 0 for n in shape]):
        return shape
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(n, (int, np.integer)) for n in sizes):
        raise ApiTypeError(f"a shape is a tuple of integers, not {shape!r}")
    if any(n < 0 for n in sizes):
        raise ApiValueError(f"shape {tuple(sizes)} has a negative size")
    return tuple(int(n) for n in sizes)


def initial_value(init: Any, shape: Any, dtype: Any) -> InitialValue:
    """The lazy values of a parameter of `shape`."""
    return InitialValue(as_initializer(init), checked_shape(shape), dtype_of(dtype))
