"""Properties that the generated tests cannot know: rules, values by hand, special cases.

Declarations of operators about memory hold for their kernels: views, updates in place, effects.
Operators of numbers alone refuse Bool, in a network and outside of one; others keep it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    DType,
    TensorType,
)
from mspc.mindspore_api.ops import AvgPool3D, MaxPool3D, NeighborExchange, NeighborExchangeV2
from mspc.ops.bases import operand_dtypes, promoted
from mspc.ops.control.regions import ONCE, Times, nodes_with_times, times_of
from mspc.ops.math.arithmetic import Add, Div, LogicalAnd, Maximum, Mul, Select
from mspc.ops.math.fourier import FFTN, IRFFTN, RFFTN
from mspc.ops.math.reduce import ReduceMax, ReduceMean
from mspc.ops.nn.activation import GeLU, ReLU, Sigmoid
from mspc.ops.op import REGISTRY, Op, RankPlacement, load_operators
from mspc.ops.optim.optimizer import AT_ONCE, AllFinite
from mspc.passes.lib.choices import operandwise_choice
from mspc.sharding.rules import broadcast_rule, reshape_rule
from tests.errors import error_of
from tests.executors import GpuExecutor, parse_passes, run_passes
from tests.graphs import Builder, Collective, Graph, Layout, MspcError, Parameter, parse, print_graph
from tests.grouped import MANY, grouped
from tests.interpret import run_on_ranks
from tests.ir.regions import LOOP
from tests.operators import AllReduce, Cast, Dropout, Erf, Gather, GatherGrad, MatMul, Reshape, Sqrt, StridedSlice
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator
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


BAD = [None, (0, np.inf), (1, -np.inf), (2, np.nan)]


def arrays(bad: tuple[int, float] | None) -> list[np.ndarray]:
    kinds = (((700, 3), FLOAT32), ((5,), FLOAT16), ((), BFLOAT16), ((0, 2), FLOAT32))
    made = [np.full(shape, 3e4, kind.numpy) for shape, kind in kinds]
    if bad is not None:
        made[bad[0]].reshape(-1)[-1] = bad[1]
    return made


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
def test_kernel_equals_numpy(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    cases = []
    for bad in BAD:
        for inputs in (arrays(bad), arrays(bad) * AT_ONCE):
            out = np.zeros((), bool)
            cases.append((AllFinite().launch(device, out, *inputs), out, bad is None))
            assert bool(AllFinite().run(type("B", (), {"xp": np}), *inputs)) == (bad is None)
    for launch, out, expected in cases:
        launch()
        assert bool(out) == expected


def test_operands_stay_as_they_lie() -> None:
    one, other = Layout.of((2, 4), [(0,), ()]), Layout.of((2, 4), [(1,)])
    whole = Layout.replicated(8, 1)
    assert operandwise_choice(AllFinite(), [one, whole], 8).outputs == (Layout.of((2, 4), (), (0,), "all"),)
    assert operandwise_choice(AllFinite(), [one, other], 8).outputs == (Layout.of((8,), (), (0,), "all"),)
    assert operandwise_choice(AllFinite(), [whole], 8).outputs == (Layout.replicated(8, 0),)
    crossing = [Layout.of((3, 4), [(0,)]), Layout.of((4, 3), [(0,)])]
    choice = operandwise_choice(AllFinite(), crossing, 12)
    assert choice.inputs == tuple(crossing)
    assert choice.outputs == (Layout.of((12,), (), (0,), "all"),)


@pytest.mark.parametrize("bad", [None, (0, 5), (1, 11)])
def test_one_bad_element_on_one_rank_is_known_to_all(bad: tuple[int, int] | None) -> None:
    graph = Graph("flag")
    graph.attrs = {"ranks": 12, "mode": "semi_auto_parallel", "outputs": "whole"}
    shapes = [(12, 2), (12,)]
    graph.parameters = [Parameter(f"x{i}", TensorType(FLOAT32, s), "input") for i, s in enumerate(shapes)]
    graph.parameters[0].layout = Layout.of((3, 4), [(0,), ()])
    graph.parameters[1].layout = Layout.of((4, 3), [(0,)])
    b = Builder(graph)
    graph.results = [b.emit(Cast(dst_type=FLOAT32), b.emit(AllFinite(), *graph.parameters))]
    graph = run_passes(graph, parse_passes("propagate_sharding,insert_redistribution,lower_redistribution"))
    assert [node.op.name for node in graph.nodes] == ["AllFinite", "AllReduce", "Cast"]
    feeds = {p.name: np.ones(s, np.float32) for p, s in zip(graph.parameters, shapes, strict=True)}
    if bad is not None:
        feeds[f"x{bad[0]}"][bad[1]] = np.nan
    assert bool(run_on_ranks(graph, feeds)[0]) == (bad is None)


def parameter(dtype: DType, *shape: int) -> Parameter:
    return Parameter("x", TensorType(dtype, shape))


def test_an_operator_of_real_numbers_says_that_it_takes_no_complex_ones() -> None:
    error = error_of(lambda: Builder(Graph("main")).emit(ReLU(), parameter(COMPLEX64, 4)))
    assert "ReLU: input 0 is <Tensor[Complex64], (4)>; the operator takes no complex numbers" in str(error)
    assert error.kind is TypeError


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        (COMPLEX64, FLOAT32, COMPLEX64), (FLOAT64, COMPLEX64, COMPLEX128), (COMPLEX64, COMPLEX128, COMPLEX128),
        (BOOL, COMPLEX64, COMPLEX64), (COMPLEX64, INT32, COMPLEX64), (FLOAT16, COMPLEX64, COMPLEX64),
    ],
)  # fmt: skip
def test_complex_numbers_beat_all_others(left: DType, right: DType, both: DType) -> None:
    assert promoted(left, right) == promoted(right, left) == both


NUMBERS = [1 + 2j, complex(-0.0, 1e-30), complex(float("inf"), float("nan")), complex(0.1, -float("inf"))]


@pytest.mark.parametrize("dtype", [COMPLEX64, COMPLEX128])
def test_constants_read_back_to_the_same_bits(dtype: DType) -> None:
    graph = Graph("main")
    x = parameter(dtype, len(NUMBERS))
    graph.parameters.append(x)
    builder = Builder(graph)
    graph.results = [builder.emit(Mul(), x, builder.constant(np.array(NUMBERS, dtype.numpy), dtype))]
    text = print_graph(graph)
    read = parse(text, REGISTRY).main
    constant = read.nodes[0].inputs[1]
    assert constant.value.tobytes() == np.array(NUMBERS, dtype.numpy).tobytes()  # type: ignore[attr-defined]
    assert print_graph(read) == text


@pytest.mark.parametrize("wrong", ["1.0", "1.0&", "1.0&2.0&3.0", "1.0&true"])
def test_a_text_that_is_no_complex_number_is_refused(wrong: str) -> None:
    graph = Graph("main")
    x = parameter(COMPLEX64, 1)
    graph.parameters.append(x)
    builder = Builder(graph)
    graph.results = [builder.emit(Mul(), x, builder.constant(np.array([1 + 2j], np.complex64), COMPLEX64))]
    text = print_graph(graph)
    assert "1.0&2.0" in text
    with pytest.raises(MspcError):
        parse(text.replace("1.0&2.0", wrong), REGISTRY)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.fft(x, 0), "FFTN: dimension 1 would have 0 points"),
        (lambda x: ops.fft(x, 4, 2), "FFTN: axis 2 is out of range for 2 dimensions"),
        (lambda x: ops.fft(x, 4, 0, "both"), "FFTN: norm is 'both', not one of 'backward', 'forward', 'ortho'"),
        (lambda x: ops.FFTN()(x, (2, 2), (0,)), "FFTN: s (2, 2) must be a size for each of 1 dimensions"),
        (lambda x: ops.fft2(x, None, (1, 1)), "FFTN: dim (1, 1) must name dimensions, each once"),
        (lambda x: ops.rfft(x), "RFFTN: input 0 is Complex64, and must be real"),
    ],
)
def test_transforms_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError, TypeError)) as refused:
        call(Tensor(np.ones((4, 3), np.complex64)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("op", "legal"), [(FFTN(dim=(1,)), (4, 1)), (RFFTN(dim=(0,)), (1, 6)), (IRFFTN(dim=(-1,)), (4, 1))]
)
def test_a_transform_is_cut_along_other_dimensions_alone(op: Any, legal: tuple[int, ...]) -> None:
    rule = op.parsed_rule(TensorType(COMPLEX64 if not op.takes_real else FLOAT32, (4, 6)))
    assert tuple(rule.sizes[f] if f not in rule.frozen else 1 for (f,) in rule.inputs[0]) == legal


def test_complex_tensors_of_scripts() -> None:
    x = Tensor(np.array([3 + 4j], np.complex64))
    assert x.dtype == ms.complex64
    assert ops.ComplexAbs()(x).asnumpy().tolist() == [5.0]
    assert ops.cast(x, ms.float32).asnumpy().tolist() == [3.0]
    assert (x * 2.0).asnumpy().tolist() == [6 + 8j]


def test_gpus_exchange_no_complex_numbers() -> None:
    graph = Graph("main")
    x = parameter(COMPLEX64, 4)
    graph.parameters.append(x)
    graph.results = [Builder(graph).emit(AllReduce(rank_list=(0, 1)), x)]

    class Device:
        comm = type("Comm", (), {"rank": 0})()

    with pytest.raises(MspcError, match=r"AllReduce.*: GPUs cannot exchange complex numbers"):
        GpuExecutor(graph, Device(), {})


def test_outside_of_a_network_no_imaginary_part_is_dropped() -> None:
    numbers = np.array([1 + 2j, 3 - 1j], np.complex64)
    x = Tensor(numbers)
    assert (ops.sum(x).dtype, ops.sum(x).item()) == (COMPLEX64, 4 + 1j)
    assert (ops.mean(x).item(), ops.prod(x).item()) == (2 + 0.5j, 5 + 5j)
    np.testing.assert_allclose(ops.exp(x).asnumpy(), np.exp(numbers), rtol=1e-6)
    for function in (ops.sigmoid, ops.relu, ops.erf, ops.sort, ops.norm, lambda x: ops.logsumexp(x, 0)):
        with pytest.raises(TypeError, match=r"takes no complex numbers|input is Complex64, not real"):
            function(x)


CONSTRUCTOR_X = Tensor(np.random.default_rng(0).normal(size=(1, 1, 4, 4, 4)).astype(np.float32))


def test_positions_are_those_of_mindspore() -> None:
    for given, named in (
        (MaxPool3D(2, 2, "pad", 1, True, "NCDHW"), MaxPool3D(2, 2, "pad", pad_list=1, ceil_mode=True)),
        (MaxPool3D(2, 2, "valid", 0, None), MaxPool3D(2, 2)),
        (AvgPool3D(2, 2, "pad", 1, False, True, 3), AvgPool3D(2, 2, "pad", pad=1, divisor_override=3)),
        (AvgPool3D(2, 2, "pad", 1), AvgPool3D(2, 2, "pad", 1, count_include_pad=True, divisor_override=0)),
    ):
        np.testing.assert_array_equal(given(CONSTRUCTOR_X).asnumpy(), named(CONSTRUCTOR_X).asnumpy())
    assert (
        AvgPool3D(2, 2, "pad", 1, False, False)(CONSTRUCTOR_X).asnumpy()[0, 0, 0, 0, 0]
        == CONSTRUCTOR_X.asnumpy()[0, 0, 0, 0, 0]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxPool3D(2, 2, "pad", 1, pad_list=1), "MaxPool3D got multiple values for argument 'pad_list'"),
        (lambda: MaxPool3D(2, 2, "pad", 1, pad=1), "MaxPool3D got multiple values for argument 'pad'"),
        (lambda: MaxPool3D(1, 1, "pad", 1, True, "NCDHW", 1), "MaxPool3D takes 6 positional arguments, not 7"),
        (lambda: AvgPool3D(window=2), "AvgPool3D got an unexpected keyword argument 'window'"),
        (lambda: NeighborExchange((0,), [1], ([2],))(CONSTRUCTOR_X),
         "NeighborExchange: send_rank_ids must be a list, not the tuple (0,)"),
        (lambda: NeighborExchange([0], recv_shapes=[[2]])(CONSTRUCTOR_X),
         "NeighborExchange: recv_shapes must be a tuple, not the list [[2]]"),
        (lambda: NeighborExchangeV2([-1] * 8, (0,) * 4)(CONSTRUCTOR_X),
         "NeighborExchangeV2: send_lens must be a list, not the tuple (0, 0, 0, 0)"),
        (lambda: AvgPool3D(2, divisor_override=-1)(CONSTRUCTOR_X),
         "AvgPool3D: divisor_override must be a positive integer, 0 or None, not -1"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    assert error_of(make).message == message


class PrintNet(nn.Cell):
    def __init__(self, *before: Any) -> None:
        super().__init__()
        self.print = ops.Print()
        self.before = before

    def construct(self, x: Any) -> Any:
        y = x * 2
        self.print(*self.before, y, "end")
        return y + 1


def test_texts_and_tensors_are_printed_at_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    net = PrintNet("a {}", 3)
    for number in (1.0, 2.0):
        assert net(Tensor(np.full((2,), number, np.float32))).asnumpy().tolist() == [2 * number + 1] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "a {}", "3", "Tensor(shape=[2], dtype=Float32, value=[2., 2.])", "end",
        "a {}", "3", "Tensor(shape=[2], dtype=Float32, value=[4., 4.])", "end",
    ]  # fmt: skip


def test_a_gradient_passes(capsys: pytest.CaptureFixture[str]) -> None:
    gradient = ms.grad(lambda x: ops.Print()("x", x) * 3.0)(Tensor([1.0, 2.0], ms.float32))
    assert gradient.asnumpy().tolist() == [3.0, 3.0]
    assert capsys.readouterr().out.count("Tensor(") == 1


class Values(nn.Cell):
    """Prints values of its own and, in a tuple and a dict, what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.print = ops.Print()

    def construct(self, x: Any) -> Any:
        y = x + 1
        self.print("text", x.shape, None, True, [1, 2.5], {"a": "b"}, "{}", {}, ())
        self.print((1, y), {"sum": (x, [y])})
        self.print()
        return y


SHOWN = "Tensor(shape=[1], dtype=Float32, value=[{}])"


def test_values_that_are_no_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = Values(), Tensor([1.0], ms.float32)
    for _ in range(2):
        assert net(x).asnumpy().tolist() == [2.0]
        assert capsys.readouterr().out.splitlines() == [
            "text", "(1,)", "None", "True", "[1, 2.5]", "{'a': 'b'}", "{}", "{}", "()",
            f"(1, {SHOWN.format('2.')})", f"{{'sum': ({SHOWN.format('1.')}, [{SHOWN.format('2.')}])}}",
        ]  # fmt: skip


def test_what_has_no_tensor_gives_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert int(ops.Print()("a", (1,)).asnumpy()) == 0
    assert capsys.readouterr().out == "a\n(1,)\n"


NOTHING = "<Tuple[], TupleShape()>"


def program(**bodies: str) -> Graph:
    """Graphs whose nodes are all without operands; of each the lines of its nodes but for their types."""
    graphs: list[str] = []
    for name, text in bodies.items():
        heads = [head for head in text.split("; ") if head]
        nodes = [f"  %{i} = {head}\n      : () -> ({NOTHING})\n" for i, head in enumerate(heads)]
        graphs.append(f"subgraph @{name}() {{\n{''.join(nodes)}  Return()\n}}\n")
    return parse("\n".join(graphs), REGISTRY).main


def scan(turns: int, body: str) -> str:
    return f"Scan() {{regions: @{body}}} primitive_attrs: {{carried: 0, turns: {turns}}}"


def call(graph: str) -> str:
    return f"Call() {{regions: @{graph}}}"


def test_turns_multiply_and_calls_add_up() -> None:
    graph = program(net=f"{scan(3, 'outer')}; {call('layer')}", outer=f"{scan(4, 'inner')}; {call('layer')}",
                    inner=f"{call('layer')}; {call('layer')}", layer="")  # fmt: skip
    found = {each.name: times for each, times in times_of(graph).items()}
    assert found == {"net": ONCE, "outer": Times(3), "inner": Times(12), "layer": Times(1 + 3 + 24)}


def test_no_turns_are_none() -> None:
    graph = program(net=scan(0, "body"), body=call("layer"), layer="")
    assert [times.count for times in times_of(graph).values()] == [1, 0, 0]


def test_what_a_condition_decides_runs_so_often_at_most() -> None:
    texts = {node.op.name: times.text for node, times in nodes_with_times(parse(LOOP, REGISTRY).main)}
    assert texts == {
        "While": "", "TupleGetItem": "", "Less": "once a turn", "Add": "once a turn", "Greater": "once a turn",
        "If": "once a turn", "Mul": "at most once a turn",
    }  # fmt: skip


def test_nodes_come_once_behind_the_first_that_runs_them() -> None:
    graph = program(net=f"{call('layer')}; {call('layer')}; {scan(2, 'body')}", layer=scan(5, "body"), body="Nothing()")
    found = [(node.op.name, times.text) for node, times in nodes_with_times(graph)]
    assert found == [("Call", ""), ("Scan", "2 times"), ("Nothing", "12 times"), ("Call", ""), ("Scan", "")]
