"""Properties that the generated tests cannot know: rules, values by hand, special cases.

Declarations of operators about memory hold for their kernels: views, updates in place, effects.
Operators of numbers alone refuse Bool, in a network and outside of one; others keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, TensorType
from mspc.ops.bases import operand_dtypes, promoted
from mspc.ops.collective.base import Collective
from mspc.ops.math.arithmetic import Add, Div, LogicalAnd, Maximum, Mul, Select
from mspc.ops.math.elementwise import Erf, Sqrt
from mspc.ops.math.matmul import MatMul
from mspc.ops.math.reduce import ReduceMax, ReduceMean
from mspc.ops.nn.activation import GeLU, Sigmoid
from mspc.ops.op import REGISTRY, Op, RankPlacement, load_operators
from mspc.ops.random.dropout import Dropout
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import broadcast_rule, reshape_rule
from tests.grouped import MANY, grouped
from tests.ops.simulate import (
    BACKEND,
    arrays_of,
    gradient_graph,
    interpret,
    operator_of,
    results_of,
    samples_of,
    types_of,
)


def tensor(*shape: int, dtype: Any = FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


# Rules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "rule"),
    [
        (((8, 16), (8, 16)), "a b, a b -> a b"),
        (((8, 16), (16,)), "a b, b -> a b"),
        (((8, 16), ()), "a b,  -> a b"),
        (((8, 1), (1, 16)), "a 1, 1 b -> a b"),
        (((1, 8), (1,)), "1 b, 1 -> 1 b"),
        (((), ()), ",  -> "),
    ],
)
def test_broadcast_rule_aligns_at_the_right(shapes: Any, rule: str) -> None:
    assert broadcast_rule(shapes) == rule


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        ((8, 16, 32), (128, 32), "a b c -> (a b) c"),
        ((64, 32), (32, 64), "(a b) c -> a (b c)"),
        ((6, 4), (4, 6), "(a b!) e! -> (a c!) d!"),
        ((1, 8, 1, 4), (32,), "1 a 1 b -> (a b)"),
        ((4, 9, 7), (6, 6, 7), "(a b!) d! f -> (a c!) e! f"),
        ((12,), (12,), "a -> a"),
        ((), (1, 1), " -> 1 1"),
    ],
)
def test_reshape_rule_is_the_common_refinement(source: Any, target: Any, rule: str) -> None:
    parsed = Reshape(target).parsed_rule(TensorType(FLOAT32, source))
    assert str(parsed) == rule
    assert parsed.output_shapes() == (target,)
    assert reshape_rule(source, target)


def test_reshape_rule_keeps_the_order_of_elements_for_random_shapes() -> None:
    random = np.random.default_rng(5)
    for _ in range(300):
        size = int(np.prod(random.choice([2, 2, 3, 4, 5], 4)))
        source, target = (_random_shape(size, random) for _ in range(2))
        rule = Reshape(target).parsed_rule(TensorType(FLOAT32, source))
        assert rule.output_shapes() == (target,)
        assert [n for f, n in enumerate(rule.sizes) if f not in rule.frozen and f in rule.reduced] == []


def _random_shape(size: int, random: Any) -> tuple[int, ...]:
    dims: list[int] = []
    while size > 1:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        dims.append(int(random.choice(divisors)))
        size //= dims[-1]
        if len(dims) == 4:
            dims.append(size)
            break
    return tuple(dims)


# Values by hand ------------------------------------------------------------------------------------


SLICES = [
    (StridedSlice(begin=(1, 2), end=(5, 8), strides=(2, 3)), np.s_[1:5:2, 2:8:3]),
    (StridedSlice(begin=(-1,), end=(-9,), strides=(-2,)), np.s_[-1:-9:-2]),
    (StridedSlice(begin=(0, 3), end=(0, 0), strides=(1, 1), begin_mask=1, end_mask=3), np.s_[:, 3:]),
    (StridedSlice(begin=(0, 2), end=(0, 4), strides=(1, 1), ellipsis_mask=1), np.s_[..., 2:4]),
    (StridedSlice(begin=(0, 1), end=(0, 2), strides=(1, 1), new_axis_mask=1), np.s_[None, 1:2]),
    (StridedSlice(begin=(-2, 0), end=(0, 4), strides=(1, 1), shrink_axis_mask=1), np.s_[-2, 0:4]),
    (StridedSlice(begin=(0, 0, 5), end=(0, 0, 6), strides=(1, 1, 1), ellipsis_mask=1, new_axis_mask=2,
                  shrink_axis_mask=4), np.s_[..., None, 5]),
    (StridedSlice(begin=(-1, 0), end=(-100, 16), strides=(-1, 1)), np.s_[::-1, :]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "index"), SLICES)
def test_strided_slice_follows_its_masks(op: StridedSlice, index: Any) -> None:
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    np.testing.assert_array_equal(op.run(BACKEND, x), x[index])
    assert op.infer(tensor(8, 16)) == tensor(*x[index].shape)
    local = op.localize(RankPlacement(0, (tensor(8, 16),), (Layout.replicated(1, 2),), (), ()))
    assert isinstance(local, StridedSlice)
    assert (local.begin_mask, local.end_mask, local.ellipsis_mask) == (0, 0, 0)
    np.testing.assert_array_equal(local.run(BACKEND, x), x[index])


def test_sigmoid_keeps_small_values() -> None:
    x = np.array([-80.0, -20.0, 0.0, 20.0, 800.0, -800.0], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        got = Sigmoid().kernel(BACKEND)(x)
    np.testing.assert_allclose(got[:3], [np.exp(-80.0), np.exp(-20.0), 0.5], rtol=1e-6)
    assert got[4] == 1
    assert got[5] == 0


def gradients_of(op: Op, inputs: list[Any], sens: list[Any]) -> list[Any]:
    types = [TensorType(FLOAT64 if x.dtype.kind == "f" else INT32, x.shape) for x in inputs]
    graph, x, d, grads = gradient_graph(op, types, range(len(sens)))
    return interpret(graph, dict(zip([*x, *d], [*inputs, *sens], strict=True)), grads)


def test_equal_maxima_share_the_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    (grad,) = gradients_of(ReduceMax(axis=(1,)), [x], [np.array([6.0, 5.0])])
    np.testing.assert_array_equal(grad, [[0, 3, 3], [5, 0, 0]])


def test_maximum_of_equal_operands_passes_half_to_each() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])
    dx, dy = gradients_of(Maximum(), [x, y], [np.ones(3)])
    np.testing.assert_array_equal(dx, [0.5, 0, 1])
    np.testing.assert_array_equal(dy, [0.5, 1, 0])


def test_matmul_gradient_needs_no_transpose_nodes() -> None:
    for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
        shapes = ((16, 8) if ta else (8, 16)), ((4, 16) if tb else (16, 4))
        graph, _, _, _ = gradient_graph(MatMul(ta, tb), [tensor(*s) for s in shapes], [0])
        assert [node.op.name for node in graph.nodes] == ["MatMul"] * 3


def test_out_of_range_index_is_refused() -> None:
    table = np.ones((4, 2))
    with pytest.raises(IndexError):
        Gather().run(BACKEND, table, np.array([4]))
    with pytest.raises(IndexError, match="outside of"):
        Gather(offset=4, total=8).run(BACKEND, table, np.array([8]))


def test_negative_index_counts_from_the_end_of_the_whole_table() -> None:
    table = np.arange(16.0).reshape(8, 2)
    ids = np.array([-1, -8, 3])
    whole = Gather().run(BACKEND, table, ids)
    parts = [Gather(offset=o, total=8).run(BACKEND, table[o : o + 4], ids) for o in (0, 4)]
    np.testing.assert_array_equal(sum(parts), whole)
    grad = GatherGrad(8).run(BACKEND, np.ones((3, 2)), ids)
    np.testing.assert_array_equal(grad[:, 0], [1, 0, 0, 1, 0, 0, 0, 1])


# Random masks --------------------------------------------------------------------------------------


class Later:
    xp = np
    comm = None
    step = 1


def test_dropout_masks_differ_by_seed_step_and_place() -> None:
    x = np.ones((64, 64), np.float32)
    masks = [
        Dropout(0.5).run(BACKEND, x)[1],
        Dropout(0.5).run(Later, x)[1],
        Dropout(0.5, Seed0=1).run(BACKEND, x)[1],
        Dropout(0.5, Seed1=1).run(BACKEND, x)[1],
        Dropout(0.5, shape=(128, 64), begin=(64, 0)).run(BACKEND, x)[1],
    ]
    for i, one in enumerate(masks):
        assert abs(one.mean() - 0.5) < 0.03
        for other in masks[:i]:
            assert 0.45 < (one == other).mean() < 0.55


def test_dropout_is_reproducible_and_scales() -> None:
    x = np.random.default_rng(0).random((32, 32)).astype(np.float32)
    out, mask = Dropout(0.25, 3, 4).run(BACKEND, x)
    again, _ = Dropout(0.25, 3, 4).run(BACKEND, x)
    np.testing.assert_array_equal(out, again)
    np.testing.assert_array_equal(out, x * mask * np.float32(4))
    assert out.dtype == np.float32


def test_random_words_are_splitmix64() -> None:
    from mspc.ops.random.words import random_words

    # The first outputs of SplitMix64 started from 1234567, as its reference implementation gives them.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(w) for w in random_words(np, 1234567, (3,), (0,), (3,))] == expected


# Element types -------------------------------------------------------------------------------------


def test_promotion_of_element_types() -> None:
    assert promoted(INT32, FLOAT16) == FLOAT16
    assert promoted(FLOAT32, FLOAT64) == FLOAT64
    assert promoted(BOOL, INT32) == INT32
    assert promoted(INT32, INT64) == INT64
    assert promoted(UINT8, INT32) == INT32
    assert tuple(operand_dtypes(Add(), [FLOAT32, FLOAT32])) == (FLOAT32, FLOAT32)
    assert operand_dtypes(Add(), [INT32, FLOAT32]) == (FLOAT32, FLOAT32)
    assert operand_dtypes(Div(), [INT32, INT32]) == (FLOAT32, FLOAT32)
    assert operand_dtypes(Sqrt(), [INT32]) == (FLOAT32,)
    assert operand_dtypes(LogicalAnd(), [INT32, FLOAT32]) == (BOOL, BOOL)
    assert operand_dtypes(Select(), [BOOL, INT32, FLOAT32]) == (BOOL, FLOAT32, FLOAT32)
    assert tuple(operand_dtypes(Cast(FLOAT32), [BOOL])) == (BOOL,)


def test_scalars_keep_their_element_type() -> None:
    one = np.array(1.5, np.float32)
    for op in (Add(), Mul(), Div(), Maximum()):
        (out,) = results_of(op, [one, one])
        assert out.dtype == np.float32
    for unary in (Sigmoid(), GeLU(), Sqrt(), Erf()):
        assert results_of(unary, [one])[0].dtype == np.float32


def test_the_mean_of_integers_is_cut_off_to_one() -> None:
    x = np.array([[3, 4, -9], [-3, -4, 9]], np.int32)
    (mean,) = results_of(ReduceMean(axis=(1,)), [x])
    assert mean.dtype == np.int32
    np.testing.assert_array_equal(mean, [0, 0])
    (mean,) = results_of(ReduceMean(axis=(0,)), [x + 1])
    np.testing.assert_array_equal(mean, [1, 1, 1])
    (mean,) = results_of(ReduceMean(axis=(1,)), [np.array([[2**31 - 1] * 2, [-3, -4]], np.int32)])
    np.testing.assert_array_equal(mean, [2**31 - 1, -3])


def test_vectors_of_several_types_have_products_of_the_widest() -> None:
    found = ops.outer(Tensor(np.array([5, -9])), Tensor(np.array([0.5, 0.1])))
    assert found.asnumpy().tolist() == [[2.5, 0.5], [-4.5, -0.9]]


load_operators()


@grouped([(*case, floats) for case in samples_of(()) for floats in ("Float32", "Float64")], MANY)
def test_results_show_the_declared_operands_alone(name: str, index: int, floats: str) -> None:
    op, sample = operator_of(name, index)
    arrays = arrays_of(name, sample, types_of(sample, floats))
    before = [array.copy() for array in arrays]
    out: Any = op.kernel(BACKEND)(*arrays)
    results = out if isinstance(out, tuple) else (out,)
    shown = {i for i, array in enumerate(arrays) if any(np.shares_memory(array, result) for result in results)}
    assert shown <= set(op.aliased_operands(len(arrays)))
    changed = {i for i, (array, old) in enumerate(zip(arrays, before, strict=True)) if array.tobytes() != old.tobytes()}
    assert changed <= set(op.mutates)
    if op.is_view:
        assert results[0].tobytes() == before[0].tobytes()


def test_what_changes_something_has_an_effect() -> None:
    own = {name: cls for name, cls in REGISTRY.items() if cls.__module__.startswith("mspc.")}
    assert [name for name, cls in own.items() if cls.mutates and not cls.has_side_effect] == []
    assert [name for name, cls in own.items() if cls.is_collective != issubclass(cls, Collective)] == []
    assert [name for name, cls in own.items() if cls.is_collective and not cls.has_side_effect] == []


def test_operators_of_floating_point_refuse_integers() -> None:
    kinds = [(name, kind) for name, kind in load_operators().items() if kind.float_only and kind.samples]
    assert len(kinds) > 60
    for name, kind in kinds:
        given = kind.samples[0]
        types = [TensorType(INT32, shape) for shape in given.shapes]
        with pytest.raises(MspcError, match=name):
            kind(**given.fields).infer(*types)


X, Y = Tensor(np.array([True, False, True])), Tensor(np.array([True, True, False]))
FIRST, ONE = Tensor([[0]]), Tensor([True])
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "Sub": lambda x, y: ops.sub(x, y),
    "SquaredDifference": lambda x, y: ops.SquaredDifference()(x, y),
    "Sign": lambda x, y: ops.sign(x),
    "Square": lambda x, y: ops.square(x),
    "Pow": lambda x, y: ops.pow(x, y),
    "FloorDiv": lambda x, y: ops.floor_div(x, y),
    "FloorMod": lambda x, y: ops.remainder(x, y),
    "Mod": lambda x, y: ops.fmod(x, y),
    "TruncateDiv": lambda x, y: ops.TruncateDiv()(x, y),
    "TruncateMod": lambda x, y: ops.TruncateMod()(x, y),
    "Conj": lambda x, y: ops.conj(x),
    "CumSum": lambda x, y: ops.cumsum(x, 0),
    "TensorScatterSub": lambda x, y: ops.tensor_scatter_sub(x, FIRST, ONE),
}


class Net(nn.Cell):
    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.call = call

    def construct(self, x: Any, y: Any) -> Any:
        return self.call(x, y)


@pytest.mark.parametrize("name", REFUSED)
def test_the_message(name: str) -> None:
    for call in (REFUSED[name], Net(REFUSED[name])):
        with pytest.raises(TypeError, match=rf"{name}: input 0 is Bool, not a number"):
            call(X, Y)


def test_what_stays_bool() -> None:
    for call in (lambda x, y: ops.relu(x), lambda x, y: ops.maximum(x, y), lambda x, y: ops.mul(x, y)):
        inside, outside = Net(call)(X, Y), call(X, Y)
        assert inside.dtype == outside.dtype == ms.bool_
        np.testing.assert_array_equal(inside.asnumpy(), outside.asnumpy())
