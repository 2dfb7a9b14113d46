"""Captured steps that mspc runs: losses are those of the processes of PyTorch that were captured."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mspc.ir.files.tensors import TensorFile
from mspc.readers.pytorch.captured import read_rank, read_step
from tests.captures import captured, shared
from tests.readers.pytorch.test_captures import captured as part_captured
from tests.readers.pytorch.test_captures import captured as stage_captured
from tests.readers.pytorch.test_captures import verified
from tests.serving import SERVED, succeed
from tests.shares import share_of

pytest.importorskip("torch")
JOBS = Path(__file__).with_name("captured_jobs.py")
KINDS = ("llama", "gpt2", "experts", "stages")[: share_of(4, 4)]


def mspc(*arguments: object) -> str:
    done = succeed(*SERVED, *map(str, arguments))
    return done.stdout


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of all networks: a capture by 4 processes of gloo, its program, the data and the losses."""
    folder = tmp_path_factory.mktemp("jobs")
    succeed(*SERVED, "--torch", JOBS, folder, *KINDS)
    for kind in KINDS:
        mspc("compile", folder / kind / "capture", "--out", folder / kind / "out")
    return folder


def wanted(folder: Path) -> list[float]:
    """Return the losses of gloo; of stages, the last rank has them."""
    found = json.loads((folder / f"losses_{3 if folder.name == 'stages' else 0}.json").read_text())
    assert len(found) == 5
    return found


def losses(folder: Path, *options: object) -> list[float]:
    said = mspc("run", folder / "out", "--data", folder / "data.npz", *options)
    return [float(found) for found in re.findall(r"step: \d+, loss is (\S+)", said)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_gloo(kind: str, jobs: Path) -> None:
    np.testing.assert_allclose(losses(jobs / kind, "--simulate"), wanted(jobs / kind), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS[::3])
def test_losses_under_mpirun_are_those_of_gloo(kind: str, jobs: Path) -> None:
    np.testing.assert_allclose(losses(jobs / kind, "--ranks", 4), wanted(jobs / kind), rtol=1e-5)


def test_saved_weights_are_whole_or_those_of_every_rank(jobs: Path, tmp_path: Path) -> None:
    saved: dict[str, TensorFile] = {}
    for kind in KINDS[:3]:
        path = tmp_path / f"{kind}.safetensors"
        losses(jobs / kind, "--simulate", "--save", path)
        saved[kind] = TensorFile(path)
    assert not any(name.startswith("rank_") for name in saved["llama"].names)
    assert saved["llama"].type("layers.0.feed.gate.weight").shape == (32, 16)  # of tensor parallelism and FSDP
    if len(KINDS) == 1:  # --thorough has the others
        return
    last = read_step(jobs / "gpt2" / "capture" / "rank_3.step").program.weights.tensors["places.weight"]
    assert last.type.shape == (0, 16)  # 6 rows on 4 ranks are slices of 2, 2, 2 and 0
    uneven = ("gpt2", "places.weight"), ("gpt2", "head.weight")
    experts = [("experts", "layers.1.feed.expert.up.weight")] if "experts" in KINDS else []
    for kind, name in (*uneven, *experts):
        assert {name, *(f"rank_{rank}.{name}" for rank in (1, 2, 3))} <= set(saved[kind].names)


@pytest.mark.thorough
def test_values_of_a_capture_without_other_ranks_are_those_of_one_device(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    one = read_step(shared("single", tmp_path_factory) / "rank_0.step").program.weights
    folder = captured(tmp_path / "ranks", 4, 2, 2, options=("--values",))
    mspc("compile", folder, "--out", tmp_path / "out")
    stored = TensorFile(tmp_path / "out" / "weights.safetensors")
    for name in one.tensors:
        if name.startswith("layers"):  # a step of AdamW lies between, with a learning rate of 0.01
            np.testing.assert_allclose(stored.read(name), one.read(name), rtol=0, atol=0.0101)


SCRIPT = Path(__file__).parent / "captured_parts.py"


@pytest.fixture(scope="module")
def single(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return part_captured(tmp_path_factory.mktemp("parts") / request.param, 1, request.param, script=SCRIPT)


@pytest.mark.share(4)
@pytest.mark.parametrize("single", ["experts", "counted", "context", "flex"], indirect=True)
def test_parts_compute_the_step_of_one_device(single: Path, tmp_path: Path) -> None:
    done = verified(part_captured(tmp_path / "ranks", 2, single.name, script=SCRIPT), single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "their mean is compared" in done.stdout


@pytest.mark.share(5)
@pytest.mark.parametrize(("single", "fault", "line"), [
    ("experts", "order", r"back = back.reshape\(sent.shape\)[\s\S]*runs Transpose before it, and these ranks do not"),
    ("experts", "scale", r"parameter.grad /= [\s\S]*2 times too large"),
    ("counted", "order", r"return x \+ \(exchanged\(back\)"),
    ("context", "offset", r"x = x \+ self.places\[begin : "),
    ("flex", "offset", r"x = x \+ self.places\[begin : "),
], indirect=["single"])  # fmt: skip
def test_a_fault_is_found_at_its_line(single: Path, fault: str, line: str, tmp_path: Path) -> None:
    done = verified(part_captured(tmp_path / "ranks", 2, single.name, fault, script=SCRIPT), single)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"captured_parts.py:\d+: error: [^\n]*\n +{line}", done.stderr), done.stderr


STAGE_SCRIPT = Path(__file__).parent / "captured_stages.py"
PARTS = 4


@pytest.fixture(scope="module")
def stage_single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage_captured(tmp_path_factory.mktemp("stages") / "single", 1, 1, 1, script=STAGE_SCRIPT)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, each sharded over two ranks."""
    return stage_captured(tmp_path_factory.mktemp("stages") / "ranks", 4, 2, 2, "1f1b", script=STAGE_SCRIPT)


def test_stages_together_compute_the_step_of_one_device(staged: Path, stage_single: Path) -> None:
    done = verified(staged, stage_single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: 242 values of 4 ranks of 2 kinds" in done.stdout  # loss, gradients, parameters and states, 2 steps
    assert "their mean is compared" in done.stdout


@pytest.mark.thorough
def test_schedules(stage_single: Path, tmp_path: Path) -> None:
    cases = ((2, "interleaved"), (2, "gpipe"), (2, "hand"), (4, "1f1b"))
    for stages, schedule in cases[: share_of(len(cases))]:
        done = verified(
            stage_captured(tmp_path / schedule, stages, stages, 1, schedule, script=STAGE_SCRIPT), stage_single
        )
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
def test_faults_are_found(schedule: str, fault: str, said: str, stage_single: Path, tmp_path: Path) -> None:
    done = verified(stage_captured(tmp_path / "ranks", 2, 2, 1, schedule, fault, script=STAGE_SCRIPT), stage_single)
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
    stage_single = stage_captured(tmp_path / "single", 1, 1, 2, "small", script=script)
    done = verified(stage_captured(tmp_path / "ranks", 4, 2, 2, "small", fault, script=script), stage_single)
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
        folder = stage_captured(tmp_path / schedule, 2, 2, 1, schedule, options=("--values",), script=STAGE_SCRIPT)
        compiled = str(tmp_path / f"{schedule} compiled")
        for command in (["compile", str(folder), "--out"], ["run", "--simulate", "--synthetic", "--steps", "3"]):
            done = succeed(*SERVED, *command, compiled)
        losses.append([float(found) for found in re.findall(r"loss is (\S+)", done.stdout)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][0] > losses[0][2] > 0
