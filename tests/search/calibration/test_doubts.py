"""`mspc calibrate` on a machine that does other work, by timings that are put in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.analysis.cost.machine import H200, Link, Machine, Rate
from mspc.analysis.cost.nodes import seconds
from mspc.cli import app
from mspc.engine.job import Job
from mspc.ir.diagnostics import MspcError
from mspc.ops.collective.one_rank import OneRank
from mspc.passes.base import VERIFY
from mspc.runtime.comm.local import World
from mspc.runtime.device_choice import Hardware
from mspc.search.calibration import measured as calibration
from mspc.search.calibration.machine_file import read_machine, write_machine
from mspc.search.calibration.measured import calibrate
from mspc.search.calibration.timer import Timer, empty_step, without_drops
from tests.search.calibration.test_calibration import SMALL

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
    done = CliRunner().invoke(app, ["calibrate", "--out", "here.toml", "--device", "cpu", "-q"])
    assert done.exit_code == 0, done.output
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
    done = CliRunner().invoke(app, ["search", "net.py", "--ranks", "2", "--machine", "busy.toml"])
    assert done.exit_code == 0, done.output
    assert "warning: the machine busy.toml is not to be believed" in done.stderr
    assert "note: links: 11 ms for a small AllReduce" in done.stderr
    assert "`mspc calibrate --out busy.toml`" in done.stderr


def test_doubts_that_are_none(tmp_path: Path) -> None:
    write_machine(tmp_path / "m.toml", replace(KNOWN, doubts=("x",)))
    text = (tmp_path / "m.toml").read_text().replace('doubts = ["x"]', "doubts = 3")
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(MspcError, match="doubts is 3, not a list of texts"):
        read_machine(tmp_path / "m.toml")
