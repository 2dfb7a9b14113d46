"""Captured steps that mspc runs: losses are those of the processes of PyTorch that were captured."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mspc.ir.files.tensors import TensorFile
from mspc.readers.pytorch.captured import read_step
from tests.captures import captured, shared
from tests.conftest import HANG
from tests.serving import SERVED
from tests.shares import share_of

pytest.importorskip("torch")
JOBS = Path(__file__).with_name("captured_jobs.py")
KINDS = ("llama", "gpt2", "experts", "stages")[: share_of(4, 4)]


def mspc(*arguments: object) -> str:
    done = subprocess.run([*SERVED, *map(str, arguments)], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of all networks: a capture by 4 processes of gloo, its program, the data and the losses."""
    folder = tmp_path_factory.mktemp("jobs")
    done = subprocess.run([*SERVED, "--torch", JOBS, folder, *KINDS], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
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
