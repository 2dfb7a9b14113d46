"""Sharded steps on several emulated GPUs beside NumPy: planned memory, real kernels, collectives in their place."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops, set_seed
from mspc.compiler import pipeline
from mspc.ir.graph import Graph
from mspc.ops.collective.base import is_summed_by_reader
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.cuda import expert_rows
from mspc.ops.device import RankSum
from mspc.runtime.data import slice_parameter
from tests.compiled_scripts import Config, compile_call
from tests.executors import Executor, GpuExecutor, LocalComm, NumPyBackend, World, plan_memory
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.rows_programs import fetched_and_sent
from tests.gpu.sharded import HEADS, build
from tests.ops.cuda.cuda_emulator import NEEDED

ROWS, WIDTH = 96, 64
pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")


class EmulatedNccl:
    """`DeviceCommunicator` on arrays of NumPy, between the ranks of a simulation. sums: whether kernels may add up what
    ranks hold; summed: how often they have."""

    def __init__(self, comm: LocalComm, sums: bool = False) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.sums, self.summed = sums, 0

    def combines(self, dtype: Any, op: str) -> bool:
        return True

    def direct(self, name: str, array: Any, out: Any, op: str, ranks: Any) -> Any:
        return None

    def partial_sums(self, array: Any, ranks: Any) -> RankSum | None:
        """The order of copies of all parts, which are made when the kernel is launched, and others' signs are there
        before."""
        if not self.sums:
            return None
        parts = np.zeros((len(ranks), *array.shape), array.dtype)
        signs = np.full((len(ranks), RankSum.SIGNS * len(ranks)), 1 << 30, np.uint32)
        state = np.zeros((RankSum.STATE,), np.uint32)

        def meet() -> tuple[int, int]:
            parts.reshape(-1)[...] = self.comm.all_gather(array.reshape(-1), ranks)
            self.summed += 1
            return 0, 0

        own = tuple(ranks).index(self.rank)
        signs[[i for i in range(len(ranks)) if i != own]] = 0
        addresses = (tuple(int(each.ctypes.data) for each in rows) for rows in (parts, signs))
        return RankSum(next(addresses), own, next(addresses), state, np.zeros((1,), np.int64), 0, meet, (parts, signs))

    def all_agree(self, able: bool, ranks: Any) -> bool:
        return bool(self.comm.all_reduce(np.array([able], np.int64), "min", ranks)[0])

    def all_reduce_into(self, arrays: Sequence[Any], outs: Sequence[Any], op: str, ranks: Any) -> None:
        for array, out in zip(arrays, outs, strict=True):
            out[...] = self.comm.all_reduce(array, op, ranks)

    def all_gather_into(self, array: Any, out: Any, ranks: Any) -> None:
        out.reshape(-1)[...] = self.comm.all_gather(array.reshape(-1), ranks)

    def reduce_scatter_into(self, array: Any, out: Any, op: str, ranks: Any) -> None:
        out.reshape(-1)[...] = self.comm.reduce_scatter(array.reshape(-1), op, ranks)

    def all_to_all_into(self, array: Any, out: Any, ranks: Any) -> None:
        out.reshape(-1)[...] = self.comm.all_to_all(array.reshape(-1), ranks, 0, 0)

    def exchange_counts(self, numbers: Any, ranks: Any) -> Any:
        return self.comm.all_to_all(numbers, ranks, 0, 0)

    def exchange_into(self, sends: Any, receives: Any, ranks: Any = None) -> None:
        found = self.comm.exchange(sends, [(rank, out.shape, out.dtype) for rank, out in receives])
        for array, (_, out) in zip(found, receives, strict=True):
            out[...] = array


def compiled(data: int, tensor: int) -> Any:
    target, args = build(data, tensor)
    config = Config(ranks=data * tensor, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU")
    return compile_call(target, args, config), [arg.asnumpy() for arg in args]


def steps(
    found: Any, feeds: Any, folder: Path, gpu: bool, sums: bool = False
) -> list[tuple[list[float], dict[str, Any]]]:
    """Return the losses of three steps of every rank, and the parameters then. sums: kernels add up what ranks hold."""
    count = found.graph.attrs["ranks"]
    graphs = [found.rank_graph(rank) for rank in range(count)]
    full = {name: np.asarray(p.array) for name, p in found.traced.parameters.items()}
    folders = [folder / str(rank) for rank in range(count)]
    for each in folders:
        each.mkdir(exist_ok=True, parents=True)

    def run(comm: LocalComm) -> tuple[list[float], dict[str, Any]]:
        graph = graphs[comm.rank]
        own = {p.name: np.array(slice_parameter(p, full[p.name], comm.rank, "")) for p in graph.parameters
               if p.kind == "parameter"}  # fmt: skip
        own |= {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
        executor: Any
        nccl = EmulatedNccl(comm, sums)
        if gpu:
            executor = GpuExecutor(graph, EmulatedGpu(folders[comm.rank], nccl), own, host=comm)
        else:
            executor = Executor(graph, NumPyBackend(comm), own)
        losses = [float(np.asarray(executor.run(feeds)[0])) for _ in range(3)]
        assert nccl.summed == 3 * sums * sum(map(is_summed_by_reader, graph.nodes))
        return losses, {name: np.array(executor.parameter(name)) for name in own}

    return World(count).run(run)


@pytest.mark.parametrize(("data", "tensor"), [(1, 2), (2, 1), (2, 2)])
def test_sharded_steps_equal_numpys(data: int, tensor: int, tmp_path: Path) -> None:
    found, feeds = compiled(data, tensor)
    graph = found.rank_graph(0)
    assert any(node.attrs.get("stream") == "communication" for node in graph.nodes)
    attentions = [node.op.attributes() for node in graph.nodes if "FlashAttention" in node.op.name]
    assert [found["packed"] for found in attentions] == [HEADS // tensor] * 4
    wanted, got = (steps(found, feeds, tmp_path, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-4)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=2e-3, atol=2e-5, err_msg=name)


class Halves(nn.Cell):
    """Two products in halves on two ranks, each behind a norm, with what is read added to their sum."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(5)
        self.weights = [Parameter(Tensor(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8), name=f"w{i}")
                        for i in range(4)]  # fmt: skip
        self.norms = nn.CellList([nn.LayerNorm((WIDTH,)) for _ in range(2)])
        self.up = ops.MatMul().shard(((1, 1), (1, 2)))
        self.down = ops.MatMul().shard(((1, 2), (2, 1)))
        self.add = ops.Add().shard(((1, 1), (1, 1)))
        for norm in self.norms:
            norm.layer_norm.shard(((1, 1), (1,), (1,)))

    def construct(self, x: Any) -> Any:
        for number, norm in enumerate(self.norms):
            inner = ops.tanh(self.up(norm(x), self.weights[2 * number]))
            x = self.add(x, self.down(inner, self.weights[2 * number + 1]))
        return ops.reduce_mean(ops.square(self.norms[0](x)))


def check_places(graph: Graph) -> None:
    """A value that is left to its reader is in the place of its operand, and nothing of the reader's is there."""
    places = plan_memory(graph).places
    for node in filter(is_summed_by_reader, graph.nodes):
        (own,), (operand,) = places[node], places[node.inputs[0]]
        assert (own.kind, own.offset, own.nbytes) == (operand.kind, operand.offset, operand.nbytes)
        (reader,) = (each for each in graph.nodes if node in each.inputs)
        for place in places[reader]:
            assert place.offset + place.nbytes <= own.offset or own.offset + own.nbytes <= place.offset


@pytest.mark.parametrize("sums", [True, False], ids=["peers", "no way to peers"])
def test_norms_add_up_what_two_ranks_hold(sums: bool, tmp_path: Path) -> None:
    network = Halves()
    train = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    x = Tensor(np.random.default_rng(6).standard_normal((ROWS, WIDTH)).astype(np.float32))
    config = Config(ranks=2, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU")
    found = compile_call(train, (x,), config)
    assert sum(map(is_summed_by_reader, found.rank_graph(0).nodes)) == 2
    check_places(found.rank_graph(0))
    wanted, got = (steps(found, [x.asnumpy()], tmp_path, gpu, gpu and sums) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-5)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


# Batch norms of two ranks on emulated GPUs beside NumPy.


CHANNELS = 6


class Norms(nn.Cell):
    """Two batch norms, the second of what a ReLU leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS, momentum=0.5)
        self.relu, self.loss = nn.ReLU(), nn.MSELoss()

    def construct(self, x: Any, y: Any) -> Any:
        return self.loss(self.second(self.relu(self.first(x))), y)


def test_trained_norms_equal_numpys(tmp_path: Path) -> None:
    set_seed(1)
    network = Norms()
    step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    step.set_train()
    generator = np.random.default_rng(4)
    data = [generator.standard_normal((4, CHANNELS, 5, 5)).astype(np.float32) for _ in range(2)]
    config = Config(ranks=2, mode="auto_parallel", dataset_strategy="full_batch", device="GPU")
    found = compile_call(step, [Tensor(each) for each in data], config)
    wanted, got = (steps(found, data, tmp_path, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-4)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=2e-3, atol=2e-5, err_msg=name)


# FetchRows and SendRows on several emulated GPUs beside NumPy's: in one round and in many, whatever the places are.


def launched(op: Any, device: EmulatedGpu, shape: tuple[int, ...], *operands: Any) -> Any:
    """The content of an array of a dtype and a shape after a launch."""
    out = device.empty(shape, operands[0].dtype)
    launch = op.launch(device, out, *operands)
    launch()
    first = out.copy()
    launch()  # whatever was left in memory by the time before
    np.testing.assert_array_equal(first, out)
    return out


CASES = [((2, 0, 1), np.float32, 6), ((2, 0, 1), np.float32, 2), ((0, 1), ml_dtypes.bfloat16, 2)]


@pytest.mark.parametrize(("group", "dtype", "rows"), CASES)
def test_beside_numpy(
    group: tuple[int, ...], dtype: Any, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rows: that two ranks exchange in one round."""
    count, size = len(group), np.dtype(dtype).itemsize
    monkeypatch.setattr(expert_rows, "ROUND_BYTES", rows * 4 * count * size)
    for rank in group:
        (tmp_path / str(rank)).mkdir()
    r = np.random.default_rng(3)
    table = np.rint(8 * r.normal(size=(count * 3, 4))).astype(dtype)
    named = [
        r.integers(-1, len(table) + 1, (count, 6)),
        np.full((count, 6), len(table) - 1),
        np.where(np.arange(count)[:, None] % 2, -1, r.integers(0, 3, (count, 6))),
    ]

    def check(comm: LocalComm) -> None:
        backend, mine = NumPyBackend(comm), group.index(comm.rank)
        device = EmulatedGpu(tmp_path / str(comm.rank), EmulatedNccl(comm))
        own = np.split(table, count)[mine]
        given = np.rint(8 * np.random.default_rng(mine).normal(size=(6, 4))).astype(dtype)
        for every in named:
            places = every[mine].astype(np.int32)
            fetch = FetchRows(total=len(table), rank_list=group)
            same(launched(fetch, device, given.shape, own, places), fetch.kernel(backend)(own, places))
            for sets in (False, True):
                send = SendRows(size=len(own), total=len(table), sets=sets, rank_list=group)
                same(launched(send, device, own.shape, given, places), send.kernel(backend)(given, places))

    World(count).run(check)


def test_a_step_of_captured_parts(tmp_path: Path) -> None:
    """Without side streams what lies between two exchanges is one CUDA graph."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()

    def check(comm: LocalComm) -> int:
        graph = fetched_and_sent((0, 1), 16, 30, 8)
        device = EmulatedGpu(tmp_path / str(comm.rank), EmulatedNccl(comm))
        executor = GpuExecutor(graph, device, {}, host=comm)
        r = np.random.default_rng(comm.rank)
        for _ in range(4):
            table = np.rint(4 * r.normal(size=(16, 8))).astype(np.float32)
            places = r.integers(-1, 33, 30).astype(np.int32)
            wanted = Executor(graph, NumPyBackend(comm), {}).run([table, places])[0]
            np.testing.assert_array_equal(executor.run([table, places])[0].fetch(), wanted)
        return device.captures

    assert all(World(2).run(check))


class Experts(nn.Cell):
    """Four experts of each two rows' choice, whose rows are sorted; two ranks share them."""

    def __init__(self) -> None:
        super().__init__()
        r = np.random.default_rng(1)
        self.up, self.down = (Parameter(Tensor(r.normal(size=(4, 8, 8)).astype(np.float32) / 3)) for _ in range(2))
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        for product in (self.first, self.second):
            product.shard(((1, 1), (2, 1, 1), (1,)))

    def construct(self, x: Any, experts: Any) -> Any:
        rows, back = ops.moe_token_permute(x, experts)
        one, none = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), 4, one, none).sum(0), 0).astype(ms.int64)
        hidden = ops.silu(self.first([rows], [self.up], None, None, None, None, None, ends)[0])
        found = self.second([hidden], [self.down], None, None, None, None, None, ends)[0]
        return (ops.moe_token_unpermute(found, back) ** 2).mean()


def test_a_step_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> tuple[Any, list[str]]:
        network = Experts()
        step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
        found = compile_call(step, operands, Config(ranks=2, mode="semi_auto_parallel", device="GPU"))
        return found, [node.op.name for node in found.rank_graph(0).nodes if node.op.name in ("FetchRows", "SendRows")]

    r = np.random.default_rng(2)
    operands = [Tensor(r.normal(size=(8, 8)).astype(np.float32)), Tensor(r.integers(0, 4, (8, 2)).astype(np.int32))]
    assert not compiled()[1], "an exchange takes longer than to gather so few rows"
    passes = [step for step in pipeline.STEPS if step.name != "exchange_large_tables"]
    passes = [replace(step, device="") if step.name == "exchange_rows" else step for step in passes]
    monkeypatch.setattr(pipeline, "STEPS", tuple(passes))
    found, exchanges = compiled()
    assert {"FetchRows", "SendRows"} == set(exchanges)
    feeds = [operand.asnumpy() for operand in operands]
    wanted, got = (steps(found, feeds, tmp_path, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-5)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
