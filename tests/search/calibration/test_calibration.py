"""`mspc calibrate`: rates of this machine, measured and written as a file that says the same."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, Link, Machine, Rate
from mspc.analysis.cost.nodes import seconds, sent_bytes, work_of
from mspc.engine.job import Job
from mspc.ir.types import FLOAT32
from mspc.runtime.device_choice import DeviceChoice, Hardware, SharedMemory
from mspc.search.calibration import measured as calibration
from mspc.search.calibration.machine_file import read_machine, write_machine
from mspc.search.calibration.measured import calibrate
from mspc.search.calibration.timed_operators import TimingSizes, collectives, products
from mspc.search.calibration.timer import Timer, rates_of
from tests.executors import GpuExecutor, OneRank, World
from tests.gpu import test_gpu_executor
from tests.gpu.test_gpu_executor import TimedGpu
from tests.serving import invoke

SMALL = TimingSizes((8, 32), (((1, 4, 8),),), (), (1 << 8, 1 << 12), (1 << 8, 1 << 12, 1 << 14), (FLOAT32,),
              (FLOAT32,))  # fmt: skip


def test_one_rank_measures_what_it_computes() -> None:
    said: list[str] = []
    machine = calibrate(Job(OneRank(), OneRank()), "here", said.append, SMALL)
    assert (machine.name, machine.device, machine.ranks_per_host, machine.network) == ("here", "CPU", 0, None)
    assert [amount for amount, _ in machine.work["products"]["Float32"].points] == [2 * 8**3, 2 * 32**3]
    assert [amount for amount, _ in machine.memory.points] == [3 * 256, 3 * 4096]
    assert 0 < machine.kernel < 1e-2
    assert said == ["small operators", "memory", "links", "products of Float32", "convolutions of Float32",
                    "convolution inputs of Float32", "convolution filters of Float32",
                    "pointwise convolutions of Float32", "pointwise convolution inputs of Float32",
                    "pointwise convolution filters of Float32"]  # fmt: skip


def test_what_no_time_is_left_for_is_named() -> None:
    machine = calibrate(Job(OneRank(), OneRank()), "here", sizes=SMALL, limit=1e-9)
    assert list(machine.work) == ["products"]
    assert machine.source.startswith("measured by mspc calibrate on 1 rank; no time was left for convolutions of")


def test_ranks_measure_their_links_together() -> None:
    def measure(comm: Any, per_host: int = 3) -> Machine:
        hardware = Hardware(local_rank=comm.rank % per_host, simulated=True)
        return calibrate(Job(comm, comm, hardware=hardware), "three", sizes=SMALL)

    found = World(3).run(measure)
    assert all(set(machine.link.own) == {"AllGather", "ReduceScatter", "AlltoAll"} for machine in found)
    assert all(machine.link.latency > 0 for machine in found)
    hosts = World(4).run(lambda comm: measure(comm, 2))
    assert {machine.ranks_per_host for machine in hosts} == {2}
    assert all(machine.network is not None for machine in hosts)


def test_the_gpus_executor_is_measured_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_gpu_executor, "EmulatedGpu", TimedGpu)
    def executor(graph: Any, _: Any, values: Any, *__: Any, number: int, **___: Any) -> GpuExecutor:
        folder = tmp_path / str(number)  # a device's kernels are in a library of this folder
        folder.mkdir()
        return GpuExecutor(graph, test_gpu_executor.device(folder), values)

    hardware: Any = SimpleNamespace(
        choice=DeviceChoice("gpu", 0), local_rank=0, memory=SharedMemory(), executor=executor,
        release=GpuExecutor.finish,
    )
    timer = Timer(Job(OneRank(), OneRank(), hardware=hardware), SMALL)
    times = timer.times(products(SMALL, FLOAT32))
    assert [[node.op.name for node in group] for group, _ in times] == [["MatMul"] * 3] * 2
    assert all(0 < each < 10 for _, each in times)


class Pretended:
    """Takes the place of a timer of a machine whose rates are known."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def times(self, groups: Any) -> list[tuple[Any, float]]:
        return [(group, sum(seconds(node, self.machine) for node in group)) for group in groups]


def test_rates_are_found_again() -> None:
    link = Link(20e-6, Rate.of(2e9), 3e-6)
    slow = {"products": {"Float32": Rate.of(1e9)}}
    known = replace(H200, device="CPU", work=slow, link=link, kernel=2e-6, ranks_per_host=0, network=None)
    timer: Any = Pretended(known)
    rate = rates_of(timer.times(products(SMALL, FLOAT32)), known.kernel, work_of)
    assert rate.at(2 * 32**3) == pytest.approx(1e9)
    timer.job = SimpleNamespace(rank=0)
    timer.sizes = replace(SMALL, sent=(1 << 8, 1 << 16, 1 << 18))
    found = Timer.link(timer, range(4))
    assert found.latency == pytest.approx(20e-6, rel=0.1)
    assert found.hop == pytest.approx(3e-6, rel=0.1)
    for own in (found, *found.own.values()):
        assert own.bandwidth.at(1 << 16) == pytest.approx(2e9, rel=0.1)
        assert own.bandwidth.at(1 << 18) == pytest.approx(2e9, rel=0.01)
    sizes = collectives(SMALL, (0, 1, 2), 0)
    assert {node.op.name for [node] in sizes} == {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"}
    assert sent_bytes(sizes[0][0]) > 0


@pytest.mark.parametrize("name", sorted(KNOWN_MACHINES))
def test_a_machine_that_is_written_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    machine = KNOWN_MACHINES[name]
    own = Link(1e-5, Rate(((1e3, 1e9), (1e6, 5e10))), 1e-6)
    machine = replace(machine, link=replace(machine.link, own={"AlltoAll": own}), source='with "quotes" and\nlines')
    write_machine(tmp_path / "m.toml", machine)
    assert read_machine(tmp_path / "m.toml") == machine


@pytest.mark.usefixtures("own_folder")
def test_the_command_writes_a_file_that_the_search_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ON_CPU", SMALL)
    words = ["calibrate", "--out", "here.toml", "--device", "cpu", "--name", "this one", "-q"]
    done = invoke(*words, "--tf32")  # as earlier versions took it
    assert done.exit_code == 0, done.output
    assert "`mspc search --machine here.toml` takes them" in done.stdout
    machine = read_machine(Path("here.toml"))
    assert (machine.name, machine.source) == ("this one", "measured by mspc calibrate on 1 rank")
    assert np.isfinite(machine.memory.seconds(1e6))


def test_what_the_command_cannot_write(tmp_path: Path) -> None:
    done = invoke("calibrate", "--out", str(tmp_path / "here.json"), status=2)
    assert "a machine's file ends in .toml" in done.stderr
