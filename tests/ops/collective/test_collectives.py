"""Collectives: groups, both forms, types, kernels on simulated ranks, gradients as adjoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.compare import difference
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
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
from mspc.ops.collective.exchange import Exchange, PasteSlices
from mspc.ops.collective.point_to_point import Barrier, Receive, Send
from mspc.ops.op import REGISTRY, Op, RankPlacement, has_kernel, load_operators
from mspc.sharding.groups import group_name, string_hash

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
        with pytest.raises(MspcError) as caught:
            op.infer(*[X] * len(op.send_rank_ids))
        assert caught.value.message == f"NeighborExchange: {field} must be a list of ranks, not {getattr(op, field)}"


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
    with pytest.raises(MspcError) as raised:
        op.with_ranks(range(5)).infer(X)
    assert raised.value.message == message


def test_a_group_without_ranks_is_refused() -> None:
    with pytest.raises(MspcError) as raised:
        AllGather("team").infer(X)
    assert raised.value.message == "AllGather: the ranks of group 'team' are not known here"
    assert raised.value.notes == (
        "call init() before the network is built, and create_group() for a group of your own",
    )


def test_two_operands_are_refused() -> None:
    with pytest.raises(MspcError) as raised:
        AllGather().with_ranks((0, 1)).infer(X, X)
    assert raised.value.message == f"AllGather takes one tensor, not {X}, {X}"


def test_an_allreduce_of_several_tensors_wants_one_element_type() -> None:
    op = AllReduce().with_ranks((0, 1))
    assert op.infer(X, X) == TupleType((X, X))
    with pytest.raises(MspcError) as raised:
        op.infer(X, TensorType(INT32, (4,)))
    assert raised.value.message == f"AllReduce: {X.dtype}, Int32 cannot travel together"


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
    with pytest.raises(MspcError) as raised:
        gradient_op(ReduceScatter("max").with_ranks((0, 1)), (4, 2))
    assert raised.value.message == "ReduceScatter has no gradient for op 'max'"


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
    with pytest.raises(MspcError) as raised:
        op.infer(X)
    assert raised.value.message == message


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
    with pytest.raises(MspcError) as raised:
        op.infer(TensorType(FLOAT32, (4,)))
    assert raised.value.message == message
