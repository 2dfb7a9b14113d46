"""Collectives: groups, both forms, types, kernels on simulated ranks, gradients as adjoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops
from mspc.commands.run import run_script
from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ir.types import FLOAT32, FLOAT64, INT32, TensorType, TupleType
from mspc.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AlltoAll,
    AlltoAllV,
    CollectiveGather,
    CollectiveScatter,
    LocalSlice,
    NeighborExchange,
    Redistribute,
    Reduce,
    ReduceScatter,
)
from mspc.ops.op import REGISTRY, Op, RankPlacement, has_kernel, load_operators
from mspc.sharding.groups import group_name, string_hash
from tests.errors import error_of
from tests.executors import NumPyBackend, World
from tests.graphs import Builder, Graph, Layout, MspcError, Node, Parameter, Value, difference, parse, print_graph
from tests.operators import Barrier, Exchange, FetchRows, NeighborExchangeV2, PasteSlices, Receive, Send, SendRows
from tests.ops.collective.every import check_all
from tests.runtime.gpu.fake_gpu import FakeDevice, fake, fake_move
from tests.serving import SERVED, succeed
from tests.shares import is_taken
from tests.texts import IMPORTS

X = TensorType(FLOAT32, (8, 12))
MODULES = ("mspc.ops.collective.collectives", "mspc.ops.collective.exchange", "mspc.ops.collective.point_to_point")
HASHES = [
    ((0, 1), 5004544844489628105),
    ((0, 4), 16453000547691086251),
    ((1, 5), 12944936785892925600),
    ((0, 1, 2, 3), 6301172352641561019),
    ((4, 5, 6, 7), 15700679239691767905),
    ((0, 2, 4, 6), 5226697808808137312),
    (tuple(range(8)), 12158923167718251343),
]


@pytest.mark.parametrize(("ranks", "value"), HASHES)
def test_group_names_are_mindspores(ranks: tuple[int, ...], value: int) -> None:
    assert group_name(ranks) == f"{len(ranks)}-{value}"
    assert group_name(tuple(reversed(ranks))) == group_name(ranks)


def test_hash_of_an_instance_name() -> None:
    name = "Default/network-WithLossCell/_backbone-Net/MatMul-op4_0"
    assert string_hash(name) == 11795743325248501408


def at(rank: int, source: Layout, target: Layout, shape: tuple[int, ...] = (8, 12)) -> RankPlacement:
    type = TensorType(FLOAT32, shape)
    return RankPlacement(rank, (type,), (source,), (type,), (target,))


ANY = Layout.replicated(8, 2)


@pytest.mark.parametrize(
    ("op", "rank", "ranks"),
    [
        (AllReduce(mesh=(2, 4), axes=(1,)), 5, (4, 5, 6, 7)),
        (AllReduce(mesh=(2, 2, 2), axes=(2, 0)), 2, (2, 3, 6, 7)),
        (AllGather(mesh=(2, 4), axes=(0,)), 5, (1, 5)),
        (AllGather(mesh=(2, 2, 2), axes=(2, 0)), 2, (2, 6, 3, 7)),
        (ReduceScatter(mesh=(8,), axes=(0,)), 3, tuple(range(8))),
        (AlltoAll(2, 0, 1, mesh=(4, 2), axes=(1,)), 3, (2, 3)),
    ],
)
def test_a_rank_s_group(op: Any, rank: int, ranks: tuple[int, ...]) -> None:
    """Members stand in the order of their slices; where the order does not matter, in ascending order."""
    local = op.localize(at(rank, ANY, ANY))
    assert (local.rank_list, local.group) == (ranks, group_name(ranks))
    assert (local.mesh, local.axes) == ((), ())
    assert local.localize(at(rank, ANY, ANY)) is local


def test_each_form_prints_its_own_fields() -> None:
    op = AllGather(axis=1, mesh=(2, 4), axes=(1,))
    assert op.attributes() == {"axis": 1, "mesh": (2, 4), "axes": (1,)}
    assert op.localize(at(0, ANY, ANY)).attributes() == {
        "group": "4-6301172352641561019",
        "axis": 1,
        "rank_list": (0, 1, 2, 3),
    }


def test_both_forms_read_back_from_text() -> None:
    """Over mesh axes, and on ranks that only send or only receive; long lists of ranks included."""
    graph = Graph("main")
    x = Parameter("x", X)
    graph.parameters.append(x)
    b = Builder(graph)
    b.emit(AllGather(axis=1, mesh=(2, 4), axes=(1,)), x)
    b.emit(LocalSlice(Layout.of((2, 4), [(0,), ()], (1,)), Layout.of((2, 4), [(0,), (1,)])), x)
    b.emit(ReduceScatter("max", axis=1).with_ranks((2, 0)), x)
    b.emit(AllReduce().with_ranks(range(128)), x)
    b.emit(NeighborExchange((1,)).with_ranks((0, 1)), x)
    b.emit(NeighborExchange((), (1,), ((3, 4),)).with_ranks((0, 1)))
    back = parse(print_graph(graph), load_operators()).graphs[0]
    assert difference(back, graph) == ""
    assert [node.op for node in back.nodes] == [node.op for node in graph.nodes]


def test_a_dimension_that_is_not_there_is_an_index_error() -> None:
    for op in (AlltoAll(2, 2, 0), AlltoAll(2, 0, 2)):
        with pytest.raises(IndexError, match=r"AlltoAll: there is no dimension 2 in shape"):
            op.with_ranks((0, 1)).infer(TensorType(FLOAT32, (2, 2)))


def test_ids_of_an_exchange_are_ranks() -> None:
    with pytest.raises(MspcError, match=r"NeighborExchange: group must be the name of a group, not \('x',\)"):
        NeighborExchange((1,), group=("x",)).infer(X)  # type: ignore[arg-type]  # that is the mistake
    for field, op in (
        ("send_rank_ids", NeighborExchange((1.0,))),  # type: ignore[arg-type]  # that is the mistake
        ("recv_rank_ids", NeighborExchange((), (True,), ((2,),))),
    ):
        error = error_of(op.infer, *[X] * len(op.send_rank_ids))
        assert error.message == f"NeighborExchange: {field} must be a list of ranks, not {getattr(op, field)}"


@pytest.mark.parametrize("op", [AllReduce(), AllGather(), AlltoAll(), NeighborExchange(), Send(), Barrier()])
def test_a_collective_is_never_dead(op: Op) -> None:
    """Other ranks wait for it, even where nobody reads what this rank gets."""
    assert op.has_side_effect


def test_over_mesh_axes_type_and_value_stay() -> None:
    backend = SimpleNamespace(xp=np, comm=None)
    x = np.arange(6.0)
    for op in (
        AllReduce(mesh=(2,), axes=(0,)),
        AllGather(mesh=(2,), axes=(0,)),
        Redistribute(ANY, ANY),
        Exchange(ANY, ANY),
    ):
        assert op.infer(X) == X
        assert op.run(backend, x) is x


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (AllReduce("max"), (8, 12)),
        (AllGather(), (32, 12)),
        (AllGather(axis=1), (8, 48)),
        (ReduceScatter(), (2, 12)),
        (ReduceScatter(axis=1), (8, 3)),
        (AlltoAll(4, 1, 0), (32, 3)),
        (Send(0, 1), (8, 12)),
        (Receive(0, 1, (3,), FLOAT32), (3,)),
    ],
)
def test_types_on_a_rank(op: Any, shape: tuple[int, ...]) -> None:
    assert op.with_ranks((0, 1, 2, 3)).infer(X) == X.with_shape(shape)


FIVE = group_name(tuple(range(5)))
ERRORS = [
    (AllReduce("mean"), "AllReduce: op is 'mean'"),
    (Reduce(op="mean"), "Reduce: op is 'mean'"),
    (Reduce(dest_rank=5), f"Reduce: dest_rank 5 is no number in group {FIVE!r}, which has 5 ranks, counted from 0"),
    (Reduce(rank_id=-1), "Reduce: rank_id -1 is no number in a group of 5 ranks"),
    (CollectiveGather(rank_id=5), "CollectiveGather: rank_id 5 is no number in a group of 5 ranks"),
    (CollectiveScatter(9), f"CollectiveScatter: src_rank 9 is not in group {FIVE!r}, which has ranks 0, 1, 2, 3, 4"),
    (CollectiveScatter(), "CollectiveScatter: dimension 0 is 8, which does not divide by 5 ranks"),
    (AllGather(axis=2), "AllGather: there is no dimension 2 in shape (8, 12)"),
    (ReduceScatter(axis=1), "ReduceScatter: dimension 1 is 12, which does not divide by 5 ranks"),
    (AlltoAll(2, 0, 1), "AlltoAll: split_count is 2, the group has 5 ranks"),
    (NeighborExchange((1, 2)), "NeighborExchange: 1 tensors for 2 ranks to send to"),
    (NeighborExchange((1,), (2,)), "NeighborExchange: 0 shapes for 1 ranks to receive from"),
    (
        NeighborExchange((1,), send_shapes=((4,),)),
        "NeighborExchange: send_shapes is ((4,),), the tensors have ((8, 12),)",
    ),
]


@pytest.mark.parametrize(("op", "message"), ERRORS)
def test_operands_that_do_not_fit(op: Any, message: str) -> None:
    assert error_of(lambda: op.with_ranks(range(5)).infer(X)).message == message


def test_a_group_without_ranks_is_refused() -> None:
    error = error_of(lambda: AllGather("team").infer(X))
    assert error.message == "AllGather: the ranks of group 'team' are not known here"
    assert error.notes == (
        "call init() before the network is built, and create_group() for a group of your own",
    )


def test_two_operands_are_refused() -> None:
    error = error_of(lambda: AllGather().with_ranks((0, 1)).infer(X, X))
    assert error.message == f"AllGather takes one tensor, not {X}, {X}"


def test_an_allreduce_of_several_tensors_wants_one_element_type() -> None:
    op = AllReduce().with_ranks((0, 1))
    assert op.infer(X, X) == TupleType((X, X))
    error = error_of(op.infer, X, TensorType(INT32, (4,)))
    assert error.message == f"AllReduce: {X.dtype}, Int32 cannot travel together"


@pytest.mark.parametrize("op", [AllReduce(), Redistribute(), PasteSlices()])
def test_no_collective_has_a_sharding_rule(op: Op) -> None:
    with pytest.raises(MspcError, match=f"^.*{op.name} .*cannot be sharded"):
        op.rule(X)


def test_every_operator_here_states_its_hooks() -> None:
    here = [cls for name, cls in REGISTRY.items() if cls.__module__ in MODULES and name != "NeighborExchangeV2"]
    assert len(here) == 20
    for cls in here:
        assert cls.__doc__
        assert cls.rule is not Op.rule
        assert cls.bprop is not Op.bprop
        assert has_kernel(cls)


def gradient_op(op: Op, shape: tuple[int, ...]) -> Node:
    """The node that `bprop` emits, for the gradient of a tensor of `shape`."""
    graph = Graph("g")
    b = Builder(graph)
    x = Parameter("x", TensorType(FLOAT64, shape))
    out = b.emit(op, x)
    (grad,) = op.gradient(b, [x], out, Parameter("dout", out.type))
    assert isinstance(grad, Node)
    assert grad.type == x.type
    return grad


def test_a_scatter_of_a_maximum_has_no_gradient() -> None:
    error = error_of(gradient_op, ReduceScatter("max").with_ranks((0, 1)), (4, 2))
    assert error.message == "ReduceScatter has no gradient for op 'max'"


def test_local_slice_becomes_a_strided_slice() -> None:
    source, target = Layout.of((2, 4), [(0,), ()]), Layout.of((2, 4), [(0,), (1,)])
    op = LocalSlice(source, target).localize(at(6, source, target))
    assert op.name == "StridedSlice"
    assert {k: v for k, v in op.attributes().items() if v} == {
        "begin": (0, 6),
        "end": (4, 9),
        "strides": (1, 1),
    }


def test_redistribute_must_be_lowered() -> None:
    with pytest.raises(MspcError, match="Redistribute must be lowered before the graph is sliced"):
        Redistribute(ANY, ANY).localize(at(0, ANY, ANY))


def expand(
    source: Layout, target: Layout, rank: int, shape: tuple[int, ...] = (8, 12)
) -> tuple[Graph, Value]:
    graph = Graph("rank")
    x = Parameter("x", TensorType(FLOAT32, source.local_shape(shape)))
    graph.parameters.append(x)
    result = Exchange(source, target).expand(Builder(graph), at(rank, source, target, shape), [x])
    assert result is not None
    return graph, result


def test_an_exchange_on_a_rank() -> None:
    """Rank 1 of a (2, 2) mesh holds the upper right quarter and needs the lower left one."""
    graph, result = expand(Layout.of((2, 2), [(0,), (1,)]), Layout.of((2, 2), [(1,), (0,)]), 1)
    assert [node.op.name for node in graph.nodes] == ["NeighborExchange", "TupleGetItem"]
    exchange = graph.nodes[0]
    assert exchange.inputs == graph.parameters
    assert exchange.op.attributes() == {
        "send_rank_ids": (2,),
        "recv_rank_ids": (2,),
        "recv_shapes": ((4, 6),),
        "recv_type": FLOAT32,
        "group": group_name((0, 1, 2, 3)),
        "rank_list": (0, 1, 2, 3),
    }
    assert result is graph.nodes[1]


def test_pieces_along_one_dimension_are_joined() -> None:
    """Rank 2 keeps rows 4 and 5, which rank 3 needs too: one slice serves both."""
    graph, result = expand(Layout.of((2, 3), [(0,), ()]), Layout.of((3, 2), [(0,), ()]), 2, (12, 4))
    names = [node.op.name for node in graph.nodes]
    assert names == ["StridedSlice", "NeighborExchange", "TupleGetItem", "Concat"]
    assert result.type == TensorType(FLOAT32, (4, 4))


def test_pieces_along_two_dimensions_are_pasted() -> None:
    _, result = expand(Layout.of((2, 3), [(0,), (1,)]), Layout.of((3, 2), [(0,), (1,)]), 2, (12, 12))
    assert isinstance(result, Node)
    assert result.op == PasteSlices((4, 6), ((0, 0), (0, 4), (2, 0), (2, 4)))


@pytest.mark.parametrize("rank", [0, 3])
def test_ranks_that_have_what_they_need_take_no_part(rank: int) -> None:
    graph, result = expand(Layout.of((2, 2), [(0,), (1,)]), Layout.of((2, 2), [(1,), (0,)]), rank)
    assert not graph.nodes
    assert result is graph.parameters[0]


def test_a_rank_may_only_send_or_only_receive() -> None:
    """Half i is on the ranks (i, j); rank (i, j) needs quarter 2 j + i, so that two ranks hold theirs
    already."""
    source, target = Layout.of((2, 2), [(0,), ()]), Layout.of((2, 2), [(1, 0), ()])
    sender, kept = expand(source, target, 0)
    assert [node.op.name for node in sender.nodes] == ["StridedSlice", "StridedSlice", "NeighborExchange"]
    assert sender.nodes[2].type == TupleType(())
    assert kept is sender.nodes[0]
    receiver, got = expand(source, target, 1)
    assert [node.op.name for node in receiver.nodes] == ["NeighborExchange", "TupleGetItem"]
    assert receiver.nodes[0].inputs == []
    assert got.type == TensorType(FLOAT32, (2, 12))


def test_paste_slices() -> None:
    op = PasteSlices((2, 3), ((0, 0), (1, 0), (0, 2)))
    pieces = [np.full((1, 2), 1.0), np.full((1, 2), 2.0), np.full((2, 1), 3.0)]
    got = op.run(SimpleNamespace(xp=np, comm=None), *pieces)
    np.testing.assert_array_equal(got, [[1, 1, 3], [2, 2, 3]])
    assert op.infer(*(TensorType(FLOAT64, p.shape) for p in pieces)) == TensorType(FLOAT64, (2, 3))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (PasteSlices((8, 12)), "PasteSlices: 1 operands for 0 places"),
        (
            PasteSlices((8, 12), ((1, 0),)),
            "PasteSlices: input 0 of shape (8, 12) does not fit into (8, 12) at (1, 0)",
        ),
        (PasteSlices((9, 12), ((1, 0),)), "PasteSlices: the operands do not make up shape (9, 12)"),
    ],
)
def test_pieces_that_do_not_fit(op: PasteSlices, message: str) -> None:
    assert error_of(op.infer, X).message == message


@pytest.mark.parametrize(("sends", "receives", "block", "message"), [
    ((1, 2), (1,), 1,
     "AlltoAllV: recv_numel_list must be 2 numbers from 0 on, one for each rank of the group, not (1,)"),
    ((1, -1), (1, 1), 1,
     "AlltoAllV: send_numel_list must be 2 numbers from 0 on, one for each rank of the group, not (1, -1)"),
    ((1, 2), (1, 1), 1, "AlltoAllV: the tensor has shape (4,), and send_numel_list says (3,)"),
    ((2, 2), (1, 1), 0, "AlltoAllV: block_size must be at least 1, not 0"),
])  # fmt: skip
def test_sizes_of_pieces_that_do_not_fit(sends: Any, receives: Any, block: int, message: str) -> None:
    op, _ = AlltoAllV(block_size=block).with_ranks((0, 1)).call("x", sends, receives)
    assert error_of(op.infer, TensorType(FLOAT32, (4,))).message == message


SQUARE = IMPORTS + """
from mindspore.communication import init, get_rank
from mindspore.ops import operations as P

init()
rank = get_rank()
row, column = divmod(rank, 2)
whole = np.arange(2 * 3 * 8 * 6, dtype=np.float32).reshape(2, 3, 8, 6)
mine = whole[:, :, 4 * row : 4 * row + 4, 3 * column : 3 * column + 3]

def at(down, right):
    inside = 0 <= row + down < 2 and 0 <= column + right < 2
    return 2 * (row + down) + column + right if inside else -1

ids = [at(*p) for p in ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))]

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        # One row goes up and two down, two columns to the left and one to the right.
        self.exchange = P.NeighborExchangeV2(ids, [1, 2, 2, 1], ids, [2, 1, 1, 2], "NCHW")
    def construct(self, x):
        return self.exchange(x)

net = Net()
out = net(Tensor(mine)).asnumpy()
top, bottom = max(0, 4 * row - 2), min(8, 4 * row + 5)
left, right = max(0, 3 * column - 1), min(6, 3 * column + 5)
np.testing.assert_array_equal(out, whole[:, :, top:bottom, left:right])
weights = Tensor(np.ones(out.shape, np.float32))
gradient = ms.grad(lambda x: (net(x) * weights).sum())(Tensor(mine)).asnumpy()
# A place counts once for its own rank and once for every rank that has it as a border.
counts = np.zeros((8, 6), np.float32)
for r in range(2):
    for c in range(2):
        counts[max(0, 4 * r - 2) : min(8, 4 * r + 5), max(0, 3 * c - 1) : min(6, 3 * c + 5)] += 1
np.testing.assert_array_equal(gradient[1, 2], counts[4 * row : 4 * row + 4, 3 * column : 3 * column + 3])
print("rank", rank, "is right")
"""


def test_borders_of_four_ranks_in_a_square(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "square.py"
    script.write_text(SQUARE)
    run_script(script, 4, simulate=True)
    assert sorted(capsys.readouterr().out.split("\n"))[1:] == [f"rank {rank} is right" for rank in range(4)]


NOBODY = (-1,) * 8
BELOW = (-1, -1, -1, -1, 1, -1, -1, -1)
GIVEN: dict[str, Any] = {
    "send_rank_ids": BELOW, "send_lens": (0, 1, 0, 0), "recv_rank_ids": BELOW, "recv_lens": (0, 2, 0, 0),
    "rank_list": (0, 1),
}  # fmt: skip
HALO_X = TensorType(FLOAT32, (1, 1, 32, 16))


def test_a_side_from_which_nothing_comes_stays_as_it_is() -> None:
    assert NeighborExchangeV2(**GIVEN).infer(HALO_X) == TensorType(FLOAT32, (1, 1, 34, 16))
    alone = GIVEN | {"recv_rank_ids": NOBODY, "recv_lens": (1, 2, 3, 4)}
    assert NeighborExchangeV2(**alone).infer(HALO_X) == HALO_X


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"data_format": "NHWC"}, ValueError, "data_format is 'NHWC'; it must be 'NCHW'"),
        ({"send_rank_ids": BELOW[:5]}, ValueError, "send_rank_ids must be 8 numbers from -1, not (-1, -1, -1, -1, 1)"),
        ({"send_lens": (0, 1, 0, 0, 2)}, ValueError, "send_lens must be 4 numbers from 0, not (0, 1, 0, 0, 2)"),
        ({"recv_lens": (0, -3, 0, 0)}, ValueError, "recv_lens must be 4 numbers from 0, not (0, -3, 0, 0)"),
        ({"recv_rank_ids": (-1, -1, -1, 0, 1, -1, -1, -1)}, ValueError,
         "recv_rank_ids (-1, -1, -1, 0, 1, -1, -1, -1) has a corner without both its sides"),
        ({"send_rank_ids": (1, -1, -1, -1, 1, -1, -1, -1)}, ValueError,
         "send_rank_ids (1, -1, -1, -1, 1, -1, -1, -1) must be different ranks of the group"),
        ({"recv_rank_ids": (8, -1, -1, -1, 1, -1, -1, -1)}, ValueError,
         "recv_rank_ids (8, -1, -1, -1, 1, -1, -1, -1) must be different ranks of the group"),
        ({"send_lens": (0, 35, 0, 0)}, None, "send_lens (0, 35, 0, 0) is more than the tensor (1, 1, 32, 16) has"),
        ({"send_lens": (0, 1.0, 0, 0)}, TypeError, "send_lens must be a list of integers, not (0, 1.0, 0, 0)"),
        ({"group": ("x",)}, TypeError, "group must be the name of a group, not ('x',)"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], kind: type[Exception] | None, message: str) -> None:
    error = error_of(lambda: NeighborExchangeV2(**(GIVEN | fields)).infer(HALO_X))
    assert error.message == f"NeighborExchangeV2: {message}"
    assert error.kind is kind


def test_it_takes_one_tensor_of_four_dimensions() -> None:
    with pytest.raises(MspcError, match="takes one tensor of 4 dimensions"):
        NeighborExchangeV2(**GIVEN).infer(TensorType(FLOAT32, (32, 16)))


def test_what_a_user_gives_is_checked_where_it_is_called() -> None:
    exchange = ops.NeighborExchangeV2([1], [0], [1], [0])
    with pytest.raises(ValueError, match="send_rank_ids must be 8 numbers from -1"):
        exchange(Tensor(np.ones((1, 1, 4, 4), np.float32)))


Array = np.ndarray
ROWS = TensorType(FLOAT32, (4, 2))


def drawn(ranks: int, seed: int) -> Iterator[tuple[tuple[int, ...], Array, list[Array]]]:
    """(group, table, places of each member): many to one owner, none, twice the same, and such as are no places."""
    r = np.random.default_rng(seed)
    for group in (tuple(range(ranks)), tuple(reversed(range(ranks))), tuple(range(0, ranks, 2))):
        count = len(group)
        for rows in (1, 3):
            table = r.normal(size=(count * rows, 4))
            yield group, table, [r.integers(-1, count * rows + 1, 6) for _ in group]
            yield group, table, [np.full(5, count * rows - 1) for _ in group]
            yield group, table, [np.full(4, -1) if i % 2 else r.integers(0, rows, 4) for i in range(count)]
            yield group, table, [r.integers(0, count * rows, 0) for _ in group]


def check(comm: Any) -> int:
    """Both collectives with the operands of `drawn`, on one rank. Returns how many were tried."""
    backend, tried = NumPyBackend(comm), 0
    for group, table, places in drawn(comm.size, 3):
        if comm.rank not in group:
            continue
        mine = group.index(comm.rank)
        slices, total = np.split(table, len(group)), len(table)
        fetch = FetchRows(total=total, rank_list=group).kernel(backend)(slices[mine], places[mine])
        inside = (places[mine] >= 0) & (places[mine] < total)
        expected = np.where(inside[:, None], table[np.where(inside, places[mine], 0)], 0.0)
        np.testing.assert_array_equal(fetch, expected)
        rows = [np.arange(4.0 * len(each)).reshape(-1, 4) + i for i, each in enumerate(places)]
        sums = np.zeros_like(table)
        for each, own in zip(places, rows, strict=True):
            for place, row in zip(each, own, strict=True):
                if 0 <= place < total:
                    sums[place] += row
        send = SendRows(size=total // len(group), total=total, rank_list=group)
        found = send.kernel(backend)(rows[mine], places[mine])
        np.testing.assert_array_equal(found, np.split(sums, len(group))[mine])
        tried += 1
    return tried


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_on_simulated_ranks(ranks: int) -> None:
    """Under MPI `test_everything_under_mpi` runs the same."""
    assert max(World(ranks).run(check)) >= 16


def test_halves_add_up_in_float32() -> None:
    def main(comm: Any) -> Array:
        rows = np.full((2049, 1), 1.0, np.float16)
        op = SendRows(size=1, total=2, rank_list=(0, 1))
        return op.kernel(NumPyBackend(comm))(rows, np.zeros(2049, np.int32))

    first, second = World(2).run(main)
    assert first.dtype == np.float16
    assert first[0, 0] == 4098  # in Float16 2048 + 1 is 2048
    assert second[0, 0] == 0


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (FetchRows(), (ROWS, TensorType(FLOAT32, (3,))), "takes a tensor with rows and a tensor"),
        (SendRows(), (ROWS,), "takes a tensor with rows and a tensor of integers"),
        (SendRows(), (ROWS, TensorType(INT32, (3,))), "places (3,) are not those of rows (4, 2)"),
    ],
)
def test_operands_that_do_not_fit_are_refused(op: Any, types: Any, message: str) -> None:
    assert message in str(error_of(op.infer, *types))


class Late(FakeDevice):
    """A device on which nothing that is begun aside is over before it has to be. made: arrays."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._begun: list[Callable[[], None]] = []
        self.made = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.made += 1
        return super().empty(shape, dtype)

    def on_side_stream(self, name: str, launch: Any) -> None:
        self._begun.append(launch)

    def rejoin(self) -> None:
        for launch in self._begun:
            launch()
        self._begun.clear()
        self.rejoined += 1


def test_a_loop_sends_on_before_its_messages_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)
    sent: list[list[float]] = []
    device = Late(SimpleNamespace(send=lambda array, rank, tag: sent.append(array.tolist())))
    x, out = fake(np.zeros(2)), fake(np.zeros(2))
    launch = Send(sr_tag=4, dest_rank=1).launch(device, out, x)  # type: ignore[arg-type]  # for moves alone
    assert launch is not None
    for step in range(3):
        for turn in range(4):
            x[...] = 10 * step + turn
            launch()
            assert out.tolist() == x.tolist()
        device.rejoin()
    assert sent == [[10.0 * step + turn] * 2 for step in range(3) for turn in range(4)]
    assert device.made == 4, "memory is used again at the next step"


HERE = Path(__file__).parent


@pytest.mark.parametrize("ranks", [ranks for place, ranks in enumerate((3, 2, 8, 4)) if is_taken(place, 2)])
def test_operators_on_simulated_ranks(ranks: int) -> None:
    """On an odd and an even number; on four they run under MPI below."""
    assert min(World(ranks).run(check_all)) > 200


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (program, ranks)
        for program, counts in (("public", (3, 2, 4, 8)), ("mint", (2, 4)))
        for place, ranks in enumerate(counts)
        if is_taken(place)
    ],
)
def test_what_scripts_call_on_simulated_ranks(program: str, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One number of ranks of each: on four all run under MPI below, and the operators on eight above."""
    run_script(HERE / f"{program}_program.py", ranks, simulate=True)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"rank {rank} is right" for rank in range(ranks)]


def test_everything_under_mpi(root: Path) -> None:
    command = [find_mpirun(), "-n", "4", "--oversubscribe", "--bind-to", "none", *SERVED, "run"]
    environment = mpirun_environment() | {"PYTHONPATH": str(root)}
    done = succeed(*command, str(HERE / "public_program.py"), "--", "every", env=environment)
    assert sorted(done.stdout.splitlines()) == sorted(2 * [f"rank {rank} is right" for rank in range(4)])
