"""Operators that move elements do what they say of places: their samples, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.types import FLOAT64, TensorType, TupleType
from mspc.ops.index_map import Coordinate, IndexMap, along, reshaped
from mspc.ops.op import REGISTRY, Op, load_operators
from mspc.runtime.backend import NumPyBackend

load_operators()
MOVING = sorted(name for name, cls in REGISTRY.items() if cls.index_map is not Op.index_map)
DIVIDING = sorted(name for name, cls in REGISTRY.items() if cls.single_result is not Op.single_result)


def value(place: Coordinate, index: tuple[int, ...]) -> int:
    return place.offset + sum(step * index[d] for d, step in place.terms)


def looked_up(map: IndexMap, operands: list[Any]) -> Any:
    """The result that a map describes."""
    found = np.zeros(map.dims)
    for index in np.ndindex(*map.dims):
        for piece in map.pieces:
            if all(begin <= index[d] < end for d, begin, end in piece.where):
                found[index] = operands[piece.operand][tuple(value(place, index) for place in piece.source)]
                break
        else:
            assert not map.covers
    return found


def samples(names: list[str]) -> list[Any]:
    return [
        pytest.param(REGISTRY[name](**sample.fields), sample.shapes, id=f"{name}{i}")
        for name in names
        for i, sample in enumerate(REGISTRY[name].samples)
    ]


def run(op: Op, operands: list[Any]) -> Any:
    return op.kernel(NumPyBackend(None))(*operands)


def numbered(shapes: Any) -> tuple[list[TensorType], list[Any]]:
    types = [TensorType(FLOAT64, shape) for shape in shapes]
    return types, [np.arange(type.size, dtype=float).reshape(type.shape) + 1000 * i for i, type in enumerate(types)]


def test_many_operators_say_it() -> None:
    assert {"StridedSlice", "Concat", "Transpose", "Pad", "Tile", "ReverseV2"} <= set(MOVING)
    assert {"Split", "Unstack"} <= set(DIVIDING)


@pytest.mark.parametrize(("op", "shapes"), samples(MOVING))
def test_places_are_those_of_the_operator(op: Op, shapes: Any) -> None:
    types, operands = numbered(shapes)
    map = op.index_map(*types)
    assert map is not None
    made = run(op, operands)
    np.testing.assert_array_equal(looked_up(map, operands).reshape(made.shape), made)


@pytest.mark.parametrize(("op", "shapes"), samples(DIVIDING))
def test_parts_are_those_of_the_operator(op: Op, shapes: Any) -> None:
    types, operands = numbered(shapes)
    whole, type = run(op, operands), op.infer(*types)
    assert isinstance(type, TupleType)
    for number, made in enumerate(whole):
        part = op.single_result(number, *types)
        assert part is not None
        assert part.infer(*types) == type.elements[number]
        np.testing.assert_array_equal(run(part, operands), made)


def test_steps_above_one_into_zeros_have_no_places() -> None:
    op = REGISTRY["StridedSliceGrad"](begin=(0,), end=(8,), strides=(2,), shape=(8,))
    assert op.index_map(TensorType(FLOAT64, (4,))) is None


def test_dimensions_are_joined_and_divided_where_steps_allow() -> None:
    assert reshaped([along(0), along(1)], (4, 6), (24,), (4, 6)) == [Coordinate(0, ((0, 6), (1, 1)))]
    assert reshaped([Coordinate(12, ((0, 24), (1, 6), (2, 1)))], (96,), (4, 4, 6), (3, 2, 6)) == [
        along(0, 1, 0), along(1, 1, 2), along(2)
    ]  # fmt: skip
    assert reshaped([along(0, -1, 9)], (10,), (2, 5), (10,)) is None
    assert reshaped([along(0), along(1)], (4, 6), (8, 3), (4, 6)) is None
