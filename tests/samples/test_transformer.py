"""The transformer sample: whatever the number of ranks, its losses are one rank's."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.engine.ranks.hosts import read_rank_table
from tests.serving import HANG, SERVED, succeed

Run = Callable[..., str]
STEPS, COMPARED = 50, 15
"""Behind which the loss is well below that of guessing; of which ranks do the first."""


@pytest.fixture(scope="module")
def script(samples: Path) -> Path:
    return samples / "transformer" / "net.py"


def train(mspc: Run, script: Path, ranks: int, steps: int, *flags: str) -> np.ndarray:
    """Losses [step, rank] of every step."""
    printed = 1 if "--only-rank" in flags else ranks
    out = mspc("run", script, "--ranks", ranks, *flags, "--", "--steps", steps, "--every", 1)
    found = [float(text) for text in re.findall(r"loss is (\S+)", out)]
    return np.array(found).reshape(steps, printed)


@pytest.fixture(scope="module")
def alone(shared_mspc: Run, script: Path) -> np.ndarray:
    """The losses of one rank."""
    return train(shared_mspc, script, 1, STEPS)


def test_one_rank_learns(alone: np.ndarray) -> None:
    assert alone[0] == pytest.approx(np.log(64), rel=0.1)
    assert alone[-1] < 2.5


@pytest.mark.parametrize("ranks", [2, 8])
def test_losses_equal_one_ranks(mspc: Run, script: Path, alone: np.ndarray, ranks: int) -> None:
    found = train(mspc, script, ranks, COMPARED, "--simulate")
    np.testing.assert_array_equal(found, found[:, :1].repeat(ranks, 1))
    np.testing.assert_allclose(found[:, :1], alone[:COMPARED], rtol=1e-4)


@pytest.mark.thorough
def test_losses_under_mpi_equal_one_ranks(mspc: Run, script: Path, alone: np.ndarray) -> None:
    np.testing.assert_allclose(train(mspc, script, 8, 5, "--only-rank", "0"), alone[:5], rtol=1e-4)


def test_eight_ranks_are_two_groups_of_four(
    compiled: Callable[[Path], dict[str, Any]], script: Path, samples: Path, tmp_path: Path,
    mspc_budget: Callable[..., None],
) -> None:  # fmt: skip
    tables = compiled(script)
    mspc_budget(tmp_path / "out", budget=samples / "budget.toml", name="transformer")
    slices = {row["name"]: row["slice"] for row in tables["parameters"]}
    assert slices["table"] == [16, 64]
    assert slices["layers.0.attention.wq"] == [64, 16]
    assert slices["layers.1.feed_forward.w2"] == [64, 64]
    assert slices["moment1.layers.1.feed_forward.w2"] == [64, 64]
    forward = [row for row in tables["collectives"] if row["phase"] == "forward"]
    # The embedding, two reductions per layer, the largest and the sum of every row of logits, the parts of the rows'
    # losses, the loss itself and its rows.
    assert Counter((row["operator"], len(row["ranks"])) for row in forward) == {
        ("AllReduce", 4): 7,
        ("ReduceScatter", 4): 1,
        ("AllReduce", 8): 2,
    }


def test_the_text_fits_the_vocabulary(script: Path) -> None:
    text = script.with_name("text.txt").read_text(encoding="utf-8")
    assert 3000 < len(text) < 6000
    assert len(set(text)) < 64


@pytest.fixture(scope="module")
def data(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic images in the real format."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    maker = root / "samples/resnet50_cifar10/make_data.py"
    command = [sys.executable, str(maker), "--folder", str(folder), "--images", "32", "--test-images", "32"]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["data_parallel", "auto_parallel"])
def test_both_modes_learn(root: Path, data: Path, mode: str) -> None:
    script = root / "samples/resnet50_cifar10/resnet50_distributed_training.py"
    small = {"IMAGE_SIZE": "32", "WIDTH": "4", "EPOCHS": "3", "BATCH_SIZE": "16", "MODE": mode, "DATA_PATH": str(data)}
    done = succeed(*SERVED, "run", str(script), "--ranks", "2", env={**os.environ, **small})
    losses = [float(text) for text in re.findall(r"^epoch: \d step: 5, loss is (\S+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert len(re.findall(r"^accuracy: 0\.\d{3}$", done.stdout, re.MULTILINE)) == 1


SCRIPTS = {
    "quickstart/run_with_msrun.sh": ([], "-n 8 ", "mspc run net.py"),
    "resnet50_cifar10/run.sh": (["data", "2"], "--host 127.0.0.1:2 ", "pytest -s -v resnet50_distributed_training.py"),
}


@pytest.mark.parametrize("ranks", [2, 8])
def test_rank_tables(samples: Path, ranks: int) -> None:
    (host,) = read_rank_table(samples / f"resnet50_cifar10/rank_table_{ranks}pcs.json")
    assert (host.name, host.slots, host.devices) == ("127.0.0.1", ranks, tuple(range(ranks)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_scripts(samples: Path, tmp_path: Path, name: str) -> None:
    """With an `mspc` on PATH that adds --dry-run."""
    arguments, where, command = SCRIPTS[name]
    mspc = tmp_path / "mspc"
    mspc.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -m mspc launch --dry-run "$@"\n')
    mspc.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = succeed(str(samples / name), *arguments, env={**os.environ, "PATH": path})
    assert where in done.stdout
    assert done.stdout.rstrip("\n").endswith(command)


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
    done = succeed(*command, "--", "--epochs", "1")
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
        return succeed(*SERVED, "run", str(folder / "train_reduced.py"), *how, "--", "--epochs", "2")

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
    succeed("sh", str(folder / "run.sh"), "train.py", "--epochs", "1", env={**commands, "RANKS": "2"})
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


SCRIPT = Path(__file__).resolve().parents[2] / "samples" / "resnet50_cifar10" / "make_data.py"


def made(monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    monkeypatch.setattr(sys, "argv", ["make_data.py", *map(str, options)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def images_of(folder: Path, usage: str) -> tuple[np.ndarray, np.ndarray]:
    rows = ds.Cifar10Dataset(str(folder), usage, shuffle=False).batch(10000)
    images, labels = next(rows.create_tuple_iterator(output_numpy=True))
    return images.astype(np.float32), labels


def test_the_real_reader_reads_it_and_colours_tell_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, "--folder", tmp_path / "a", "--images", 40, "--test-images", 50)
    images, labels = images_of(tmp_path / "a", "train")
    tested, wanted = images_of(tmp_path / "a", "test")
    assert (images.shape, np.bincount(labels).tolist()) == ((200, 32, 32, 3), [20] * 10)
    assert (tested.shape, np.bincount(wanted).tolist()) == ((50, 32, 32, 3), [5] * 10)
    means = np.stack([images[labels == label].mean((0, 1, 2)) for label in range(10)])
    nearest = np.square(tested.mean((1, 2))[:, None] - means).sum(-1).argmin(1)
    assert 0.3 < (nearest == wanted).mean() < 1, "more than chance, and something is left to learn"


def test_a_seed_gives_the_same_bytes_and_data_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made(monkeypatch, "--folder", tmp_path / name, "--images", 10, "--test-images", 10, "--seed", seed)
    first, again, other = ((tmp_path / name / "data_batch_1.bin").read_bytes() for name in "abc")
    assert first == again != other
    assert first != (tmp_path / "a" / "data_batch_2.bin").read_bytes()
    with pytest.raises(SystemExit, match=r"data_batch_1\.bin is there already; nothing was written"):
        made(monkeypatch, "--folder", tmp_path / "a")
    assert (tmp_path / "a" / "data_batch_1.bin").read_bytes() == first


def test_impossible_numbers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        made(monkeypatch, "--folder", tmp_path / "a", "--images", 0)
    assert "numbers of images must be positive" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
