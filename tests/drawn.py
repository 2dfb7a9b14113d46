"""Tensors of random numbers, for calls of kinds."""

from typing import Any, NamedTuple

import numpy as np


class Drawn(NamedTuple):
    """A tensor of random numbers from `low` to `high`.

    "positive" is a matrix of positive eigenvalues, "signs" are -1 and 1, "whole" whole numbers, "places" some of
    twelve, each once in an image, "bags" where bags of seven rows begin, "counts" nine in six parts.
    numbers: all elements, if they are not random.
    """

    dtype: str
    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    numbers: Any = None

    def array(self, rng: np.random.Generator) -> np.ndarray:
        if self.numbers is not None:
            return np.array(self.numbers, self.dtype)
        if self.dtype == "positive":
            return (np.eye(self.shape[0]) + 0.2).astype("float32")
        if self.dtype == "signs":
            return np.where(rng.random(self.shape) < 0.5, -1, 1).astype("float32")
        if self.dtype == "whole":
            return rng.integers(-1, 2, self.shape).astype("float32")
        if self.dtype == "places":
            return rng.permutation(12)[:4].reshape(2, 2) + np.zeros(self.shape, "int64")
        if self.dtype == "bags":
            return np.array([0, 2, 4, 7][: self.shape[0]])
        if self.dtype == "counts":
            return rng.permutation([0, 3, 1, 2, 0, 3][: self.shape[0]])
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype == "int64":
            return rng.integers(int(self.low), int(self.high), self.shape)
        return rng.uniform(self.low, self.high, self.shape).astype(self.dtype)


def floats(*shape: int, low: float = -1.0, high: float = 1.0) -> Drawn:
    return Drawn("float32", shape, low, high)


def integers(*shape: int, low: int = 0, high: int = 4) -> Drawn:
    return Drawn("int64", shape, low, high)


def bools(*shape: int) -> Drawn:
    return Drawn("bool", shape)


def exactly(numbers: Any, dtype: str = "float32") -> Drawn:
    """A tensor of these numbers."""
    return Drawn(dtype, np.shape(numbers), numbers=numbers)
