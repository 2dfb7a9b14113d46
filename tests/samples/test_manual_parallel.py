"""The sample of parallelism by hand: the tutorial's form drifts apart and is warned of, the other equals one device."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mspc import dataset as ds
from tests.conftest import HANG
from tests.serving import SERVED

Run = Callable[..., str]
LINE = re.compile(r"epoch: (\d+) step: (\d+), loss is (\S+)")
SHOWN = "    print('weights', [float(p.asnumpy().astype('float64').sum()) for p in net.get_parameters()])\n"


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sample with 640 images and narrow layers, whose scripts show their weights at the end."""
    place = tmp_path_factory.mktemp("samples")
    for name in ("manual_parallel", "operator_parallel"):
        shutil.copytree(root / "samples" / name, place / name, ignore=shutil.ignore_patterns("data", "log_output"))
    sample = place / "manual_parallel"
    for script in ("train.py", "train_reduced.py"):
        text = (sample / script).read_text()
        (sample / script).write_text(text.replace("512", "64") + SHOWN)
    maker = [sys.executable, str(sample / "make_data.py"), "--train", "576", "--test", "64"]
    subprocess.run(maker, check=True, timeout=HANG)
    return sample


def losses(text: str, ranks: int = 1) -> np.ndarray:
    """[line, rank]: the losses that every rank printed."""
    return np.array([float(loss) for _, _, loss in LINE.findall(text)]).reshape(-1, ranks)


def test_the_images_are_those_of_a_small_mnist(folder: Path) -> None:
    for usage, count in (("train", 576), ("test", 64)):
        images = ds.MnistDataset(str(folder / "data"), usage, shuffle=False)
        assert images.images.shape == (count, 28, 28)
        assert images.images.dtype == np.uint8
        assert set(images.labels.tolist()) == set(range(10))


def test_the_tutorial_as_written_drifts_apart_and_says_so(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_PATH", str(folder / "data"))
    command = [*SERVED, "run", str(folder / "train.py"), "--ranks", "8", "--simulate"]
    done = subprocess.run([*command, "--", "--epochs", "1"], capture_output=True, text=True, timeout=HANG, check=True)
    found = losses(done.stdout, 8)
    assert found.shape == (1, 8)
    np.testing.assert_array_equal(found, found[:, :1].repeat(8, 1))  # averages, which say nothing of the weights
    assert len(set(re.findall(r"weights .*", done.stdout))) == 8
    names = ", ".join(f"layer{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias"))
    assert done.stderr.count("warning:") == 1
    assert f"none of them reduces the gradients of {names}: they will differ between ranks" in done.stderr
    assert "nn.DistributedGradReducer or ops.AllReduce() before the update" in done.stderr


def test_averaged_gradients_equal_one_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_PATH", str(folder / "data"))

    def run(*how: str) -> subprocess.CompletedProcess[str]:
        command = [*SERVED, "run", str(folder / "train_reduced.py"), *how, "--", "--epochs", "2"]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)

    alone, together = run("--ranks", "1"), run("--ranks", "8", "--simulate")
    assert (alone.stderr, together.stderr) == ("", "")
    found = losses(together.stdout, 8)
    assert found.shape == (2, 8)
    np.testing.assert_allclose(found, losses(alone.stdout).repeat(8, 1), rtol=1e-5)
    weights = re.findall(r"weights \[(.*)\]", together.stdout)
    assert len(weights) == 8
    assert len(set(weights)) == 1
    (expected,) = re.findall(r"weights \[(.*)\]", alone.stdout)
    np.testing.assert_allclose(
        *([float(n) for n in text.split(",")] for text in (weights[0], expected)), rtol=1e-4, atol=1e-3
    )


def test_run_sh_leaves_what_each_rank_printed(folder: Path, commands: dict[str, str]) -> None:
    command = ["sh", str(folder / "run.sh"), "train.py", "--epochs", "1"]
    done = subprocess.run(
        command, env={**commands, "RANKS": "2"}, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        text = (folder / "log_output" / "1" / f"rank.{rank}" / "stdout").read_text()
        assert [line[:2] for line in LINE.findall(text)] == [("1", "20")]
        assert ("warning: stand_alone mode runs" in text) == (rank == 0)


def test_each_rank_is_compiled_with_its_own_rows(
    folder: Path, tmp_path: Path, samples: Path, mspc_budget: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the module that asks for the rank is one that the script imports."""
    monkeypatch.setenv("DATA_PATH", str(folder / "data"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = [*SERVED, "compile", str(samples / "manual_parallel" / "train_reduced.py"), "--ranks", "2"]
    subprocess.run([*command, "--out", str(tmp_path / "out")], check=True, capture_output=True, timeout=HANG)
    for rank in (0, 1):
        (file,) = (tmp_path / "out" / f"rank_{rank}").glob("*_execute_*.ir")
        (begin, _) = re.findall(r"StridedSlice.* begin: \((\d+)", file.read_text())
        assert int(begin) == 16 * rank
    mspc_budget(tmp_path / "out", budget=samples / "budget.toml", name="manual_parallel")
