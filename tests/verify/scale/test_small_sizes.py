"""Which dimensions keep their sizes, and which do not."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from mspc.ops.collective.collectives import AllGather, AlltoAll
from mspc.ops.control.regions import Scan, emit_regions
from mspc.ops.math.arithmetic import Add, FloorMod, Less, LessEqual, Neg, Sub
from mspc.ops.math.reduce import ReduceSum
from mspc.ops.tensor.embedding import Gather, GatherGrad, UnsortedSegmentSum
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.runtime import available_memory
from mspc.runtime.available_memory import available_bytes
from mspc.verify.scale import room
from mspc.verify.scale.program_sizes import Sizing, keep_constants, places_in_tables
from mspc.verify.scale.rank_kernels import run_on_all, slices_on_each
from mspc.verify.scale.rank_kinds import RankKind, parts_of, widened
from mspc.verify.scale.room import check_fits
from mspc.verify.scale.small_programs import Resized
from tests.compiled_scripts import QUIET, CompileOptions, verify_scale
from tests.errors import error_of
from tests.executors import NumPyBackend, OneRank
from tests.graphs import FLOAT32, FLOAT64, INT64, Builder, Constant, Graph, MspcError, Parameter, TensorType, Value
from tests.grouped import MANY, grouped
from tests.operators import Cast, CumSum, GatherD, PadV3, Range, Reshape, Softmax, StopGradient, StridedSlice
from tests.ops.backend import BACKEND
from tests.ops.simulate import arrays_of, operator_of, samples_of, types_of
from tests.shares import is_taken


def divisors(parameter: Parameter, builder: Builder, result: Value, *of: Value) -> list[list[int]]:
    """By how much the dimensions of values become smaller, of a program with this parameter and result."""
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [parameter], builder.nodes, [result]
    sizing = Sizing()
    sizing.add(graph)
    keep_constants(sizing)
    sizing.resolve()
    return [[sizing.divisor(dim) for dim in sizing.dims(value)[0]] for value in of]


def test_dimensions_that_constants_alone_have() -> None:
    """The diagonal's places in a square's elements: ranks might take others of them than one device."""
    square = Parameter("square", TensorType(FLOAT32, (12, 12)))
    builder = Builder(Graph("net"))
    ones = Constant(np.full(12, -1.0, np.float32), FLOAT32)
    places = Constant(np.arange(0, 144, 13), INT64)
    diagonal = builder.emit(Reshape((12, 12)), builder.emit(GatherGrad(144), ones, places))
    added = builder.emit(Add(), square, diagonal)
    assert divisors(square, builder, added, ones, places) == [[1], [1]]


def test_slices_of_an_exchange_stay_apart() -> None:
    """Rows that become fewer are within the slice of each rank, before the exchange and after it."""
    square = Parameter("square", TensorType(FLOAT32, (4, 8, 4, 6)))
    builder = Builder(Graph("net"))
    rows = builder.emit(Cast(FLOAT64), builder.emit(Reshape((128, 6)), square))
    exchanged = builder.emit(AlltoAll(4, 0, 0, rank_list=(0, 1, 2, 3)), rows)
    parts = builder.emit(Reshape((4, 8, 4, 6)), exchanged)
    moved = builder.emit(Transpose((1, 0, 2, 3)), parts)
    before, after = divisors(square, builder, moved, square, parts)
    assert before == after
    assert (before[0], math.prod(before[1:3])) == (1, 2)


@pytest.mark.parametrize(("first", "are_places"), [((0, 8), True), ((8, 8), False), ((0, 7), False)])
def test_first_rows_of_ranks_become_smaller_with_their_table(first: tuple[int, int], are_places: bool) -> None:
    """Numbers that are no multiples of the rows, or the same on all ranks, may be those of words."""
    table = Parameter("table", TensorType(FLOAT32, (8, 4)))
    words = Parameter("words", TensorType(INT64, (16,)), "input")
    builder = Builder(Graph("net"))
    numbers = [Constant(np.int64(number), INT64) for number in first]
    own = builder.emit(Sub(), words, numbers[0])
    graph = Graph("net")
    graph.parameters, graph.nodes = [table, words], builder.nodes
    graph.results = [builder.emit(Gather(0), table, own)]
    constants = {id(numbers[0]): tuple(numbers)} if first[0] != first[1] else {}
    found = [*places_in_tables(RankKind((0, 1), graph, {}, constants, (2,)))]
    assert [each[2] for each in found] == numbers[:1] * are_places


def of_slices(start: int, end: int) -> tuple[tuple[int, ...], ...]:
    """Small sizes of a matrix and a vector that are joined to a flat buffer, of this buffer as ranks have gathered it
    from both halves, and of a slice of every half."""
    matrix, vector = Parameter("matrix", TensorType(FLOAT32, (24, 36))), Parameter("vector", TensorType(FLOAT32, (10,)))
    graph = Graph("net")
    builder = Builder(graph)
    flat = builder.emit(Concat(0), builder.emit(Reshape((-1,)), matrix), vector)
    gathered = builder.emit(AllGather("g", 0, rank_list=(0, 1)), builder.emit(Neg(), flat))
    rows = builder.emit(Reshape((2, -1)), gathered)
    part = builder.emit(StridedSlice(begin=(0, start), end=(2, end), strides=(1, 1)), rows)
    graph.parameters, graph.nodes, graph.results = [matrix, vector], builder.nodes, [part]
    sizing = Sizing()
    sizing.add(graph)
    sizing.resolve()
    small = Resized(sizing).graph(graph)
    assert small.results[0].shape == sizing.shape(part.tensor_type, sizing.dims(part)[0])
    values = (matrix, vector, gathered, part)
    return tuple(sizing.shape(value.tensor_type, sizing.dims(value)[0]) for value in values)


@pytest.mark.parametrize(("start", "end", "place"), [(0, 864, 0), (864, 874, 1), (0, 874, 2)])
def test_segments_of_flat_buffers_have_divisors_of_their_own(start: int, end: int, place: int) -> None:
    matrix, vector, gathered, part = of_slices(start, end)
    assert all(small < real for small, real in zip((*matrix, *vector), (24, 36, 10), strict=True))
    sizes = (matrix[0] * matrix[1], vector[0])
    assert gathered == (2 * sum(sizes),)
    assert part == (2, (*sizes, sum(sizes))[place])


def test_slices_across_segments_keep_their_sizes() -> None:
    assert of_slices(860, 870) == ((24, 36), (10,), (1748,), (2, 10))
    (rows, columns), _, _, part = of_slices(432, 864)  # half of the matrix
    assert rows * columns < 864
    assert part == (2, rows * columns // 2)


def test_two_elements_of_a_softmax_are_left() -> None:
    """There may be one row of many, and all gradients are 0 if a row has one element."""
    x = Parameter("x", TensorType(FLOAT32, (64, 48)))
    builder = Builder(Graph("net"))
    part = builder.emit(StridedSlice(begin=(0, 0), end=(64, 3), strides=(1, 1)), x)
    assert divisors(x, builder, part, x) == [[16, 3]]
    soft = builder.emit(Softmax(), part)
    assert divisors(x, builder, soft, x, soft) == [[16, 1], [16, 1]]


def test_margins_and_stopped_gradients() -> None:
    rows = Parameter("rows", TensorType(FLOAT32, (64, 32)))
    builder = Builder(Graph("net"))
    stopped = builder.emit(StopGradient(), rows)
    wider = builder.emit(PadV3(paddings=(0, 1)), stopped, builder.constant(0.0, FLOAT32))
    ((over, along),) = divisors(rows, builder, wider, rows)
    assert over > 1
    assert along == 1


# Slices of one table of sums, for all ranks at once.


RANK_BACKEND = NumPyBackend(OneRank())


@pytest.mark.parametrize("lead", [(1, 1, 2), (1, 1, 1)])
def test_slices_of_one_table(lead: tuple[int, ...]) -> None:
    random = np.random.default_rng(2)
    rows, places = random.standard_normal((*lead, 20, 3)), random.integers(-1, 14, (1, 1, 1, 20))
    which = np.array([[0, 2, 1], [1, 0, 2]])[..., None]
    ops = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (4, 0, 8)]
    found = slices_on_each(ops, which, 3, RANK_BACKEND, [rows, places])
    assert found.shape == (2, 3, lead[2], 4, 3)
    for place in np.ndindex(*found.shape[:3]):
        own = [widened(array, found.shape[:3])[place] for array in (rows, places)]
        wanted = ops[which[place[0], place[1], 0]].run(RANK_BACKEND, *own)
        np.testing.assert_array_equal(found[place], wanted)


def test_what_is_no_slice_of_one_table() -> None:
    which = np.array([[0, 1]])
    alike = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (0, 4)]
    others = [UnsortedSegmentSum(num_segments=size) for size in (4, 5)]
    far = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (0, 4000)]
    rows, places = np.ones((1, 1, 5, 2)), np.zeros((1, 1, 5), np.int64)
    own_rows = np.ones((1, 2, 5, 2))
    assert slices_on_each(alike, which, 2, RANK_BACKEND, [rows, places]) is not None
    assert slices_on_each(alike, which, 2, RANK_BACKEND, [own_rows, places]) is None
    assert slices_on_each(others, which, 2, RANK_BACKEND, [rows, places]) is None
    assert slices_on_each(far, which, 2, RANK_BACKEND, [rows, places]) is None


# Every operator on the tensors of all ranks at once gives what its kernel gives rank by rank.


ELSEWHERE = (
    "control.structural", "control.custom", "control.regions", "collective.collectives", "collective.exchange",
    "collective.point_to_point", "collective.row_exchange",
)  # fmt: skip
"""Modules whose operators are collectives, or have no kernel."""
CASES = [case for place, case in enumerate(samples_of(ELSEWHERE)) if case[1] == 0 or is_taken(place, 3)]
"""The first sample of every operator, and a share of the others."""
MESH = (2, 3)


def given_to_ranks(arrays: list[np.ndarray], wide: tuple[int, ...], random: np.random.Generator) -> list[np.ndarray]:
    """Operands with leading dimensions: elements of those in `wide` stand in another order along one of these."""
    found: list[np.ndarray] = []
    for number, array in enumerate(arrays):
        lead = (2, 1) if number % 2 == 0 else (1, 3)
        if number not in wide:
            lead = (1, 1)
        blocks = [random.permutation(array.reshape(-1)).reshape(array.shape) for _ in range(max(lead))]
        blocks[0] = array
        found.append(np.stack(blocks[: max(lead)]).reshape(*lead, *array.shape))
    return found


@grouped(CASES, MANY)
def test_all_ranks_at_once(name: str, index: int) -> None:
    op, sample = operator_of(name, index)
    if op.draws:
        return  # other numbers on other ranks
    arrays = arrays_of(name, sample, types_of(sample))
    random = np.random.default_rng(0)
    for wide in {tuple(range(len(arrays))), *((i,) for i in range(len(arrays)))}:
        given = given_to_ranks(arrays, wide, random)
        if op.mutates:
            given = [np.array(widened(a, MESH)) if i in op.mutates else a for i, a in enumerate(given)]
        before = [np.array(widened(array, MESH)) for array in given]
        expected: dict[tuple[int, ...], tuple[np.ndarray, ...]] = {}
        try:
            with np.errstate(all="ignore"):
                for place in itertools.product(*map(range, MESH)):
                    expected[place] = parts_of(op.kernel(BACKEND)(*(np.array(array[place]) for array in before)))
        except (IndexError, ValueError, np.linalg.LinAlgError):  # it does not take elements in any order
            continue
        with np.errstate(all="ignore"):
            found = parts_of(run_on_all(op, BACKEND, len(MESH), [np.array(array) for array in given]))
        for place, results in expected.items():
            for made, wanted in zip(found, results, strict=True):
                assert made.dtype == np.asarray(wanted).dtype
                np.testing.assert_allclose(
                    widened(made, MESH)[place], wanted, rtol=1e-12, atol=1e-12, err_msg=f"{name} wide in {wide}"
                )


# A dimension that cannot shrink and does not fit into memory is reported before anything is made.


PRIMES = """
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(initializer(Normal(0.02), [1000003, 500029], ms.float32))
        self.product = ops.MatMul().shard(((2, 1), (1, 1)))

    def construct(self, x):
        return ops.reduce_mean(self.product(x, self.table))


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
Net()(Tensor(shape=(64, 1000003), dtype=ms.float32))
"""


@pytest.mark.usefixtures("own_folder")
def test_sizes_that_cannot_shrink() -> None:
    Path("net.py").write_text(PRIMES)
    error = error_of(verify_scale, "net.py", CompileOptions(ranks=2, loudness=QUIET), 0)
    assert error.exit_status == 2
    assert error.message.startswith("the least sizes that keep the plan as it is do not fit: they take ")
    assert "parameter 'table' alone 3725.5 GiB" in error.message
    assert "table (1000003, 500029) keeps its sizes" in error.notes[0]


def chain() -> Graph:
    """y = -x, that in another shape, and the sum of that with itself: two tensors of 800 bytes beside x."""
    x = Parameter("x", TensorType(FLOAT64, (10, 10)), "input")
    builder = Builder(Graph("net"))
    flat = builder.emit(Reshape((100,)), builder.emit(Neg(), x))
    graph = Graph("net")
    graph.parameters, graph.results = [x], [builder.emit(Neg(), builder.emit(Add(), flat, flat))]
    graph.nodes = builder.nodes
    return graph


@pytest.mark.parametrize(("available", "fits"), [(3199, False), (3200, True)])
def test_what_is_alive_at_once(available: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: available)
    graph = chain()
    kinds = [RankKind((0, 1), chain(), mesh=(2,))]
    if fits:
        check_fits(graph, kinds, graph, 2)
        return
    with pytest.raises(MspcError, match=r"they take 3.1 KiB \(3,200 bytes\)"):
        check_fits(graph, kinds, graph, 2)


def test_memory_that_a_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = available_bytes()
    assert free > 0
    monkeypatch.setattr(available_memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert available_bytes() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 3000


def test_segments_that_rows_cross_get_one_divisor() -> None:
    """Rows of 480 elements of both parts, of which one has 320 and the other 80 x 20."""
    one, other = (Parameter(name, TensorType(FLOAT32, shape)) for name, shape in (("a", (320,)), ("b", (80, 20))))
    builder = Builder(Graph("net"))
    flat = builder.emit(Reshape((1600,)), other)
    joined = builder.emit(Concat(0), one, flat)
    rows = builder.emit(Reshape((4, 480)), joined)
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [one, other], builder.nodes, [rows]
    sizing = Sizing()
    sizing.add(graph)
    sizing.resolve()
    found = {sizing.divisor(dims[-1]) for dims in (sizing.dims(value)[0] for value in (one, flat, joined))}
    assert len(found) == 1
    assert max(found) > 1


def test_products_of_different_numbers_are_split_by_sizes() -> None:
    """128 heads of 64 are 8 groups of 16 heads of 64: the heads' sizes are the same, whatever the groups are."""
    x = Parameter("x", TensorType(FLOAT32, (128, 64)))
    builder = Builder(Graph("net"))
    flat = builder.emit(Neg(), builder.emit(Reshape((8192,)), x))
    groups = builder.emit(Reshape((8, 16, 64)), flat)
    (heads, size), (group, own, other) = divisors(x, builder, groups, x, groups)
    assert heads == group * own > 1
    assert size == other > 1


def test_scans_run_fewer_iterations() -> None:
    x = Parameter("x", TensorType(FLOAT32, (24, 6)))
    body, graph, entry = Graph("body"), Graph("net"), Parameter("entry", TensorType(FLOAT32, (6,)), "input")
    inner, builder = Builder(body), Builder(graph)
    body.parameters, body.results, body.returns_tuple = [entry], [inner.emit(Neg(), entry)], True
    body.nodes = inner.nodes
    made = emit_regions(builder, Scan(scanned=1, stacked=1, turns=24), [x], (body,))
    graph.parameters, graph.nodes, graph.results = [x], builder.nodes, [made]
    sizing = Sizing()
    sizing.add(graph)
    sizing.resolve()
    small = Resized(sizing).graph(graph)
    assert small.parameters[0].shape == small.nodes[0].type.elements[0].shape  # type: ignore[union-attr]  # a tuple's
    assert small.nodes[0].op.turns == small.parameters[0].shape[0] < 24  # type: ignore[union-attr]  # a scan's


def test_places_in_turns_keep_their_sizes() -> None:
    places = Parameter("places", TensorType(INT64, (12, 16)))
    builder = Builder(Graph("net"))
    turns = builder.emit(FloorMod(), places, builder.constant(8, INT64))
    assert divisors(places, builder, turns, places, turns) == [[1, 1], [1, 1]]


def test_rows_of_places_in_turns_keep_whole_turns() -> None:
    """64 rows of 4 places go through 16 ways in turns: 4 rows are a turn. The table that they index keeps its ways."""
    table = Parameter("table", TensorType(FLOAT32, (64, 16)))
    builder = Builder(Graph("net"))
    places = builder.emit(Reshape((64, 4)), builder.emit(Range(limit=256)))
    turns = builder.emit(FloorMod(), places, builder.constant(16, INT64))
    taken = builder.emit(GatherD(dim=1), table, turns)
    (rows, ways), (others, each) = divisors(table, builder, taken, table, turns)
    assert rows == others > 1
    assert 16 % rows == 0
    assert ways == each == 1


def test_places_up_to_counted_totals_keep_their_sizes() -> None:
    """Each row chooses some of 4 ways; 24 places are looked up in the ends of the ways."""
    rows = Parameter("rows", TensorType(FLOAT32, (64, 4)))
    builder = Builder(Graph("net"))
    zero = builder.constant(0.0, FLOAT32)
    chosen = builder.emit(Cast(INT64), builder.emit(Less(), zero, rows))
    counts = builder.emit(ReduceSum(axis=(0,)), chosen)
    assert divisors(rows, builder, counts, rows) == [[16, 1]]
    places = builder.emit(Reshape((24, 1)), builder.emit(Range(limit=24)))
    before = builder.emit(LessEqual(), builder.emit(CumSum(), counts), places)
    assert divisors(rows, builder, before, rows, places, before) == [[1, 1], [1, 1], [1, 1]]


def test_rows_that_are_joined_and_parted_again_keep_their_dimensions() -> None:
    """The second dimension keeps its size: all rows of the first are not what is left of both."""
    x = Parameter("x", TensorType(FLOAT32, (12, 16)))
    builder = Builder(Graph("net"))
    again = builder.emit(Reshape((12, 16)), builder.emit(Neg(), builder.emit(Reshape((192,)), x)))
    turns = builder.emit(FloorMod(), builder.emit(Range(limit=16)), builder.constant(16, INT64))
    moved = builder.emit(Add(), again, builder.emit(Cast(FLOAT32), turns))
    first, second = divisors(x, builder, moved, x, moved)
    assert first == second
    assert first[0] > first[1] == 1


def test_rows_that_are_parted_into_other_sizes_do_not_keep_theirs() -> None:
    x = Parameter("x", TensorType(FLOAT32, (12, 16)))
    builder = Builder(Graph("net"))
    again = builder.emit(Reshape((24, 8)), builder.emit(Neg(), builder.emit(Reshape((192,)), x)))
    turns = builder.emit(FloorMod(), builder.emit(Range(limit=8)), builder.constant(8, INT64))
    moved = builder.emit(Add(), again, builder.emit(Cast(FLOAT32), turns))
    (first, second), (rows, place) = divisors(x, builder, moved, x, moved)
    assert first * second == rows > 1
    assert second > place == 1
