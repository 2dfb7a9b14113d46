"""Operators that move elements do what they say of places: their samples, element by element.

Tables that are sharded along the looked-up dimension: what another rank owns is NaN here and changes nothing.
GroupedMatmul: each group of rows is what it would be alone, on one device and on ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.compiler.frontend.layers import JOINED
from mspc.ops.index_map import Coordinate, IndexMap, along, reshaped
from mspc.runtime.backend import NumPyBackend
from tests.graphs import FLOAT64, INT32, REGISTRY, MspcError, Op, TensorType, TupleType
from tests.operators import EmbeddingLookup, Gather, GatherD, GatherDGrad, GatherGrad, GatherNd, Sub
from tests.ops.backend import BACKEND
from tests.ops.simulate import check_sharded, results_of

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


RANDOM = np.random.default_rng(7)
TABLE = RANDOM.standard_normal((6, 4))
TABLE[0], TABLE[3] = np.nan, np.inf
ROWS = RANDOM.integers(0, 6, (6, 4)).astype(np.int32)
BATCHES = np.stack([TABLE, TABLE[::-1]])
CASES: dict[str, tuple[Op, Any, Any]] = {
    "gather": (Gather(), TABLE, ROWS),
    "gather in a batch": (Gather(1, 1), BATCHES, ROWS[:2]),
    "gather in a batch backwards": (GatherGrad(6, 1, batch_dims=1), BATCHES, ROWS.T[:2]),
    "embedding": (EmbeddingLookup(), TABLE, ROWS),
    "gather along": (GatherD(0), TABLE, ROWS),
    "gather along backwards": (GatherDGrad(0, 6), ROWS, TABLE),
    "gather nd": (GatherNd(), TABLE, ROWS[:, :1]),
}


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_the_whole(name: str, ranks: int) -> None:
    op, *inputs = CASES[name]
    types = [TensorType(INT32 if x.dtype == np.int32 else FLOAT64, x.shape) for x in inputs]
    with np.errstate(invalid="ignore"):
        assert check_sharded(op, inputs, types, ranks) >= 2


def test_places_outside_of_the_table_are_zeros() -> None:
    found = results_of(EmbeddingLookup(2), [TABLE, np.array([0, 2, 3, 8], np.int32)])[0]
    np.testing.assert_array_equal(found, np.stack([np.zeros(4), TABLE[0], TABLE[1], np.zeros(4)]))


ENDS = (2, 2, 5, 7)
NONE = (None,) * 4


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", [tuple, Tensor])
def test_rows_go_with_the_matrix_of_their_group(kind: Any, biased: bool) -> None:
    x, w, b = drawn(8, 3), drawn(4, 3, 5, seed=2), drawn(4, 5, seed=3)
    weights = Tensor(drawn(8, 5, seed=4))

    def grouped(x: Any, w: Any, b: Any) -> Any:
        gmm = ops.GroupedMatmul(3, 0)
        return (gmm([x], [w], [b] if biased else None, *NONE, kind(ENDS))[0] * weights).sum()

    def apart(x: Any, w: Any, b: Any) -> Any:
        total, begin = 0.0, 0
        for i, end in enumerate(ENDS):
            if end > begin:
                product = ops.matmul(x[begin:end], w[i])
                total = total + ((product + b[i] if biased else product) * weights[begin:end]).sum()
            begin = end
        return total

    tensors = [Tensor(array) for array in (x, w, b)]
    places = (0, 1, 2) if biased else (0, 1)
    found, expected = (ms.value_and_grad(f, places)(*tensors) for f in (grouped, apart))
    np.testing.assert_allclose(found[0].asnumpy(), expected[0].asnumpy(), rtol=1e-12)
    for left, right in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(left.asnumpy(), right.asnumpy(), rtol=1e-12, atol=1e-12)


def test_lists_are_products_of_their_own() -> None:
    x, w, b = [drawn(2, 3), drawn(4, 5)], [drawn(3, 2), drawn(5, 1)], [drawn(2), drawn(1)]
    lists = [[Tensor(array) for array in arrays] for arrays in (x, w, b)]
    found = ops.GroupedMatmul()(*lists)
    for result, left, right, added in zip(found, x, w, b, strict=True):
        np.testing.assert_allclose(result.asnumpy(), left @ right + added, rtol=1e-12)


X, W = Tensor(drawn(8, 3)), Tensor(drawn(4, 3, 5))


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (0, ([X], [W]), "group_type 0 takes one x and a group_list"),
        (-1, ([X], [W], None, *NONE, ENDS), "group_type -1 no group_list"),
        (2, ([X], [W]), "group_type is 2, not -1 or 0"),
        (-1, ([X, X], [W]), "x, weight and bias are lists of 2, 1 and 0 tensors"),
        (-1, ([X], [W], None, X), "scale must be None; quantised products are not built"),
        (0, ([W], [W], None, *NONE, ENDS), "GroupedProduct: inputs of shapes (4, 3, 5) and (4, 3, 5)"),
    ],
)
def test_what_does_not_fit_is_named(kind: int, arguments: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError, TypeError)) as refused:
        ops.GroupedMatmul(3, kind)(*arguments)
    assert message in str(refused.value)


NAMES = sorted(name for name, cls in REGISTRY.items() if cls.joins in JOINED)


def over(op: Op, operands: Sequence[Any]) -> Any:
    """The result over any number of operands: of an operator with two, over one behind the other."""
    if op.operandwise or op.name == "AddN":
        return op.kernel(BACKEND)(*operands)
    found = operands[0]
    for operand in operands[1:]:
        found = op.kernel(BACKEND)(found, operand)
    return found


def operands_of(op: Op) -> list[Any]:
    generator = np.random.default_rng(7)
    if op.joins in ("all", "any") and not op.operandwise:
        return list(generator.integers(0, 2, (5, 4)) > 0)
    found = list(generator.integers(-3, 4, (5, 4)).astype(np.float32))
    if op.operandwise:
        found[3][1] = np.inf
    return found


@pytest.mark.parametrize("name", NAMES)
def test_results_over_groups_give_that_over_all(name: str) -> None:
    op = REGISTRY[name]()
    operands = operands_of(op)
    groups = [[operands[0], operands[3]], [operands[4]], [operands[2], operands[1]]]
    parts = np.stack([over(op, group) for group in groups])
    join, reduce = JOINED[op.joins]
    wanted = over(op, operands)
    np.testing.assert_array_equal(reduce(axis=(0,)).kernel(BACKEND)(parts), wanted)
    np.testing.assert_array_equal(over(join(), list(parts)), wanted)
    if not op.operandwise:
        np.testing.assert_array_equal(over(op, operands[:1]), operands[0])


def test_usual_operators_join() -> None:
    assert {"Add", "AddN", "Mul", "Maximum", "Minimum", "LogicalAnd", "LogicalOr", "AllFinite"} <= set(NAMES)
    assert not Sub.joins
