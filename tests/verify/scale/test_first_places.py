"""Where changes are told whose values are right somewhere else in the plan, or at some of their places."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mspc.ops.tensor.moving import Reshape
from mspc.verify.difference import Noise
from mspc.verify.scale.blame import odd_one
from mspc.verify.scale.compared import compared
from mspc.verify.scale.rank_kinds import RankKind
from mspc.verify.scale.relations import Pieces, PlacesOfScript, files_of, keyed
from tests.compiled_scripts import QUIET, CompileOptions, compile_target, verify_scale
from tests.errors import failure_of
from tests.graphs import FLOAT32, Builder, Graph, Location, Node, Parameter, TensorType
from tests.operators import Add, AddN, AllReduce, Div, Exp, Log, Neg, Tanh, TupleGetItem
from tests.texts import IMPORTS
from tests.verify.scale.changes_of_nodes import PLACE, Change, Rank, other_offset
from tests.verify.scale.changes_of_programs import KINDS, made, rank_of
from tests.verify.scale.planted_changes import Plan, judged
from tests.verify.test_networks_in_stages import SCRIPT

Edit = Callable[[Graph], Sequence[Node]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    return {name: Plan(name, tmp_path_factory.mktemp(name) / "out") for name in ("llama", "experts")}


def nodes_of(graph: Graph) -> Iterator[Node]:
    for each in graph.graphs():
        yield from each.nodes


def reads_what_another_reads(graph: Graph) -> list[Node]:
    """The second of two operators at one place of the script reads what the first one does."""
    firsts: dict[object, Node] = {}
    for key, node, _ in keyed(graph):
        first = firsts.setdefault(key, node)
        if first is not node and isinstance(node.op, Reshape) and node.phase == "forward":
            node.inputs[0] = first.inputs[0]
            return [node]
    raise AssertionError


def reads_what_is_not_added_up(graph: Graph) -> list[Node]:
    """An addition reads what ranks add up, and not the sum."""
    for node in nodes_of(graph):
        for place, value in enumerate(node.inputs):
            if isinstance(node.op, Add) and isinstance(value, Node) and isinstance(value.op, AllReduce):
                node.inputs[place] = value.inputs[0]
                return [node]
    raise AssertionError


def counted_twice(graph: Graph) -> list[Node]:
    """The divisor of a gradient is added up once more."""
    for node in nodes_of(graph):
        value = node.inputs[-1] if isinstance(node.op, Div) and node.phase == "backward" else None
        if isinstance(value, Node) and isinstance(value.op, AllReduce):
            again = Node(value.op, [value], value.type, frames=value.frames)
            again.attrs[PLACE] = -1
            graph.nodes.insert(graph.nodes.index(value) + 1, again)
            for reader in graph.nodes:
                if reader is not again:
                    reader.inputs[:] = [again if v is value else v for v in reader.inputs]
            return [again]
    raise AssertionError


def another_gradient(graph: Graph) -> list[Node]:
    """An update reads what is no gradient, of the type of one."""
    *_, update = (node for node in graph.nodes if node.op.mutates)
    sums = [node for node in graph.nodes if isinstance(node.op, Add)]
    for place, value in enumerate(update.inputs):
        for other in sums:
            if isinstance(value, Node) and isinstance(value.op, TupleGetItem) and other.type == value.type:
                update.inputs[place] = other
                return [update]
    raise AssertionError


def no_result(graph: Graph) -> list[Node]:
    """A rank gives another result."""
    (result,) = graph.results
    assert isinstance(result, Node)
    graph.results[:] = [next(v for v in result.inputs if v.type == result.type and not isinstance(v, Node))]
    return [result]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("experts", reads_what_another_reads, "Reshape"),
        ("experts", reads_what_is_not_added_up, "Add"),
        ("experts", no_result, "Sub"),
        ("llama", counted_twice, "AllReduce"),
        ("llama", another_gradient, "GroupedUpdate"),
    ],
)
def test_the_change_is_told(name: str, edit: Edit, told: str, plans: dict[str, Plan]) -> None:
    plan = plans[name]
    graphs = plan.graphs()
    changed = [edit(graph) for graph in graphs]
    first = plan.proof(graphs).first
    assert first is not None
    assert first.node.label.startswith(told)
    assert first.equals
    assert first.node.attrs.get(PLACE) in {None, *(node.attrs[PLACE] for node in changed[0])}


def test_slices_of_inputs_from_elsewhere_are_told_where_they_are_read(plans: dict[str, Plan]) -> None:
    plan = plans["llama"]
    graphs = plan.graphs()
    _, edit = other_offset(rank_of(0, graphs[0]), (0, 0), Random(0))
    for rank, graph in enumerate(graphs):
        edit(rank_of(rank, graph))
    first = plan.proof(graphs).first
    assert first is not None
    assert first.node.label == "Gather 'embed'"
    assert "its slices lie in another order on the ranks" in first.equals


def test_updates_that_are_left_out_of_a_loop_are_told_on_one_device(plans: dict[str, Plan]) -> None:
    plan = plans["experts"]
    graphs = plan.graphs()
    own = [rank_of(rank, graph) for rank, graph in enumerate(graphs)]
    place = next(place for place in _places(own[0]) if place[0] and own[0].at(place).op.mutates)
    said, edit = KINDS["left out"](own[0], place, Random(0))
    change = Change("left out", said, edit)
    found = judged(plan, change, tuple(range(4)), graphs, made(change, own))
    assert found.right
    assert "AdamWeightDecay 'moved' (None)" in found.told


def _places(rank: Rank) -> Iterator[tuple[int, int]]:
    return ((g, n) for g, graph in enumerate(rank.graphs) for n in range(len(graph.nodes)))


def test_pieces_of_which_most_numbers_are_rounding_are_told_apart() -> None:
    whole = np.full((1, 4, 8), 1e-18)
    whole[0, :, 0] = [1e-3, 2e-3, 3e-3, 4e-3]
    pieces = Pieces.of(whole, (1, 8))
    assert pieces is not None
    moved = whole[0, :, None] * (1 + 1e-14) + 1e-17
    assert pieces.has(pieces.product(moved, 1)).all()
    assert pieces.numbers(pieces.product(moved, 1)).tolist() == [0, 1, 2, 3]


def in_file(file: str) -> tuple[RankKind, Node]:
    """A program of one operator of a module, on a line of a file."""
    found = kind((0,), (0,))
    (node,) = found.graph.nodes
    node.scope, node.frames = "layers.0", (Location(file, len(file)), Location(f"run_{file}", 1))
    return found, node


def test_operators_of_scripts_in_other_files_are_paired_by_module() -> None:
    (one, first), (ranks, other) = in_file("one.py"), in_file("ranks.py")
    assert not list(PlacesOfScript(one.graph).of(ranks))
    ((node, candidates),) = PlacesOfScript(one.graph, files_of([one.graph]) & files_of([ranks.graph])).of(ranks)
    assert (node, candidates.own) == (other, (first, 0))


# A change in the programs of a few ranks is told where it is one change, and may be why they wait.


OPS = (Neg, Exp, Log, Tanh)


def kind(ranks: Sequence[int], order: Sequence[int]) -> RankKind:
    """Ranks that apply some operators to one parameter, in an order."""
    parameter = Parameter("x", TensorType(FLOAT32, (4,)))
    builder = Builder(Graph("net"))
    for number in order:
        builder.emit(OPS[number](), parameter)
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [parameter], builder.nodes, builder.nodes[:1]
    return RankKind(tuple(ranks), graph, mesh=(len(ranks),))


def told(*kinds: RankKind) -> Node | None:
    found = odd_one(kinds)
    return None if found is None else found.node


def test_a_node_that_is_moved() -> None:
    others = kind((0, 1, 2), (0, 1, 2, 3))
    for order, place in (((1, 2, 3, 0), 3), ((3, 0, 1, 2), 0)):
        own = kind((3,), order)
        assert told(others, own) is own.graph.nodes[place]
    assert told(others, kind((3,), (3, 2, 1, 0))) is None


def sums_of_one_line(ranks: Sequence[int], left_out: int = -1) -> RankKind:
    """Ranks that negate several values, perhaps but one, on one line of a script."""
    parameter = Parameter("x", TensorType(FLOAT32, (4,)))
    builder = Builder(Graph("net"))
    made = [builder.emit(op(), parameter) for op in (Exp, Log, Tanh)]
    found = [value if number == left_out else builder.emit(Neg(), value) for number, value in enumerate(made)]
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [parameter], builder.nodes, [builder.emit(AddN(), *found)]
    return RankKind(tuple(ranks), graph, mesh=(len(ranks),))


@pytest.mark.parametrize("number", range(3))
def test_a_node_is_left_out_of_several_on_one_line(number: int) -> None:
    others = sums_of_one_line((0, 1, 2))
    assert told(others, sums_of_one_line((3,), number)) is others.graph.nodes[3 + number]


def test_rows_of_which_a_mask_takes_the_right_ones() -> None:
    ranks = RankKind((0, 1), Graph("net"), mesh=(2,))
    whole = np.arange(1.0, 9.0).reshape(1, 4, 2)
    pieces = Pieces.of(whole, (4, 2))
    assert pieces is not None
    masks = np.array([[1, 0, 0, 1], [0, 1, 1, 0]])[..., None]
    assert pieces.are_on_some_rank(whole * masks, ranks)
    assert not pieces.are_on_some_rank(whole * np.array([[1, 0, 0, 1], [0, 1, 0, 0]])[..., None], ranks)
    assert not pieces.are_on_some_rank(whole * np.array([[1, 1, 1, 1], [0, 1, 1, 0]])[..., None], ranks)


def test_kinds_that_wait_for_what_is_run_otherwise() -> None:
    others, own = kind((0, 1, 2), (0, 1, 2)), kind((3,), (0, 3, 2))
    found = odd_one((others, own))
    assert found is not None
    assert found.may_stop([], [own])
    assert found.may_stop([own], [])
    assert not found.may_stop([others], [others])
    half = odd_one((kind((0,), (0, 1, 2)), kind((1,), (0, 3, 2))))
    assert half is not None
    assert half.even
    assert not half.may_stop([], [half.kind])
    assert half.kind.runs_any([half.node])
    assert not own.runs_any([half.node])
    assert not own.runs_any([])


# Ranks that do not hear of an overflow that others find are told.


SCALED = IMPORTS + """
from mindspore.common.initializer import Normal, initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(initializer(Normal(0.02), [16, 32], ms.float32))
        self.down = Parameter(initializer(Normal(0.02), [32, 16], ms.float32))
        self.first = ops.MatMul().shard(((2, 1), (1, 2)))
        self.second = ops.MatMul().shard(((2, 2), (2, 1)))

    def construct(self, x):
        return ops.reduce_mean(ops.square(self.second(ops.gelu(self.first(x, self.up)), self.down)))


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
net = Net()
scale = nn.DynamicLossScaleUpdateCell(loss_scale_value=1024, scale_factor=2, scale_window=10)
step = nn.TrainOneStepWithLossScaleCell(net, nn.Adam(net.trainable_params(), 1e-3), scale)
step(Tensor(np.ones((64, 16)), ms.float32))
"""
EDITS = {
    "nobody tells others": (r"%26(, %para5_current)", r"%25\1"),
    "others are told": (r"(= AllReduce\(%25\).*rank_list: )\((0, 1|2, 3)\)", r"\1(0, 1, 2, 3)"),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "net.py").write_text(SCALED)
    compile_target(str(folder / "net.py"), CompileOptions(ranks=4, out=folder / "out", loudness=QUIET, weights=True))
    return folder / "out"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    (folder / "net.py").write_text(SCRIPT.replace("SCHEDULER", "1f1b").replace("DROPS", "False"))
    compile_target(str(folder / "net.py"), CompileOptions(ranks=4, out=folder / "out", loudness=QUIET, weights=True))
    return folder / "out"


def edited(compiled: Path, pattern: str, by: str) -> None:
    for path in compiled.glob("rank_*/*_execute_*.ir"):
        changed, count = re.subn(pattern, by, path.read_text())
        assert count == 1
        path.write_text(changed)


def test_an_overflow_that_all_hear_of(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_scale(str(compiled), CompileOptions(loudness=QUIET), 0)
    edited(compiled, *EDITS["others are told"])
    verify_scale(str(compiled), CompileOptions(loudness=QUIET), 0)
    assert capsys.readouterr().out.count("equal: 32 values of 4 ranks of 1 kind") == 2


def test_an_overflow_that_some_do_not_hear_of(compiled: Path) -> None:
    edited(compiled, *EDITS["nobody tells others"])
    notes = "\n".join(failure_of(verify_scale, str(compiled), CompileOptions(loudness=QUIET), 0).notes)
    assert re.search(r"that of AllFinite 'all_finite'.* on ranks 1, 3", notes)
    assert "only these ranks find an overflow there" in notes


def test_an_overflow_that_a_stage_does_not_hear_of(staged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_scale(str(staged), CompileOptions(loudness=QUIET), 0)
    assert "equal: 52 values of 4 ranks of 2 kinds" in capsys.readouterr().out
    for path in staged.glob("rank_[23]/*_execute_*.ir"):
        changed, count = re.subn(r"AllFinite\((%\d+), (%\d+), ", r"AllFinite(\2, \2, ", path.read_text())
        assert count == 1
        path.write_text(changed)
    error = failure_of(verify_scale, str(staged), CompileOptions(loudness=QUIET), 0)
    assert re.search(r"that of AllFinite 'all_finite'.* on ranks 0, 1", "\n".join(error.notes))


def test_imaginary_parts_are_compared() -> None:
    kind = RankKind((0,), Graph("rank"), mesh=(1,))
    right = np.array([[1 + 2j, 3 + 4j]])
    assert compared("result", "0", 0, kind, right, right.copy(), Noise()).same
    row = compared("result", "0", 0, kind, right, right + np.array([[0, 0.5j]]), Noise())
    assert (row.same, row.place, row.expected, row.found) == (False, (1, 1), 4.0, 4.5)
