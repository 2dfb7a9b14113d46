"""Copies of an operator that `mspc calibrate` times find nothing in a cache, and ranks take as many steps."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.analysis.cost.machine import H200, Link, Machine, Rate
from mspc.analysis.cost.nodes import seconds
from mspc.engine.job import Job
from mspc.passes.base import VERIFY
from mspc.runtime.device_choice import DeviceChoice, GpuMemory, Hardware
from mspc.search.calibration import measured as calibration
from mspc.search.calibration import timed_operators
from mspc.search.calibration import timer as timing
from mspc.search.calibration.machine_file import read_machine, write_machine
from mspc.search.calibration.measured import calibrate
from mspc.search.calibration.timed_operators import node_of
from mspc.search.calibration.timer import Timer, empty_step, without_drops
from tests.executors import GpuExecutor, OneRank, World, plan_memory
from tests.gpu.test_shadow_weights_gpu import gpu
from tests.graphs import FLOAT32, INT32, Graph, MspcError, TensorType
from tests.operators import Add, GatherGrad, MatMul, Slice
from tests.search.calibration.test_calibration import SMALL
from tests.serving import invoke

SIDE = 64
NBYTES = SIDE * SIDE * 4


def filled(fill: Any, op: Any, rotated: int, count: int) -> Graph:
    graph = empty_step(1)
    fill(node_of(op, FLOAT32, (SIDE, SIDE), (SIDE, SIDE)), rotated, graph, count)
    for i, parameter in enumerate(graph.parameters):
        parameter.name = f"p{i}"
    return graph


@pytest.mark.parametrize(("fill", "op"), [(timing._copies, MatMul()), (timing._sums, Add())])
def test_operands_and_results_take_turns(fill: Any, op: Any) -> None:
    graph = filled(fill, op, 4 * NBYTES, 12)
    plan = plan_memory(graph)
    copies = [node for node in graph.nodes if not isinstance(node.op, Slice)]
    assert len(copies) == 12
    read = [{value.name for value in node.inputs} for node in copies]
    assert all(len(names) == 2 for names in read)
    assert all(one.isdisjoint(two) for one, two in pairwise(read))
    assert len(set().union(*read)) in (4, 5), "no more are made than take turns"
    places = [plan.places[node][0].offset for node in copies]
    assert all(len(set(places[i : i + 4])) == 4 for i in range(9))
    assert plan.arena < 12 * NBYTES


def test_small_results_and_caches_of_cpus_are_left_as_they_are() -> None:
    assert not any(isinstance(node.op, Slice) for node in filled(timing._copies, MatMul(), 1000 * NBYTES, 4).nodes)
    graph = filled(timing._copies, MatMul(), 0, 4)
    assert len(graph.parameters) == 2
    assert len(graph.nodes) == 4


def test_indices_are_spread_and_numbers_differ() -> None:
    graph = empty_step(1)
    one = timing._numbers(TensorType(INT32, (64,)), 128)
    assert (0 <= one).all()
    assert (one < 128).all()
    assert len(np.unique(one)) == 64
    assert len(np.unique(timing._numbers(TensorType(FLOAT32, (64,)), None))) > 60
    made = timed_operators._single_operator(GatherGrad(128), [TensorType(FLOAT32, (64, 8)), TensorType(INT32, (64,))])
    graph.nodes = [made]
    assert timing._index_limits(graph) == {made.inputs[1]: 128}


def test_numbers_come_to_a_gpu_once_for_an_operator(tmp_path: Path) -> None:
    """Operands that take turns are copies of them in its own memory, in each of the three steps that tell a time."""
    device = gpu(tmp_path / "kernels")
    memory, sent, read = GpuMemory(device), list[int](), list[list[int]]()

    def send(host: Any, array: Any) -> None:
        sent.append(array.nbytes)
        array[...] = host

    def executor(graph: Any, _: Any, values: Any, *__: Any, **___: Any) -> GpuExecutor:
        device.send = step_send
        assert {value.tobytes() for value in values.values()} == {drawn.tobytes()}
        read.append([value.ctypes.data for value in values.values()])
        made = GpuExecutor(graph, device, values)
        device.send = send
        return made

    step_send, device.send = device.send, send
    drawn = timing._numbers(TensorType(FLOAT32, (SIDE, SIDE)), None)
    hardware: Any = SimpleNamespace(
        choice=DeviceChoice("gpu", 0), local_rank=0, memory=memory, executor=executor, release=GpuExecutor.finish
    )
    sizes = replace(SMALL, rotated=4 * NBYTES)
    timer = Timer(Job(OneRank(), OneRank(), hardware=hardware), sizes)
    assert timer.seconds(node_of(Add(), FLOAT32, (SIDE, SIDE), (SIDE, SIDE))) > 0
    assert sent == [NBYTES]
    assert [len(set(places)) for places in read] == [4, 4, 2]
    assert timer.seconds(node_of(Add(), FLOAT32, (SIDE, SIDE), (SIDE, SIDE))) > 0
    assert sent == [NBYTES] * 2, "of another operator they are others"


def test_ranks_take_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one rank are slower than those of the other, and collectives would wait for ever."""

    def measure(comm: Any) -> list[tuple[int, int, int]]:
        taken: list[tuple[int, int, int]] = []

        def step(_: Any, count: int, preparing: int, steps: int) -> list[float]:
            taken.append((count, preparing, steps))
            return [count * 1e-6 * (1 + 400 * comm.rank)] * 3

        job = Job(comm, comm, hardware=Hardware(local_rank=comm.rank, simulated=True))
        timer = Timer(job, sizes)
        timer._step = step  # type: ignore[method-assign]
        timer.seconds_per_copy(lambda graph, count: None)
        return taken

    sizes = replace(SMALL, copies=((1e-5, (64, 192)), (1e-3, (4, 12))), settling=0.1)
    first, second = World(2).run(measure)
    assert first == second
    assert first[-1][0] == 4


def test_a_time_limit_is_that_of_the_slowest_rank() -> None:
    timer = Timer(Job(OneRank(), OneRank()), SMALL)
    assert not timer.is_over(0.0, 0.0)
    assert timer.is_over(0.0, 1e-9)


CALM = (1.0, 1.02, 1.05)
KNOWN = replace(
    H200, work={"products": {"Float32": Rate.of(1e9)}}, memory=Rate.of(1e9), kernel=2e-6, ranks_per_host=0,
    network=None, link=Link(20e-6, Rate.of(2e9)), device="CPU",
)  # fmt: skip


def put_in(monkeypatch: pytest.MonkeyPatch, machine: Machine, factors: Callable[[], Any]) -> list[int]:
    """Let steps take what a machine takes, times `factors()` from repeat to repeat; the copies of every step."""
    steps: list[int] = []

    def step(timer: Any, fill: Any, count: int, *_: int) -> list[float]:
        graph = empty_step(timer.job.size)
        fill(graph, count)
        steps.append(count)
        own = replace(machine, rounds=timer.rounds)
        return [factor * (1e-6 + sum(seconds(node, own) for node in graph.nodes)) for factor in factors()]

    monkeypatch.setattr(Timer, "_step", step)
    return steps


def measured() -> Machine:
    return calibrate(Job(OneRank(), OneRank()), "here", sizes=SMALL)


def busy(seed: int = 0) -> Callable[[], list[float]]:
    generator = random.Random(seed)
    return lambda: [generator.uniform(1, 4) for _ in range(3)]


def test_a_calm_machine_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, KNOWN, lambda: CALM)
    machine = measured()
    assert machine.doubts == ()
    assert machine.work["products"]["Float32"].at(2 * 32**3) == pytest.approx(1e9, rel=0.1)


@pytest.mark.usefixtures("own_folder")
def test_a_busy_machine_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ON_CPU", SMALL)
    put_in(monkeypatch, KNOWN, busy())
    done = invoke("calibrate", "--out", "here.toml", "--device", "cpu", "-q", status=0)
    assert "warning: what was measured for here.toml is not to be believed: the machine was busy" in done.stderr
    assert "note: stop other programs, give every rank a core of its own, and calibrate again" in done.stderr
    assert "too busy" in Path("here.toml").read_text()
    assert any("repeats of one step differ by" in why for why in read_machine(Path("here.toml")).doubts)


def test_ranks_agree_on_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, KNOWN, lambda: (1.0, 2.0, 3.0))

    def measure(comm: Any) -> Machine:
        hardware = Hardware(local_rank=comm.rank, simulated=True)
        return calibrate(Job(comm, comm, hardware=hardware), "two", sizes=SMALL)

    found = World(2).run(measure)
    assert {machine.doubts for machine in found} == {found[0].doubts}
    assert "links: repeats of one step differ by 100%" in found[0].doubts


def test_more_work_has_at_least_about_the_rate_of_less() -> None:
    rate = Rate(((1e3, 1e12), (1e6, 9e12), (1e9, 5e12), (1e12, 1e12)))
    assert without_drops(rate).points == ((1e3, 1e12), (1e6, 9e12), (1e9, 5e12), (1e12, 9e12))


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
nn.Dense(16, 16)(Tensor(np.ones((16, 16)), ms.float32))
"""


@pytest.mark.usefixtures("own_folder")
def test_the_search_passes_doubts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    write_machine(Path("busy.toml"), replace(KNOWN, name="busy", doubts=("links: 11 ms for a small AllReduce",)))
    done = invoke("search", "net.py", "--ranks", "2", "--machine", "busy.toml", status=0)
    assert "warning: the machine busy.toml is not to be believed" in done.stderr
    assert "note: links: 11 ms for a small AllReduce" in done.stderr
    assert "`mspc calibrate --out busy.toml`" in done.stderr


def test_doubts_that_are_none(tmp_path: Path) -> None:
    write_machine(tmp_path / "m.toml", replace(KNOWN, doubts=("x",)))
    text = (tmp_path / "m.toml").read_text().replace('doubts = ["x"]', "doubts = 3")
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(MspcError, match="doubts is 3, not a list of texts"):
        read_machine(tmp_path / "m.toml")
