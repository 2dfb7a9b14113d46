"""FetchRows and SendRows on several emulated GPUs beside NumPy's: in one round and in many, whatever the places are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler import pipeline
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.cuda import row_exchange
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.rows_programs import fetched_and_sent
from tests.gpu.test_ranks import EmulatedNccl, steps
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")


def launched(op: Any, device: EmulatedGpu, shape: tuple[int, ...], *operands: Any) -> Any:
    """What a launch leaves in an array of a dtype and a shape."""
    out = device.empty(shape, operands[0].dtype)
    launch = op.launch(device, operands, out)
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
    monkeypatch.setattr(row_exchange, "ROUND_BYTES", rows * 4 * count * size)
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
