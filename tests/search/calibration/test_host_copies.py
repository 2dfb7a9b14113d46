"""Copies to the host and from it are timed on a GPU's executor, each way alone and both at once."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, HOST_COPIES
from mspc.engine.job import Job
from mspc.ir.graph import OFFLOAD, Graph
from mspc.ir.types import FLOAT32
from mspc.runtime.device_choice import DeviceChoice, GpuMemory
from mspc.search.calibration import measured
from mspc.search.calibration.timed_operators import TimingSizes
from mspc.search.calibration.timer import Timer, copies, host_rates
from tests.executors import GpuExecutor, OneRank
from tests.gpu.test_shadow_weights_gpu import gpu

SIZES = TimingSizes((8,), (), (), (1 << 8, 1 << 20, 1 << 21), (1 << 8,), (FLOAT32,), (), rotated=1 << 22, kinds=True)


@pytest.mark.parametrize(("leaves", "comes"), [(True, False), (False, True), (True, True)])
def test_copies_take_turns_on_streams_of_their_own(leaves: bool, comes: bool) -> None:
    graph = Graph("copies")
    copies(1 << 20, 1 << 21, leaves, comes, graph, 5)
    streams = [node.attrs["stream"] for node in graph.nodes if "stream" in node.attrs]
    assert sorted(streams) == ["from_host"] * 5 * comes + ["to_host"] * 5 * leaves
    hosts = [p for p in graph.parameters if OFFLOAD in p.attrs]
    assert len(hosts) == 2 * (leaves + comes)
    assert len(graph.parameters) == len(hosts) + leaves


def test_pinned_memory_is_copied_on_the_gpus_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = gpu(tmp_path / "kernels")
    copied: list[int] = []

    def executor(graph: Any, _: Any, values: Any, *__: Any, **___: Any) -> GpuExecutor:
        made = GpuExecutor(graph, device, values)
        copied.append(made.plan.kept_on_host)
        return made

    hardware: Any = SimpleNamespace(
        choice=DeviceChoice("gpu", 0), local_rank=0, memory=GpuMemory(device), executor=executor,
        release=GpuExecutor.finish,
    )
    timer = Timer(Job(OneRank(), OneRank(), hardware=hardware), SIZES)
    said: list[str] = []
    rates = host_rates(timer, 1e-6, said.append)
    assert said == ["copies to the host", "copies from the host", "copies both ways"]
    assert [amount for amount, _ in rates.both.points] == [1 << 20, 1 << 21]
    assert min(copied) > 0
    assert rates.text.startswith("copies to the host at ")


def test_the_machine_has_the_rate_of_both_ways_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds_per_copy(fill: Any) -> float:
        graph = Graph("copies")
        fill(graph, 4)
        streams = {node.attrs["stream"] for node in graph.nodes if "stream" in node.attrs}
        nbytes = graph.parameters[0].tensor_type.nbytes
        return 1e-6 + nbytes / {("to_host",): 50e9, ("from_host",): 55e9}.get(tuple(streams), 40e9)

    timer: Any = SimpleNamespace(sizes=SIZES, measured=lambda _, measure: measure())
    timer.seconds_per_copy = seconds_per_copy
    rates = host_rates(timer, 1e-6, lambda _: None)
    monkeypatch.setattr(measured, "traffic", lambda _: ())
    machine = measured._with_traffic(replace(H200, kernel=1e-6), timer, lambda _: None)  # pyright: ignore[reportPrivateUsage]  # what a file of rates gets
    assert machine.traffic[HOST_COPIES] == rates.both
    assert rates.both.at(1 << 21) == pytest.approx(40e9)
    assert machine.source.endswith("; copies to the host at 50 GB/s, from it at 55, both at once at 40 each way")
