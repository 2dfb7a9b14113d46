"""Sharded steps on several emulated GPUs beside NumPy: planned memory, real kernels, collectives in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.graph import Graph
from mspc.ops.collective.base import is_summed_by_reader
from mspc.ops.device import RankSum
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.slices import slice_parameter
from tests.gpu.emulated import EmulatedGpu
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
        """Of copies of all parts, which are made when the kernel is launched, and others' signs are there ahead."""
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

    def all_can(self, able: bool, ranks: Any) -> bool:
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

    def tell(self, numbers: Any, ranks: Any) -> Any:
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
    """Of every rank the losses of three steps and the parameters then. sums: kernels add up what ranks hold."""
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
    """What is left to its reader lies in the place of its operand, and nothing of the reader's lies there."""
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
