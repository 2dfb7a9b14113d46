"""Stages of a pipeline of PyTorch, recorded and compared with the step of one device."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from mspc.readers.pytorch.captured import read_rank
from tests.conftest import HANG
from tests.readers.pytorch.test_captures import captured, verified
from tests.serving import SERVED
from tests.shares import share_of

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent / "captured_stages.py"
PARTS = 4


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("stages") / "single", 1, 1, 1, script=SCRIPT)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, each sharded over two ranks."""
    return captured(tmp_path_factory.mktemp("stages") / "ranks", 4, 2, 2, "1f1b", script=SCRIPT)


def test_stages_together_compute_the_step_of_one_device(staged: Path, single: Path) -> None:
    done = verified(staged, single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: 242 values of 4 ranks of 2 kinds" in done.stdout  # loss, gradients, parameters and states, 2 steps
    assert "their mean is compared" in done.stdout


@pytest.mark.thorough
def test_schedules(single: Path, tmp_path: Path) -> None:
    cases = ((2, "interleaved"), (2, "gpipe"), (2, "hand"), (4, "1f1b"))
    for stages, schedule in cases[: share_of(len(cases))]:
        done = verified(captured(tmp_path / schedule, stages, stages, 1, schedule, script=SCRIPT), single)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"equal: 242 values of {stages} ranks of {stages} kinds" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schedule", "fault", "said"),
    [
        ("gpipe", "dropped", r"error: 145 of 242 [^\n]*\n    return x \+ self.down[\s\S]* in layers.1\S* on rank 0"),
        ("gpipe", "scale", r"error: 193 of 242 [^\n]*\n    return \(\(x - y\)[\s\S]*4 times too large"),
        ("hand", "swapped", r"error: 190 of 242 [^\n]*\n    return \(\(x - y\)[\s\S]*Sub on rank 1"),
    ],
)  # fmt: skip
def test_faults_are_found(schedule: str, fault: str, said: str, single: Path, tmp_path: Path) -> None:
    done = verified(captured(tmp_path / "ranks", 2, 2, 1, schedule, fault, script=SCRIPT), single)
    assert done.returncode == 1, done.stdout
    assert re.search(said, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("fault", "said"),
    [("", "equal: 312 values of 4 ranks of 2 kinds"),
     pytest.param("scale", "137 of 312 values of 4 ranks of 2 kinds differ", marks=pytest.mark.thorough)],
    ids=["right", "experts' gradients are not divided"],
)  # fmt: skip
def test_experts_of_ranks_in_stages(fault: str, said: str, tmp_path: Path) -> None:
    """Rows go to experts in turns: as many are left as a turn has."""
    script = Path(__file__).parent / "captured_experts.py"
    single = captured(tmp_path / "single", 1, 1, 2, "small", script=script)
    done = verified(captured(tmp_path / "ranks", 4, 2, 2, "small", fault, script=script), single)
    assert done.returncode == bool(fault), done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_messages_are_numbered_and_stages_have_their_own_parameters(staged: Path) -> None:
    first, last = read_rank(staged, 1), read_rank(staged, 3)
    names = {each.qualified for each in first.program.inputs if each.kind == "parameter"}
    assert {name.split(".")[1] for name in names} == {"0", "1"}
    assert (first.has_loss, last.has_loss) == (False, True)
    for step in (first, last):
        kinds = Counter(node.target for node in step.program.graph.nodes)
        assert (kinds["c10d.send.default"], kinds["c10d.recv_.default"]) == (PARTS, PARTS)
        tags = [dict(node.arguments)["tag"] for node in step.program.graph.nodes if node.target == "c10d.send.default"]
        assert tags == list(range(PARTS))


@pytest.mark.thorough
def test_schedules_run_with_equal_losses(tmp_path: Path) -> None:
    losses: list[list[float]] = []
    for schedule in ("1f1b", "interleaved"):
        folder = captured(tmp_path / schedule, 2, 2, 1, schedule, options=("--values",), script=SCRIPT)
        compiled = str(tmp_path / f"{schedule} compiled")
        for command in (["compile", str(folder), "--out"], ["run", "--simulate", "--synthetic", "--steps", "3"]):
            done = subprocess.run([*SERVED, *command, compiled], capture_output=True, text=True, timeout=HANG)
            assert done.returncode == 0, done.stderr
        losses.append([float(found) for found in re.findall(r"loss is (\S+)", done.stdout)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][0] > losses[0][2] > 0
