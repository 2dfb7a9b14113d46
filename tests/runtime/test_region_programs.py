"""Programs whose texts have graphs that nodes run, by `mspc run DIR`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from mspc.commands.run import run_directory
from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.runtime.device_choice import DeviceOptions
from tests.conftest import HANG
from tests.runtime.region_programs import GROWS, STAYS, counting_up, growing_together, write_program
from tests.serving import SERVED

INPUTS = ("x", "limit")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.float32(1), limit=np.float32(5.5))
    return path


def test_a_loop_runs_from_its_text(tmp_path: Path, data: Path) -> None:
    folder = write_program(tmp_path / "out", [counting_up()], INPUTS)
    run_directory(folder, data=data, save_outputs=tmp_path / "found.npz")
    assert np.load(tmp_path / "found.npz")["output0"] == 6


def test_a_loop_without_end_is_stopped_and_named(tmp_path: Path, data: Path) -> None:
    folder = write_program(tmp_path / "out", [counting_up(body=STAYS)], INPUTS)
    with pytest.raises(ExecutionError) as caught:
        run_directory(folder, data=data, wishes=DeviceOptions(timeout=0.3))
    assert caught.value.message.startswith("While failed on rank 0 in step 1: it has run for more than 0.3 s, ")
    assert caught.value.message.endswith(" turns so far, and its condition still holds")
    assert str(caught.value.frames[0]).startswith("net.py:7")


def test_a_failure_inside_has_its_line(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank reads source lines only when it needs them."""
    shown = GROWS.replace("%0 = Add(%para5_x, Tensor(shape=[], dtype=Float32, value=1))", (
        "%0 = Print(%para5_x) primitive_attrs: {lines: (\"{}\")}"
    )).replace("(<Tensor[Float32], ()>, <Tensor[Float32], ()>) ->", "(<Tensor[Float32], ()>) ->")  # fmt: skip
    folder = write_program(tmp_path / "out", [counting_up(body=shown, more=", has_side_effect: true")], INPUTS)
    monkeypatch.setattr("mspc.ops.control.print._filled", lambda line, arrays: 1 / 0)
    with pytest.raises(ExecutionError) as caught:
        run_directory(folder, data=data)
    assert caught.value.message.startswith("Print failed on rank 0 in step 1 in turn 0 of While: ")
    assert str(caught.value.frames[0]).startswith("net.py:8")


def test_graphs_that_no_node_runs_are_refused(tmp_path: Path, data: Path) -> None:
    text = counting_up()
    region = text[text.index("%para3_x: <") : text.index("%para5_x: <")]
    surplus = region.replace("para3", "para7").replace("para4", "para8").replace("@condition", "@surplus")
    text = text.replace("subgraph: 3", "subgraph: 4") + "\n" + surplus
    with pytest.raises(MspcError, match="surplus"):
        run_directory(write_program(tmp_path / "out", [text], INPUTS), data=data)


def run_on_two_ranks(folder: Path, data: Path) -> subprocess.CompletedProcess[str]:
    line = [find_mpirun(), "-n", "2", "--oversubscribe", "--bind-to", "none", *SERVED, "run", str(folder)]
    line += ["--data", str(data), "--save-outputs", str(folder / "found.npz")]
    return subprocess.run(line, env=mpirun_environment(), capture_output=True, text=True, timeout=HANG, check=False)


def on_two_ranks(tmp_path: Path, *by: int) -> Path:
    texts = [
        counting_up(rank, 2, growing_together(number), ", has_side_effect: true, is_collective: true")
        for rank, number in enumerate(by)
    ]
    return write_program(tmp_path / "out", texts, INPUTS)


def test_ranks_meet_inside_of_a_loop(tmp_path: Path, data: Path) -> None:
    folder = on_two_ranks(tmp_path, 1, 1)
    done = run_on_two_ranks(folder, data)
    assert done.returncode == 0, done.stderr
    assert np.load(folder / "found.npz")["output0"] == 7  # 1, 3, 7


def test_ranks_whose_turns_differ_are_named_and_none_hangs(tmp_path: Path, data: Path) -> None:
    done = run_on_two_ranks(on_two_ranks(tmp_path, 1, 5), data)  # 1, 3, 7 and, once they have met, 1, 7
    assert done.returncode == 1, done.stderr
    told = "net.py:7:9: error: rank 1 has left While after 1 turn, but rank 0 is in step 1, at While, in turn 1"
    assert told in done.stderr
    assert "ranks 0, 1 meet inside: there a condition or a number of turns must be the same" in done.stderr
