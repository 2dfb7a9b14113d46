"""Sharded steps on several emulated GPUs beside NumPy: planned memory, real kernels, collectives in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.slices import slice_parameter
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.sharded import HEADS, build
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")


class EmulatedNccl:
    """`DeviceCommunicator` on arrays of NumPy, between the ranks of a simulation."""

    def __init__(self, comm: LocalComm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def combines(self, dtype: Any, op: str) -> bool:
        return True

    def direct(self, name: str, array: Any, out: Any, op: str, ranks: Any) -> Any:
        return None

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


def steps(found: Any, feeds: Any, folder: Path, gpu: bool) -> list[tuple[list[float], dict[str, Any]]]:
    """Of every rank the losses of three steps and the parameters then."""
    count = found.graph.attrs["ranks"]
    graphs = [found.rank_graph(rank) for rank in range(count)]
    full = {name: np.asarray(p.value) for name, p in found.traced.parameters.items()}
    folders = [folder / str(rank) for rank in range(count)]
    for each in folders:
        each.mkdir(exist_ok=True, parents=True)

    def run(comm: LocalComm) -> tuple[list[float], dict[str, Any]]:
        graph = graphs[comm.rank]
        own = {p.name: np.array(slice_parameter(p, full[p.name], comm.rank, "")) for p in graph.parameters
               if p.kind == "parameter"}  # fmt: skip
        own |= {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
        executor: Any
        if gpu:
            executor = GpuExecutor(graph, EmulatedGpu(folders[comm.rank], EmulatedNccl(comm)), own, host=comm)
        else:
            executor = Executor(graph, NumPyBackend(comm), own)
        losses = [float(np.asarray(executor.run(feeds)[0])) for _ in range(3)]
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
