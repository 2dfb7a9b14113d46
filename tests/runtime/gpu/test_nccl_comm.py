"""Collectives on GPUs, with CuPy and NCCL played by NumPy: the calls, and that they give the bits of the simulation."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.diagnostics import ExecutionError, shown_bytes
from mspc.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AlltoAll,
    AlltoAllV,
    Broadcast,
    CollectiveGather,
    CollectiveScatter,
    NeighborExchange,
    Reduce,
    ReduceScatter,
)
from mspc.ops.op import Op
from mspc.runtime.faults.stopped import END, packed
from mspc.runtime.gpu.nccl import NcclComm, groups_of, load_nccl
from mspc.runtime.gpu.progress import GpuProgress, communicates, out_of_memory
from tests.errors import failure_of
from tests.executors import LocalComm, OneRank, World
from tests.operators import Barrier, PasteSlices, Receive, Send
from tests.runtime.comm.collectives import digest, results
from tests.runtime.gpu.fake_gpu import FakeDevice, FakeNccl, fake, fake_move, fake_xp
from tests.runtime.graphs import GraphMaker, Plus

BF16 = np.dtype(ml_dtypes.bfloat16)


class Comm(NcclComm):
    """On one simulated rank: NCCL is the fake of that rank."""

    def __init__(self, comm: LocalComm) -> None:
        super().__init__(fake_xp(), comm)
        self._nccl = self.fake = FakeNccl(comm)

    def _group(self, ranks: Any, tag: int = -1) -> Any:
        self.fake.joining = ranks
        return super()._group(ranks, tag)


def on_ranks(size: int, body: Any) -> list[Any]:
    return World(size).run(lambda comm: body(Comm(comm)))


class Asked:
    """Hands NumPy arrays to a communicator as a GPU's."""

    def __init__(self, comm: NcclComm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.comm, name)

        def call(first: Any = None, *others: Any) -> Any:
            if name in ("exchange", "exchange_into"):
                return method([(rank, fake(array)) for rank, array in first], *others)
            return method(first if name in ("barrier", "receive") else fake(first), *others)

        return call


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective_gives_the_bits_of_the_simulation(size: int) -> None:
    wanted = World(size).run(lambda comm: digest(results(comm)))
    assert on_ranks(size, lambda comm: digest(results(Asked(comm)))) == wanted


def test_groups_are_made_once_in_one_order_also_those_that_another_rank_names() -> None:
    def body(comm: Comm) -> Any:
        mine = [((2, 0), -1), ((0, 1, 2), -1)] if comm.rank == 0 else []
        comm.prepare(mine, together=True)
        comm.prepare(mine, together=True)
        comm.all_gather(fake(np.ones(2)), (0, 1, 2))
        return [call for call in comm.fake.log if call[0] == "join"]

    zero, one, two = on_ranks(3, body)
    assert zero == [("join", 3, 0, 0), ("join", 2, 2, 1)]
    assert one == [("join", 3, 0, 1)]
    assert two == [("join", 3, 0, 2), ("join", 2, 2, 0)]


def test_members_alone_prepare_where_ranks_run_graphs_of_their_own() -> None:
    def body(comm: Comm) -> Any:
        if comm.rank < 2:
            comm.prepare([((0, 1), -1)], together=False)
        return len(comm._groups)

    assert on_ranks(3, body) == [1, 1, 0]


def test_several_operands_are_one_piece_of_work_and_may_be_overwritten() -> None:
    def body(comm: Comm) -> Any:
        arrays = [fake(np.full(n, comm.rank + n, np.float32)) for n in (3, 1, 5)]
        comm.all_reduce_into(arrays, arrays, "sum", (0, 1))
        kinds = [call[0] for call in comm.fake.log if call[0] != "join"]
        return [array.tolist() for array in arrays], kinds

    arrays, kinds = on_ranks(2, body)[1]
    assert arrays == [[7.0] * 3, [3.0], [11.0] * 5]
    assert kinds == ["start", "allReduce", "allReduce", "allReduce", "end"]


def test_booleans_and_numbers_that_nccl_does_not_know() -> None:
    def body(comm: Comm) -> Any:
        flag = fake(np.array([comm.rank == 1, False, True]))
        small = fake(np.array([comm.rank + 1, -7], np.int16))
        everyone = (0, 1)
        found = [
            comm.all_reduce(flag, "sum", everyone).tolist(),
            comm.all_reduce(flag, "prod", everyone).tolist(),
            comm.all_reduce(small, "sum", everyone).tolist(),
            comm.reduce_scatter(small, "prod", everyone).tolist(),
        ]
        return found, comm.combines(small.dtype, "sum"), comm.combines(BF16, "sum")

    zero, one = on_ranks(2, body)
    assert zero == ([[True, False, True], [False, False, True], [3, -14], [2]], False, True)
    assert one[0][3] == [49]


def test_one_rank_needs_no_nccl() -> None:
    comm = NcclComm(fake_xp(), OneRank())
    x = fake(np.arange(6.0).reshape(2, 3))
    comm.prepare([((0,), -1)], together=True)
    for found in (
        comm.all_reduce(x, "sum", (0,)),
        comm.all_gather(x, (0,), 1),
        comm.reduce_scatter(x, "max", (0,), 1),
        comm.all_to_all(x, (0,), 0, 1),
        comm.broadcast(x, 0, (0,)),
        comm.exchange([(0, x)], [(0, x.shape, x.dtype)])[0],
    ):
        assert np.array_equal(found, x)
        assert found.data.ptr != x.data.ptr
    comm.barrier((0,))
    assert comm._nccl is None


def test_multicast_stays_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fake.cuda.nccl", SimpleNamespace(available=True))  # type: ignore[arg-type]  # stands in for a module
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    NcclComm(fake_xp(), OneRank())._library()
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    NcclComm(fake_xp(), OneRank())._library()
    assert os.environ["NCCL_NVLS_ENABLE"] == "1"


def test_a_cupy_without_nccl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fake.cuda.nccl", SimpleNamespace(available=False))  # type: ignore[arg-type]  # stands in for a module
    with pytest.raises(ExecutionError, match="CuPy finds no NCCL library"):
        load_nccl(fake_xp())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("NCCL_ERROR_SYSTEM_ERROR: broken"), "NCCL_ERROR_SYSTEM_ERROR: broken"),
        (KeyError(6), "another rank has gone, or the way to it is broken"),
        (KeyError(9), "error 9"),
        (KeyError(7), None),
        (None, None),
    ],
)
def test_errors_of_nccl_name_the_group(error: Any, message: str | None) -> None:
    def body(comm: Comm) -> Any:
        comm.prepare([((0, 1), -1)], together=True)
        comm.fake.error = error
        try:
            comm.check()
        except ExecutionError as found:
            return found.message
        return None

    wanted = None if message is None else f"NCCL fails between ranks 0, 1: {message}"
    assert on_ranks(2, body) == [wanted, wanted]


def test_a_call_that_nccl_refuses_names_the_group() -> None:
    def body(comm: Comm) -> Any:
        comm.prepare([((0, 1), -1)], together=True)
        comm.fake.run = lambda *_: (_ for _ in ()).throw(RuntimeError("invalid usage"))  # type: ignore[method-assign]
        return failure_of(comm.all_reduce, fake(np.ones(2)), "sum", (0, 1)).message

    assert on_ranks(2, body)[0] == "NCCL fails between ranks 0, 1: invalid usage"


def launched(op: Op, device: FakeDevice, inputs: Any, out: Any) -> Any:
    launch = op.launch(device, out, *inputs)  # type: ignore[arg-type]  # a device for moves alone
    assert launch is not None
    launch()
    launch()  # a replay finds what it needs
    return out


SHAPES = [(4, 6), (2, 4, 6), (6,)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int16", "float64"])
def test_launches_of_collectives_give_what_the_kernels_give(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)
    kind = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    size = 2
    everyone = tuple(range(size))
    ops: list[tuple[Op, tuple[int, ...]]] = []
    for shape in SHAPES:
        for axis in range(len(shape)):
            ops.append((AllGather(axis=axis, rank_list=everyone), shape))
            ops.append((AllGather(axis=axis, rank_list=everyone[::-1]), shape))
            ops.append((ReduceScatter(op="max", axis=axis, rank_list=everyone), shape))
            for other in range(len(shape)):
                cut = AlltoAll(split_count=size, split_dim=axis, concat_dim=other, rank_list=everyone)
                ops.append((cut, shape))
        ops.append((AllReduce(op="max", rank_list=everyone), shape))

    def body(host: LocalComm) -> Any:
        comm = Comm(host)
        comm.prepare([(everyone, -1), (everyone[::-1], -1)], together=True)
        device = FakeDevice(comm)
        plain = SimpleNamespace(xp=np, comm=LocalComm(host.world, host.rank, channel=5), step=0)
        for op, shape in ops:
            rng = np.random.default_rng([host.rank, len(shape)])
            array = (10 * rng.standard_normal(shape)).astype(kind)
            wanted = np.asarray(op.kernel(plain)(array))
            out = fake(np.zeros(wanted.shape, kind))
            if op.launch(device, out, fake(array)) is None:  # type: ignore[arg-type]
                assert dtype == "int16"
                continue
            launched(op, device, [fake(array)], out)
            assert out.tobytes() == wanted.tobytes(), (op, shape)
        return True

    assert World(size).run(body) == [True] * size


def test_launches_with_several_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)

    def body(host: LocalComm) -> Any:
        comm = Comm(host)
        device, rank, other = FakeDevice(comm), host.rank, 1 - host.rank
        everyone = (0, 1)
        x, y = fake(np.arange(6.0).reshape(2, 3) + rank), fake(np.full(4, 2.0 + rank))
        pair = (fake(np.zeros((2, 3))), fake(np.zeros(4)))
        launched(AllReduce(rank_list=everyone), device, [x, y], pair)
        assert pair[0].tolist() == [[1, 3, 5], [7, 9, 11]]
        assert pair[1].tolist() == [5] * 4
        launched(Broadcast(root_rank=1, rank_list=everyone), device, [x, y], pair)
        assert pair[0][0].tolist() == [1, 2, 3]
        assert pair[1].tolist() == [3] * 4
        swap = NeighborExchange(
            send_rank_ids=(other, rank), recv_rank_ids=(rank, other), recv_shapes=((4,), (2, 3)), rank_list=everyone
        )
        landed = (fake(np.zeros(4)), fake(np.zeros((2, 3))))
        launched(swap, device, [x, y], landed)
        assert landed[0].tolist() == y.tolist()
        assert landed[1][0, 0] == other
        out = (fake(np.zeros((2, 3))),)
        launched(Barrier(rank_list=everyone), device, [x], out)
        assert out[0].tolist() == x.tolist()
        sent = fake(np.zeros((2, 3)))
        message = Send(sr_tag=4, dest_rank=1) if rank == 0 else Receive(sr_tag=4, src_rank=0)
        launched(message, device, [x] if rank == 0 else [], sent)
        assert sent[0].tolist() == [0, 1, 2]
        return True

    assert World(2).run(body) == [True, True]


def test_groups_of_one_rank_are_copies_without_a_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)
    device, x = FakeDevice(None), fake(np.arange(6.0).reshape(2, 3))
    for op in (
        AllReduce(rank_list=(0,)), AllGather(axis=1, rank_list=(0,)), ReduceScatter(axis=1, rank_list=(0,)),
        AlltoAll(split_count=1, concat_dim=1, rank_list=(0,)),
    ):  # fmt: skip
        assert launched(op, device, [x], fake(np.zeros((2, 3)))).tolist() == x.tolist()
    paste = PasteSlices(shape=(3, 3), begins=((1, 0), (0, 0), (0, 2)))
    parts = [x, fake(np.full((1, 2), 8.0)), fake(np.full((1, 1), 9.0))]
    assert launched(paste, device, parts, fake(np.zeros((3, 3)))).tolist() == [[8, 8, 9], [0, 1, 2], [3, 4, 5]]


def test_groups_of_a_graph_are_found() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2, 4))
    y = make.node(AllReduce(rank_list=(3, 1)), x)
    y = make.node(AllGather(rank_list=(3, 1)), y)
    y = make.node(AllReduce(rank_list=(1,)), y)
    y = make.node(Send(sr_tag=2, dest_rank=0, rank_list=(0, 1)), y)
    assert groups_of(make.returns(y), rank=1) == [((1, 0), 2), ((1, 3), -1), ((3, 1), -1)]


def test_pieces_of_different_sizes_and_collectives_with_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)
    members = (2, 0, 1)
    sent = [[1, 0, 2], [3, 1, 0], [0, 0, 2]]

    def body(host: LocalComm) -> Any:
        comm = Comm(host)
        device, i = FakeDevice(comm), members.index(host.rank)
        come = tuple(row[i] for row in sent)
        x = fake(10.0 * i + np.arange(sum(sent[i])))
        uneven = AlltoAllV(send_numel_list=tuple(sent[i]), recv_numel_list=come, rank_list=members)
        found = launched(uneven, device, [x], fake(np.full(sum(come), -1.0)))
        rows = [10.0 * j + np.arange(sum(row)) for j, row in enumerate(sent)]
        parts = [row[sum(sent[j][:i]) : sum(sent[j][: i + 1])] for j, row in enumerate(rows)]
        assert found.tolist() == np.concatenate(parts).tolist()
        backend = SimpleNamespace(xp=comm.xp, comm=comm)
        y = fake(np.arange(3.0) + 10 * i)
        kept = [Reduce(1, rank_list=members, rank_id=i), CollectiveGather(0, rank_list=members, rank_id=i)]
        for op, wanted in zip(kept, ([30, 33, 36], [0, 1, 2, 10, 11, 12, 20, 21, 22]), strict=True):
            assert op.kernel(backend)(y).tolist() == (wanted if i == 1 else [0])
        scatter = CollectiveScatter(0, rank_list=members, rank_id=i)
        assert scatter.kernel(backend)(y).tolist() == [10 + i]
        # The groups that a graph's collectives name are those that are used.
        named = {op.channel(host.rank) for op in (uneven, *kept, scatter)}
        assert named == set(comm._groups)
        return True

    assert World(3).run(body) == [True] * 3


class Device:
    """Runs the one kernel there is as its C++ says."""

    def __init__(self) -> None:
        self.step = np.array([0], np.int64)
        self.memory: Any = None
        self.comm: Any = SimpleNamespace()

    def pinned(self, shape: Any, dtype: Any) -> Any:
        self.memory = np.full(shape, -1, dtype)
        return self.memory

    def kernel(self, source: str, name: str) -> Any:
        assert "| step[0] << 24" in source

        def put_mark(grid: int, block: int, arguments: Any) -> None:
            place, step, where = arguments
            assert (grid, block) == (1, 1)
            assert (type(place), int(place)) == (np.uint64, self.memory.ctypes.data)
            assert type(where) is np.int64
            self.memory[0] = int(where) | int(step[0]) << 24

        return put_mark


def test_marks_say_graph_step_and_node() -> None:
    device, watch = Device(), SimpleNamespace(marks=None)
    progress = GpuProgress(device, watch)
    assert watch.marks() == 0
    progress.graph = 2
    log: list[int] = []
    launch, end = progress.before(7, lambda: log.append(watch.marks())), progress.mark()
    progress.graph = 5
    for step in (1, 2):
        device.step[0] = step
        launch()
        assert log[-1] == packed(2, step, 7)
        end()
        assert watch.marks() == packed(2, step, END)


def test_one_rank_marks_nothing() -> None:
    progress = GpuProgress(SimpleNamespace(), None)
    launch = lambda: None  # noqa: E731
    assert progress.before(3, launch) is launch
    progress.mark()()


def test_the_wait_looks_for_errors_of_nccl() -> None:
    device = Device()
    progress = GpuProgress(device, None)
    progress.wait(SimpleNamespace(done=True))
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise ExecutionError("NCCL fails between ranks 0, 1: gone")

    device.comm = SimpleNamespace(check=check)
    with pytest.raises(ExecutionError, match="NCCL fails between ranks 0, 1: gone"):
        progress.wait(SimpleNamespace(done=False))


def test_nodes_that_wait_for_others_are_known() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2,))
    y = make.node(AllReduce(rank_list=(0, 1)), x)
    z = make.node(AllReduce(rank_list=(0,)), y)
    nodes = [y, z, make.node(Send(dest_rank=1), z), make.node(Plus(), z, z)]
    assert [communicates(node) for node in nodes] == [True, False, True, False]


def test_out_of_memory_names_node_bytes_and_peak() -> None:
    make = GraphMaker()
    node = make.node(Plus(), make.parameter("x", (2, 3)), make.parameter("y", (2, 3)), instance="big")
    held = {"parameters and optimizer states": 5 << 30, "scratch": 1500}
    message, notes = out_of_memory(node, 3 << 20, 40 << 30, held, 1, 1)
    assert message == (
        "out of memory on GPU 1 (rank 1): Plus 'big' (Tensor[Float32] (2, 3)) needs 3.0 MiB (3,145,728 bytes); "
        "the plan's peak is 40.0 GiB (42,949,672,960 bytes)"
    ).replace("Tensor[Float32] (2, 3)", str(node.type))
    assert notes == [
        "parameters and optimizer states: 5.0 GiB (5,368,709,120 bytes)",
        "scratch: 1.5 KiB (1,500 bytes)",
        "use more ranks, a smaller batch, or shard larger tensors over the ranks",
    ]
    assert out_of_memory(None, 10, 20, {}, 0, 0)[0] == (
        "out of memory on GPU 0 (rank 0): the step needs 10 bytes; the plan's peak is 20 bytes"
    )
    assert shown_bytes(1023) == "1,023 bytes"
