"""The operator-parallel sample: two ways to write its strategies, one device, and MPI give the same training."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.commands.compile import DEFAULT_FOLDER
from mspc.output.dumps import OutputFolder
from tests.serving import HANG

UNSHARDED = """
import net
from mindspore import ops


class Network(net.Network):
    def __init__(self):
        super().__init__()
        self.matmul1, self.matmul2 = ops.MatMul(), ops.MatMul()
        self.relu1, self.relu2 = ops.ReLU(), ops.ReLU()


net.train(Network)
"""


def losses(out: str, ranks: int = 1) -> np.ndarray:
    """[print, rank]: what every rank printed, in rank order."""
    return np.array([float(text) for text in re.findall(r"loss is (\S+)", out)]).reshape(-1, ranks)


@pytest.fixture(scope="module")
def folder(samples: Path) -> Path:
    return samples / "operator_parallel"


@pytest.fixture(scope="module")
def alone(shared_mspc: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The output of one device in a number of epochs."""
    script = tmp_path_factory.mktemp("alone") / "unsharded.py"
    script.write_text(UNSHARDED)
    return cache(lambda epochs: shared_mspc("run", script, "--", "--epochs", epochs))


def test_one_device_learns(alone: Callable[[int], str]) -> None:
    expected = losses(alone(6))
    assert expected.shape == (12, 1)
    assert expected[0] == pytest.approx(np.log(10), rel=1e-2)
    assert expected[-1] < 1.0
    right = int(alone(6).splitlines()[-1].partition(" of 56 test images recognised")[0])
    assert right > 35


@pytest.mark.parametrize("script", ["net.py", "net_layout.py"])
def test_both_networks_train_as_one_device(
    mspc: Callable[..., str], alone: Callable[[int], str], folder: Path, script: str
) -> None:
    out = mspc("run", folder / script, "--ranks", 8, "--simulate", "--", "--epochs", 1)
    found = losses(out, 8)
    np.testing.assert_array_equal(found, found[:, :1].repeat(8, 1))
    np.testing.assert_allclose(found[:, :1], losses(alone(1)), rtol=1e-5)
    assert out.splitlines()[-1] == alone(1).splitlines()[-1]


def test_mpi_trains_as_one_device(mspc: Callable[..., str], alone: Callable[[int], str], folder: Path) -> None:
    out = mspc("run", folder / "net.py", "--ranks", 8, "--only-rank", 0, "--", "--epochs", 1)
    np.testing.assert_allclose(losses(out), losses(alone(1)), rtol=1e-5)


def test_a_step_equals_one_devices(mspc: Callable[..., str], folder: Path) -> None:
    table = mspc("verify", folder / "net_layout.py", "--ranks", 8)
    for name in ("fc1_weight", "fc2_weight", "fc3_weight"):
        assert re.search(rf"gradient +{name}", table)


@pytest.mark.parametrize("script", ["net.py", "net_layout.py"])
def test_operators_and_weights_are_cut_as_written(
    compiled: Callable[[Path], dict[str, Any]], folder: Path, script: str, samples: Path, tmp_path: Path,
    mspc_budget: Callable[..., None],
) -> None:  # fmt: skip
    tables = compiled(folder / script)
    name = script.removesuffix(".py").replace("net", "operator_parallel")
    mspc_budget(tmp_path / "out", budget=samples / "budget.toml", name=name)
    operators = {row["instance"]: (row["strategy"], row["origin"]) for row in tables["operators"]}
    assert operators["matmul1"] == ([[2, 4], [4, 1]], "shard()")
    assert operators["relu1"] == ([[4, 1]], "shard()")
    assert operators["matmul2"] == ([[1, 8], [8, 1]], "shard()")
    assert operators["relu2"] == ([[8, 1]], "shard()")
    assert operators["matmul3"] == ([[8, 1], [1, 1]], "batch")
    slices = {row["name"]: row["slice"] for row in tables["parameters"]}
    assert [slices[f"fc{i}_weight"] for i in (1, 2, 3)] == [[196, 512], [64, 512], [512, 10]]


def test_the_images_are_a_small_mnist(folder: Path) -> None:
    for usage, count in (("train", 320), ("test", 56)):
        dataset = ds.MnistDataset(str(folder / "data"), usage, shuffle=False)
        assert dataset.images.shape == (count, 28, 28)
        assert (dataset.images.min(), dataset.images.max()) == (0, 255)
        assert set(dataset.labels.tolist()) == set(range(10))
    assert sum(path.stat().st_size for path in (folder / "data").iterdir()) < 300_000


@pytest.mark.thorough
def test_make_data_writes_the_files(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    shutil.copy(folder / "make_data.py", tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, tmp_path / "make_data.py"], env=environment, check=True, timeout=HANG)
    kept = sorted((folder / "data").iterdir())
    assert [path.name for path in sorted((tmp_path / "data").iterdir())] == [path.name for path in kept]
    for path in kept:
        assert (tmp_path / "data" / path.name).read_bytes() == path.read_bytes()


def test_the_script_of_the_sample_leaves_place_for_a_compile(samples: Path, tmp_path: Path) -> None:
    """After run.sh the commands of the README work, which write to the folder of every compile, and so does run.sh."""
    folder = tmp_path / "sample"
    folder.mkdir()
    shutil.copy(samples / "operator_parallel" / "run.sh", folder)
    stub = tmp_path / "mspc"
    stub.write_text('#!/bin/sh\nif [ $1 = compile ]; then mkdir -p "$7"; touch "$7/program.json"; fi\n')
    stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", str(folder / "run.sh")], env={**os.environ, "PATH": path}, timeout=HANG, check=True)
    written = sorted(p.parent for p in folder.rglob("program.json"))
    assert len(written) == 2
    for place in (*written, folder / DEFAULT_FOLDER):
        with OutputFolder(place) as output:
            output.write("program.json", "{}")
            output.commit()
