"""How far values may be apart that ranks, one device and judges compute."""

import contextlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, copied_region
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.math.arithmetic import Add, Mul, NotEqual, Select, Sub
from mspc.runtime.comm.local import LocalComm
from mspc.verify.difference import GROWTH, TOLERANCES, coarsest, compare, floats_of
from mspc.verify.judged_collectives import collectives
from mspc.verify.made_inputs import made_inputs
from mspc.verify.one_device import Movement, OneDevice, added_up, is_exact
from mspc.verify.random_numbers import wrong_random_numbers
from tests.compiled_scripts import CompileOptions, verify_text
from tests.graphs import BOOL, FLOAT32, FLOAT64, INT32, INT64, REGISTRY, Op, TensorType, dtype_of, parse
from tests.operators import Cast, Dropout, ExpandDims, Gather, MatMul, ReduceMax, ReduceMean, Tanh
from tests.texts import IMPORTS

LOOP = """
#IR entry      : @net
%para1_x: <Tensor[Float32], (2)>

subgraph @net() {
  %0 = While(%para1_x) {regions: @condition, @body} primitive_attrs: {carried: 1}
      : (<Tensor[Float32], (2)>) -> (<Tuple[Tensor[Float32]], TupleShape((2))>)
  %1 = TupleGetItem(%0) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((2))>) -> (<Tensor[Float32], (2)>)
  Return(%1)
      : (<Tensor[Float32], (2)>)
}

%para2_x: <Tensor[Float32], (2)>
subgraph @condition(%para2_x) {
  %0 = ReduceSum(%para2_x) primitive_attrs: {keep_dims: false, axis: (0)}
      : (<Tensor[Float32], (2)>) -> (<Tensor[Float32], ()>)
  %1 = Less(%0, Tensor(shape=[], dtype=Float32, value=100.0))
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tensor[Bool], ()>)
  Return((%1))
      : (<Tensor[Bool], ()>)
}

%para3_x: <Tensor[Float32], (2)>
subgraph @body(%para3_x) {
  %0 = Cast(%para3_x) primitive_attrs: {dst_type: BFloat16}
      : (<Tensor[Float32], (2)>) -> (<Tensor[BFloat16], (2)>)
  %1 = Add(%0, %0)
      : (<Tensor[BFloat16], (2)>, <Tensor[BFloat16], (2)>) -> (<Tensor[BFloat16], (2)>)
  %2 = Cast(%1) primitive_attrs: {dst_type: Float32}
      : (<Tensor[BFloat16], (2)>) -> (<Tensor[Float32], (2)>)
  Return((%2))
      : (<Tensor[Float32], (2)>)
}
"""

DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_errors_are_no_difference_and_more_is(dtype: str) -> None:
    """Also of complex numbers, whose real and imaginary parts are rounded alike."""
    values = np.arange(1, 9).astype(dtype) * (1 + 1j if dtype.startswith("complex") else 1)
    step = np.finfo(dtype).eps
    assert compare("operator", "it", values, (values * (1 + step)).astype(dtype), 0.0).same
    assert not compare("operator", "it", values, (values * (1 + 1e3 * step ** 0.75)).astype(dtype), 0.0).same


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_is_held_to_its_change(dtype: str) -> None:
    before = np.full(4, 1000, dtype)
    after, other = (before + np.full(4, change, dtype) for change in (0.25, 0.5))
    assert compare("parameter", "w", after, after, 0.0, before=before).same
    assert not compare("parameter", "w", after, other, 1e-3, before=before).same


def test_halves_inside_of_a_loop_count() -> None:
    """A value that a loop carries in Float32 is as exact as what it computes in halves."""
    graph = parse(LOOP, REGISTRY).main
    assert floats_of(graph) == {"Float32", "BFloat16"}
    assert coarsest(graph) == TOLERANCES["BFloat16"]


# The effect of rounding on sums on one device: the difference that another order of adding up may make.


FAR = 9.0
"""A tanh of this and more hardly moves with its operand."""


def near_one() -> tuple[Graph, Builder, Any]:
    """A program with rows of numbers near 1, which rounding errors of its input do not reach."""
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT64, (48, 24)), "input")
    graph.parameters = [x]
    builder = Builder(graph, graph.nodes)
    return graph, builder, builder.emit(Tanh(), builder.emit(Add(), x, builder.constant(FAR, FLOAT64)))


def test_a_sum_that_is_zero_but_for_rounding_may_be_any_rounding() -> None:
    graph, builder, rows = near_one()
    apart = builder.emit(Sub(), rows, builder.emit(ReduceMean(True, (0,)), rows))
    graph.results = [builder.emit(ReduceMean(False, (0, 1)), apart), rows]
    device = OneDevice(graph, {}, [[[np.random.default_rng(0).uniform(0, 1, (48, 24))]]], "")
    expected = device.run()
    mean, near = (expected[0][0]["result", i] for i in (0, 1))
    in_halves = (near - (near[:24].mean(0) + near[24:].mean(0)) / 2).mean()  # as two ranks take them
    assert abs(in_halves - mean) > 1e-12 * abs(mean)
    noise = device.noise(expected)(0, 0, ("result", 0))
    assert abs(in_halves - mean) <= GROWTH * noise.largest
    assert noise.largest < 1e-15


def test_only_what_is_added_up_moves() -> None:
    _, builder, rows = near_one()
    square = builder.emit(MatMul(False, True), rows, rows)
    assert added_up(square) == (0, 1)
    assert added_up(builder.emit(ReduceMean(False, (0,)), rows)) == (0,)
    for node in (rows, builder.emit(Sub(), rows, rows), builder.emit(ReduceMax(False, (0,)), rows)):
        assert added_up(node) == ()


def test_copies_of_a_program_move_too() -> None:
    """Ranks that go different ways run copies of one device's program."""
    graph, builder, rows = near_one()
    graph.results = [builder.emit(ReduceMean(False, (0,)), rows)]
    move = Movement(graph, {}, 1.0)
    for node in (graph.nodes[-1], copied_region(graph).nodes[-1]):
        array = np.full((48, 24), 0.3)
        (moved,) = move.operands(node, [array])
        assert 0 < np.abs(moved - array).max() < 1e-14


@pytest.mark.parametrize(
    ("values", "dtype", "exact"),
    [
        ([0, 1, 3], np.float64, True),
        ([0, 1, 2.5], np.float64, False),
        ([0.1], np.float32, False),
        ([0.1], ml_dtypes.bfloat16, True),
        ([7], np.int64, True),
    ],
)
def test_whole_numbers_have_one_sum(values: list[float], dtype: Any, exact: bool) -> None:
    """So that counts, of which places are made, stay what they are."""
    assert is_exact(np.array(values, dtype)) is exact


# Inputs that are made up for a network that brings none.


ROWS = TensorType(INT64, (64, 5))


def test_of_a_mask_no_row_is_hidden_whole() -> None:
    """An input of which it is asked whether it is 0, in one way or another; and one of which more is read."""
    graph = Graph("net")
    mask, seen, both = graph.parameters = [Parameter(name, ROWS, "input") for name in ("mask", "seen", "both")]
    b = Builder(graph)
    b.emit(Cast(dst_type=BOOL), mask)
    b.emit(Cast(dst_type=BOOL), b.emit(ExpandDims(axis=1), seen))
    graph.results = [b.emit(Cast(dst_type=BOOL), both), b.emit(Mul(), both, Constant(2, INT64))]
    made = made_inputs(graph, [ROWS] * 3, [], seed=0, steps=1)
    for name in ("mask", "seen"):
        (array,) = made[name].arrays
        assert set(array.ravel().tolist()) == {0, 1}
        assert array[:, 0].all()
        assert made[name].description == "0 or 1, in every row 1 first"
    assert made["both"].description == "integers in [0, 8)"


CLASSES = TensorType(INT64, (8, 3))


def labels(ignored: int, reads_class: bool = False) -> Graph:
    """A graph that counts no label of one number, and looks another up unless that is replaced first."""
    graph = Graph("net")
    (given,) = graph.parameters = [Parameter("labels", CLASSES, "input")]
    b = Builder(graph)
    counts = b.emit(NotEqual(), b.emit(Cast(dst_type=INT32), given), Constant(ignored, INT32))
    table = Parameter("table", TensorType(FLOAT32, (5, 2)), "parameter")
    graph.parameters.append(table)
    found = b.emit(Gather(), table, given if reads_class else b.emit(Select(), counts, given, Constant(0, INT64)))
    graph.results = [counts, found]
    return graph


@pytest.mark.parametrize(
    ("ignored", "reads_class", "wanted"), [(-100, False, True), (-100, True, False), (3, False, False)]
)
def test_labels_that_a_graph_ignores_are_made(ignored: int, reads_class: bool, wanted: bool) -> None:
    made = made_inputs(labels(ignored, reads_class), [CLASSES], [], 0, 3, hidden=True)["labels"]
    for array in made.arrays:
        assert (array < 0).sum() == (6 if wanted else 0)
    assert ("every fourth -100" in made.description) == wanted
    assert "every fourth" not in made_inputs(labels(ignored), [CLASSES], [], 0, 3)["labels"].description


def test_rows_of_a_mask_are_of_one_kind_in_the_second_step() -> None:
    graph = Graph("net")
    graph.parameters = [Parameter("mask", TensorType(BOOL, (4, 32)), "input")]
    first, second, third = made_inputs(graph, [TensorType(BOOL, (4, 32))], [], 0, 3, hidden=True)["mask"].arrays
    assert not second[0].any()
    assert second[1].all()
    for array in (first, third):
        assert array.any(1).all()
        assert not array.all(1).any()


# Random numbers are checked by themselves: what is right passes, and every property is seen to fail.


def rows_of(op: Op, shapes: Any, dtypes: Any = ()) -> list[str]:
    """The names of what is wrong with the numbers of an operator."""
    kinds = dtypes or ("Float32",) * len(shapes)
    inputs: list[Value] = [
        Parameter(f"x{i}", TensorType(dtype_of(kind), shape), "input")
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    graph = Graph("draws")
    graph.nodes = [Node(op, inputs, TensorType(FLOAT32, ()), "", "")]
    return [row.name for row in wrong_random_numbers(graph)]


def test_right_numbers_pass() -> None:
    count = 0
    for name in REGISTRY:
        for each in REGISTRY[name].samples:
            with contextlib.suppress(TypeError):
                op = REGISTRY[name](**each.fields)
                count += op.draws
                assert not op.draws or rows_of(op, each.shapes, each.dtypes) == [], name
    assert count > 10


@pytest.mark.parametrize("size", [64, 4096])
def test_every_property_fails_if_it_is_broken(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    right = Dropout.run

    def without(**fixed: Any) -> Any:
        def run(self: Dropout, be: Any, *inputs: Any) -> Any:
            for name, value in fixed.items():
                setattr(be, name, value)
            return right(self, be, *inputs)

        return run

    def kept_more(self: Dropout, be: Any, *inputs: Any) -> Any:
        mask = right(self, be, *inputs)[1]
        mask = mask | right(self, be.__class__(be.comm, step=be.step + 1000, turns=be.turns), *inputs)[1]
        return inputs[0] * mask / np.float32(self.keep_prob), mask

    def unscaled(self: Dropout, be: Any, *inputs: Any) -> Any:
        return inputs[0] * right(self, be, *inputs)[1], right(self, be, *inputs)[1]

    for run, said in (
        (without(step=1), "equal for every step"), (without(turns=()), "equal for every iteration"),
        (without(calls=()), "equal for every call"), (kept_more, "the part that is kept"),
        (unscaled, "the scale of what is kept"),
    ):  # fmt: skip
        monkeypatch.setattr(Dropout, "run", run)
        found = rows_of(Dropout(0.5, 3), [(size,)])
        assert any(said in name for name in found), (said, found)


# Finite differences judge gradients where a network has slopes, and leave corners alone.


SCRIPT = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = Parameter(Tensor(np.eye(4, dtype=np.float32)))
        self.b = Parameter(Tensor(np.eye(4, dtype=np.float32)))
    def construct(self, x):
        x = ops.relu(ops.matmul(x, self.a))
        return ops.relu(ops.matmul(x, self.b)).sum()
net = Net()
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))(Tensor(np.ones((8, 4), np.float32)))
"""


def test_a_corner_has_no_slope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second ReLU is given zeros by the first one, and b moves them to either side."""
    verify_text(tmp_path, SCRIPT, CompileOptions(1), seed=0)
    said = capsys.readouterr().out
    assert "finite differences along 1 random direction\n" in said
    assert "not compared with finite differences: the gradient of b: values have a corner here\n" in said


MEAN = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = Parameter(Tensor(np.random.RandomState(1).randn(8, 8) * 0.3, ms.bfloat16))
    def construct(self, x):
        return 0.3 * ops.square(ops.matmul(x, self.a) / 3.0).mean()
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
step(Tensor(np.random.RandomState(0).randn(48, 8), ms.bfloat16))
"""


def test_a_mean_s_share_is_no_rounded_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Float64, in which gradients are judged, 1 / 384 is not what BFloat16 holds of it."""
    verify_text(tmp_path, MEAN, CompileOptions(1), seed=0)
    assert "finite differences along 1 random direction" in capsys.readouterr().out


# Collectives on numbers made for them: none is called wrong, and each that is wrong is.


RANKS = 6
COLLECTIVE_DTYPES = ("Float64", "Float32", "Float16", "BFloat16", "Int64", "Int8", "UInt8", "Bool")


def graph(rank: int) -> Graph:
    """Every collective of every element type, in groups of three that are not neighbours."""
    b = Builder(Graph("all"))
    group = tuple(range(rank % 2, RANKS, 2))
    for name in COLLECTIVE_DTYPES:
        x = Parameter(name, TensorType(dtype_of(name), (6, 3)), "input")
        b.graph.parameters.append(x)
        for op in ("sum", "max", "min", "prod"):
            b.emit(AllReduce(op=op, rank_list=group), x)
            b.emit(AllReduce(op=op, rank_list=group), x, x)
            b.emit(ReduceScatter(op=op, rank_list=group), x)
        b.emit(AllGather(axis=1, rank_list=group), x)
        b.emit(AlltoAll(split_count=3, split_dim=1, concat_dim=0, rank_list=group), x)
    return b.graph


def test_none_is_called_wrong() -> None:
    assert collectives(RANKS, graph) == []
    assert collectives(2, lambda rank: Graph("none")) == []


@pytest.mark.parametrize("method", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_one_rank_that_gets_something_else_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = getattr(LocalComm, method)

    def wrong(self: LocalComm, array: Any, *args: Any, **options: Any) -> Any:
        found = ordinary(self, array, *args, **options)
        return np.roll(found, 1, 0) if self.rank == 4 else found

    monkeypatch.setattr(LocalComm, method, wrong)
    rows = collectives(RANKS, graph)
    assert {row.name.split()[0].lower() for row in rows} == {method.replace("_", "")}
    assert {row.name[-6:] for row in rows} == {"rank 4"}
