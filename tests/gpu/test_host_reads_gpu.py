"""What the host has to know to launch products of groups of rows is copied once in a step, and early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, INT32, INT64, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.experts import ExpertPlaces, ExpertProduct
from mspc.ops.op import load_operators
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.gpu.host_reads import HostRead
from tests.gpu.programs import compiled
from tests.gpu.test_gpu_executor import device

STEPS = 4


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[HostRead]:
    """Whatever begins to copy, as often as it does."""
    found: list[HostRead] = []
    begin = HostRead.begin
    monkeypatch.setattr(HostRead, "begin", lambda read: (found.append(read), begin(read)))
    return found


def test_ends_of_groups_are_copied_once_for_all_products(tmp_path: Path, begun: list[HostRead]) -> None:
    graph, values, feeds = compiled("experts", "GPU")
    gpu = GpuExecutor(graph, device(tmp_path), {key: np.array(value) for key, value in values.items()})
    cpu = Executor(graph, NumPyBackend(OneRank()), {key: np.array(value) for key, value in values.items()})
    for step in range(STEPS):
        fed = [feed + np.float32(0.1 * step) for feed in feeds]
        np.testing.assert_allclose(np.asarray(gpu.run(fed)[0]), cpu.run(fed)[0], rtol=2e-5)
    assert gpu.captured
    assert len(begun) == STEPS
    assert len(set(begun)) == 1


def test_ends_in_blocks_are_copied_once_behind_what_makes_them(tmp_path: Path, begun: list[HostRead]) -> None:
    load_operators()
    graph = Graph("blocks")
    graph.attrs |= {"mode": "stand_alone", "ranks": 1}
    b = Builder(graph)
    types = {
        "ends": TensorType(INT64, (4,)), "source": TensorType(INT32, (16,)), "x": TensorType(FLOAT32, (32, 4)),
        "w": TensorType(FLOAT32, (4, 4, 4)),
    }  # fmt: skip
    ends, source, x, w = graph.parameters = [Parameter(name, type, kind="input") for name, type in types.items()]
    in_blocks = b.emit(TupleGetItem(3), b.emit(ExpertPlaces(parts=2), ends, source))
    once = b.emit(ExpertProduct(), x, w, in_blocks)
    graph.results = [b.emit(ExpertProduct(transpose_b=True), once, w, in_blocks)]
    draw = np.random.default_rng(1)
    feeds = [
        np.array([3, 9, 9, 16]), np.arange(16, dtype=np.int32), draw.standard_normal((32, 4), np.float32),
        draw.standard_normal((4, 4, 4), np.float32),
    ]  # fmt: skip
    gpu, cpu = GpuExecutor(graph, device(tmp_path), {}), Executor(graph, NumPyBackend(OneRank()), {})
    for _ in range(STEPS):
        np.testing.assert_allclose(np.asarray(gpu.run(feeds)[0]), cpu.run(feeds)[0], rtol=1e-5)
    assert len(begun) == 3 * STEPS  # what `ExpertPlaces` checks are two arrays


def test_ends_of_groups_are_made_ahead_of_what_does_not_need_them() -> None:
    graph = compiled("experts", "GPU")[0]
    names = [node.op.name for node in graph.nodes]
    assert names.index("CumSum") < names.index("Sort") < names.index("GroupedProduct")
