"""Inputs that judges are asked about: every element type, signs, zeros, infinities, ties, empty and single ones."""

import itertools

import ml_dtypes
import numpy as np

WHOLE = ("int8", "int16", "int32", "int64", "uint8")
FLOATS = ("float16", "bfloat16", "float32", "float64")
TYPES = (*FLOATS, *WHOLE, "bool")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3e4, np.inf, -np.inf, np.nan])
GENERATOR = np.random.default_rng(12)


def as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers in an element type; those that it has not become ones that it has."""
    if dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16)
    if dtype.startswith("float"):
        return values.astype(dtype)
    if dtype == "bool":
        return values > 0
    return (np.abs(values) if dtype.startswith("u") else values).round().astype(np.int64).astype(dtype)


def drawn(*shape: int, dtype: str = "float64", low: float = -3.0, high: float = 3.0) -> np.ndarray:
    return as_type(GENERATOR.uniform(low, high, shape), dtype)


def unary(low: float = -3.0, high: float = 3.0, types: tuple[str, ...] = TYPES) -> list[list[np.ndarray]]:
    """One tensor: every type, several shapes, and what is no ordinary number."""
    cases = [[drawn(3, 4, dtype=dtype, low=low, high=high)] for dtype in types]
    cases += [[drawn(*shape, low=low, high=high)] for shape in ((), (1,), (0, 3), (2, 1, 3))]
    cases += [[np.zeros((2, 2), np.float32)], [SPECIAL.astype(np.float32)], [SPECIAL.copy()]]
    return cases


def binary(low: float = -3.0, high: float = 3.0, types: tuple[str, ...] = TYPES) -> list[list[np.ndarray]]:
    """Two tensors: same and mixed types, broadcasting, ties, and what is no ordinary number."""

    def both(
        left: tuple[int, ...], right: tuple[int, ...], kinds: tuple[str, str] = ("float64",) * 2
    ) -> list[np.ndarray]:
        first, second = kinds
        return [drawn(*left, dtype=first, low=low, high=high), drawn(*right, dtype=second, low=low, high=high)]

    cases = [both((3, 4), (3, 4), (dtype, dtype)) for dtype in types]
    mixed = [
        ("float16", "float32"),
        ("float32", "float64"),
        ("int32", "float32"),
        ("bool", "int32"),
        ("bool", "float32"),
    ]
    mixed += [("uint8", "int16"), ("int32", "int64"), ("int64", "float16"), ("float16", "bfloat16"), ("uint8", "int8")]
    for one, other in mixed:
        if one in types and other in types:
            cases += [both((3, 4), (3, 4), (one, other)), both((4,), (3, 4), (other, one))]
    shapes = [
        ((3, 4), (4,)),
        ((3, 1), (1, 4)),
        ((), (2, 3)),
        ((2, 3), ()),
        ((1,), (1,)),
        ((0, 4), (4,)),
        ((2, 1, 3), (4, 1)),
    ]
    cases += [both(*pair) for pair in shapes]
    ties = np.array([1.0, 2.0, 2.0, 0.5]) if low >= 0 else np.array([1.0, -2.0, 0.0, 2.0])
    cases += [[ties, ties.copy()], [ties, np.array([1.0, 1.0, 2.0, 2.0])]]
    grid = np.array(list(itertools.product(SPECIAL, SPECIAL))).T.copy()
    cases += [[grid[0].astype(np.float32), grid[1].astype(np.float32)]]
    return cases


def reduced(types: tuple[str, ...] = TYPES, low: float = -3.0, high: float = 3.0) -> list[list[np.ndarray]]:
    """One tensor of three dimensions: every type, ties, and what is no ordinary number."""
    cases = [[drawn(2, 3, 4, dtype=dtype, low=low, high=high)] for dtype in types]
    cases += [[np.array([[[1.0, 3.0, 3.0, 0.0]] * 3] * 2)], [np.zeros((2, 3, 4))], [drawn(1, 1, 1)]]
    special = np.resize(SPECIAL, (2, 3, 4)).astype(np.float32)
    return [*cases, [special], [np.where(np.isnan(special), 1, special).astype(np.float32)]]


EMPTY = [[np.zeros((0, 3, 4), np.float32)], [np.zeros((2, 0, 4))]]
