"""What the host has to know to launch products of groups of rows is copied once in a step, and early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.gpu.host_reads import HostRead
from tests.gpu.programs import compiled
from tests.gpu.test_gpu_executor import device

STEPS = 4


def test_ends_of_groups_are_copied_once_for_all_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    begin = HostRead.begin
    monkeypatch.setattr(HostRead, "begin", lambda read: (begun.append(read), begin(read)))
    graph, values, feeds = compiled("experts", "GPU")
    gpu = GpuExecutor(graph, device(tmp_path), {key: np.array(value) for key, value in values.items()})
    cpu = Executor(graph, NumPyBackend(OneRank()), {key: np.array(value) for key, value in values.items()})
    for step in range(STEPS):
        fed = [feed + np.float32(0.1 * step) for feed in feeds]
        np.testing.assert_allclose(np.asarray(gpu.run(fed)[0]), cpu.run(fed)[0], rtol=2e-5)
    assert gpu.captured
    assert len(begun) == STEPS
    assert len(set(begun)) == 1


def test_ends_of_groups_are_made_ahead_of_what_does_not_need_them() -> None:
    graph = compiled("experts", "GPU")[0]
    names = [node.op.name for node in graph.nodes]
    assert names.index("CumSum") < names.index("Sort") < names.index("GroupedProduct")
