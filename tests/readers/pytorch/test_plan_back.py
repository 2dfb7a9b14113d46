"""Plans written back as code for DTensor: they run under PyTorch with mspc's losses, or are refused."""

import json
import os
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.pytorch.plans_back import PLANS, STEPS, Compared, compared
from tests.captures import captured
from tests.readers.pytorch.test_layer_plans import MEGATRON, PLACES, SAMPLE, SEQUENCE
from tests.serving import serve, succeed

torch = pytest.importorskip("torch")
TRAINED = ("--ranks", "4", "--optimizer", "sgd:lr=1e-1")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def written(
    folder: Path, layers: dict[str, str], mesh: dict[str, int], target: Path, *more: str, how: Sequence[str] = TRAINED
) -> str:
    """Return the file that a compile with these styles writes."""
    (folder / "plan.json").write_text(json.dumps({"layers": layers, "mesh": mesh}))
    found = serve(
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


HEADS = {
    **dict.fromkeys(("layers.*.query", "layers.*.key", "layers.*.value", "head"), "colwise"),
    **dict.fromkeys(("layers.*.query_norm", "layers.*.key_norm"), "replicated_with_grad_allreduce"),
    "layers.*.out": "rowwise",
}  # fmt: skip


@pytest.mark.parametrize("mesh", [pytest.param({"tp": 4}, marks=pytest.mark.thorough), {"dp": 2, "tp": 2}], ids=str)
def test_norms_of_heads_and_losses_over_classes(mesh: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"layers": HEADS, "mesh": mesh, "loss_parallel": True}))
    how = ("--torch", *TRAINED, "--plan", "plan.json", "--out-torch", "plan.py", "--out", "graph")
    found = serve("compile", f"{JOB}:make_words", *how, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    code = (tmp_path / "plan.py").read_text()
    assert '"layers.*.query_norm": SequenceParallel(sequence_dim=1, use_local_output=True),' in code
    assert '"head": ColwiseParallel(use_local_output=False),' in code
    one, many = losses(tmp_path, "Words")
    np.testing.assert_allclose(many, one, rtol=1e-5)


def losses(folder: Path, *more: str) -> tuple[list[float], list[float]]:
    """Return the losses of one device and of four processes that compute as `plan.py` of the folder says."""
    done = succeed(sys.executable, str(JOB), str(folder), *more, env=os.environ | ONE_THREAD)
    one, many = json.loads(done.stdout)
    return one, many


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
def test_what_is_not_written_is_refused(tmp_path: Path, layers: dict[str, str], more: Sequence[str], told: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"layers": layers or MEGATRON, **(PLACES if layers else {})}))
    found = serve("compile", SAMPLE, *TRAINED, "--plan", "plan.json", "--out-torch", "plan.py", *more, cwd=tmp_path)
    assert found.returncode == 2
    assert told in found.stderr
    assert not (tmp_path / "plan.py").exists()


# Plans of scripts in MindSpore's style, and searched plans of captures, are written as placements.


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy={inputs})


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((8,)), nn.Dense(8, 16), nn.Dense(16, 8)
        self.up.matmul.shard(((2, 1), (2, 1)))
        self.down.matmul.shard(((2, 2), (1, 2)))

    def construct(self, x):
        return x + self.down(ops.tanh(self.up(self.norm(x))))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(2)])

    def construct(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x - y).mean()


net = Net()
x = Tensor(np.ones([8, 8]), ms.float32)
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))(x, x)
"""
JOB = Path(__file__).parent / "placed_training.py"
WEIGHTS = """PARAMETERS = {{
    "layers.*.up.weight": ({0}Shard(0){1}),
    "layers.*.down.weight": ({0}Shard(1){1}),
}}"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("inputs", "axes", "parameters"),
    [("((2, 1), (2, 1))", '("tp",)', WEIGHTS.format("", ",")),
     ("'full_batch'", '("tp0", "tp1")', WEIGHTS.format("Replicate(), ", ""))],
    ids=["rows", "all rows"],
)  # fmt: skip
def test_a_script_runs_under_pytorch_as_it_is_placed(inputs: str, axes: str, parameters: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK.format(inputs=inputs))
    found = serve("compile", "net.py", "--ranks", "4", "--out-torch", "plan.py", "--out", "graph", "-q", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    code = (tmp_path / "plan.py").read_text()
    assert f"AXES = {axes}\n{parameters}\n" in code
    assert ('fully_shard(module, mesh=ranks["dp"]' in code) == (axes == '("tp",)')
    one, many = losses(tmp_path)
    np.testing.assert_allclose(many, one, rtol=1e-5)


def test_a_searched_plan_of_a_capture_is_written(tmp_path: Path) -> None:
    captured(tmp_path / "one", 1, "capture", script=JOB)
    for command in (
        ("search", "one", "--ranks", "4", "--memory", "6KiB", "--out", "found.toml"),
        ("compile", "one", "--ranks", "4", "--strategies", "found.toml", "--out", "graph", "--out-torch", "plan.py"),
    ):
        found = serve(*command, "-q", cwd=tmp_path)
        assert found.returncode == 0, found.stderr
    code = (tmp_path / "plan.py").read_text()
    compile(code, "plan.py", "exec")
    assert re.search(r'"layers\.\*\.up\.weight": \(Shard\(0\),\)', code)


def test_annotations_name_the_axes_of_each_dimension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """spmd_types takes several axes of a dimension in its `PartitionSpec` alone, the outermost first."""
    network = Path("samples/operator_parallel/net.py").resolve()
    done = serve("compile", network, "--ranks", "8", "--out-torch", "plan.py", "--out", "graph", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = dict[int, Any]()
    types = SimpleNamespace(
        V="V", R="R", PartitionSpec=lambda *dims: dims,
        assert_type=lambda value, *types: told.update({id(value): types}),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "spmd_types", types)
    module = torch.nn.ParameterDict({name: torch.zeros(4, 4) for name in ("fc1_weight", "fc2_weight")})
    ranks = SimpleNamespace(get_group=lambda axis: axis)
    runpy.run_path(str(tmp_path / "plan.py"))["annotate"](module, ranks)
    assert told == {
        id(module["fc1_weight"]): ({"tp0": "R", "tp1": "V"}, (("tp1",), None)),
        id(module["fc2_weight"]): ({"tp0": "V", "tp1": "V"}, (("tp0", "tp1"), None)),
    }
