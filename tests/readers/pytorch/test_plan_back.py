"""Plans written back as code for DTensor: they run under PyTorch with mspc's losses, or are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pytorch.plans_back import PLANS, STEPS, Compared, compared
from tests.readers.pytorch.test_layer_plans import MEGATRON, PLACES, SAMPLE, SEQUENCE, mspc

torch = pytest.importorskip("torch")
TRAINED = ("--ranks", "4", "--optimizer", "sgd:lr=1e-1")
def written(
    folder: Path, layers: dict[str, str], mesh: dict[str, int], target: Path, *more: str, how: Sequence[str] = TRAINED
) -> str:
    """Return the file that a compile with these styles writes."""
    (folder / "plan.json").write_text(json.dumps({"layers": layers, "mesh": mesh}))
    found = mspc(
        "compile", str(target), *how, "--plan", "plan.json", "--out-torch", "plan.py", "--out", "graph", *more,
        cwd=folder,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return (folder / "plan.py").read_text()


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """A plan's losses and collectives by mspc and by PyTorch."""
    pytest.importorskip("transformers")
    return compared(request.param, tmp_path_factory.mktemp("plan"))


@pytest.mark.parametrize("found", PLANS, indirect=True, scope="module")
class TestUnderPyTorch:
    """Four processes of gloo compute what the written file says."""

    def test_losses_are_those_of_mspc(self, found: Compared) -> None:
        assert len(found.said_losses) == STEPS
        np.testing.assert_allclose(found.losses, found.said_losses, rtol=1e-5)

    def test_the_same_collectives_are_sent_forward(self, found: Compared, request: pytest.FixtureRequest) -> None:
        if "dp" in PLANS[request.node.callspec.params["found"]][2]:
            pytest.skip("fully_shard gathers parameters, too")
        assert found.sent["forward"] == found.said["forward"]


def test_a_file_says_layers_by_patterns(tmp_path: Path) -> None:
    code = written(tmp_path, MEGATRON, {"tp": 4}, SAMPLE)
    compile(code, "plan.py", "exec")
    assert '"layers.*.attention.query": ColwiseParallel(),' in code
    assert '"layers.*.down": RowwiseParallel(),' in code
    assert '(4,), mesh_dim_names=("tp",)' in code
    assert code == written(tmp_path, MEGATRON, {"tp": 4}, SAMPLE)


def test_a_network_that_is_not_trained(tmp_path: Path) -> None:
    code = written(tmp_path, MEGATRON, {"tp": 4}, SAMPLE, how=("--ranks", "4"))
    assert '"layers.*.attention.query": ColwiseParallel(),' in code
    assert '"layers.*.down": RowwiseParallel(),' in code


def test_rows_of_results_are_those_of_every_process(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    torch.export.save(torch.export.export(net, (torch.ones(4, 4),)), tmp_path / "net.pt2")
    layers = {"0": "colwise", "2": "rowwise"}
    code = written(tmp_path, layers, {"dp": 2, "tp": 2}, tmp_path / "net.pt2", how=("--ranks", "4"))
    assert '"0": ColwiseParallel(),' in code
    assert '"2": RowwiseParallel(),' in code
    assert 'fully_shard(module, mesh=ranks["dp"]' in code


def test_one_layer_alone_has_its_own_name(tmp_path: Path) -> None:
    layers = {"layers.1.up": "colwise", "layers.1.down": "rowwise"}
    code = written(tmp_path, layers, {"tp": 4}, SAMPLE)
    assert '"layers.1.up": ColwiseParallel(),' in code
    assert "layers.0" not in code
    assert "*" not in code


@pytest.mark.parametrize(
    ("layers", "more", "told"),
    [(SEQUENCE, (), "of the sequence"), ({}, ("--out-torch", "plan.txt"), "writes Python")],
    ids=["sequence", "no Python"],
)
def test_what_is_not_written_is_refused(
    tmp_path: Path, layers: dict[str, str], more: Sequence[str], told: str
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"layers": layers or MEGATRON, **(PLACES if layers else {})}))
    found = mspc(
        "compile", str(SAMPLE), *TRAINED, "--plan", "plan.json", "--out-torch", "plan.py", *more, cwd=tmp_path
    )
    assert found.returncode == 2
    assert told in found.stderr
    assert not (tmp_path / "plan.py").exists()
