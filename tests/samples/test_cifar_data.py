"""The maker of a synthetic data set in the format of CIFAR-10."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from mspc import dataset as ds

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
