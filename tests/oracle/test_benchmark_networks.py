"""The networks of benchmarks/gpu/networks are the same in mspc and in PyTorch: parameters, and losses as trained."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.networks.child import Child, Failed
from benchmarks.gpu.networks.sizes import NETWORKS, same_name, sizes_of
from benchmarks.gpu.networks.table import apart
from tests.conftest import HANG

pytest.importorskip("torch")


@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_have_the_same_names_and_shapes(network: str) -> None:
    _, sizes = sizes_of(network, "cpu")
    ours, theirs = (
        importlib.import_module(f"benchmarks.gpu.networks.{network}.in_{framework}").Network(sizes)
        for framework in ("mspc", "torch")
    )
    found = [(same_name(parameter.name), parameter.shape) for parameter in ours.get_parameters()]
    assert sorted(found) == sorted((name, tuple(parameter.shape)) for name, parameter in theirs.named_parameters())


def test_losses_are_those_of_the_twin(root: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable, "-m", "benchmarks.gpu.networks.compare", "--device", "cpu", "--only", "recommender",
        "--peers", "mspc", "torch", "--losses", "6", "--threads", "1", "--json", str(figures),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    peers = json.loads(figures.read_text())[0]["peers"]
    assert len(peers["mspc"]["losses"]) == 6
    assert apart(peers["mspc"]["losses"], peers["torch"]["losses"]) < 1e-5
    assert peers["mspc"]["losses"][-1] < peers["mspc"]["losses"][0]


def test_a_program_that_fails_says_why() -> None:
    child = Child(["perceptron", "mspc"], {}, HANG, 1)
    with pytest.raises(Failed, match="invalid choice: 'perceptron'"):
        child.ask("1")
    child.close()
