"""`mspc run DIR` of a network in stages: its script's numbers, from all stages into one file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.run import run_directory, run_script
from mspc.ir.diagnostics import MspcError

NETWORKS = Path(__file__).resolve().parents[2] / "benchmarks" / "networks"
SCRIPT = """\
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
from mindspore.communication import get_rank, init
init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2)
class Layer(nn.Cell):
    def __init__(self, stage):
        super().__init__()
        self.w = Parameter(Tensor(np.random.RandomState(stage).randn(4, 4).astype(np.float32) * 0.3))
        self.matmul = ops.MatMul().shard(((1, 1), (1, 2)))
        self.pipeline_stage = stage
    def construct(self, x):
        return ops.tanh(self.matmul(x, self.w))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = Layer(0), Layer(1)
    def construct(self, x):
        return self.last(self.first(x)).sum()
cell = nn.PipelineCell(Net(), 4)
optimizer = nn.Momentum(cell.trainable_params(), 0.1, 0.9)
optimizer.offload()
step = nn.TrainOneStepCell(cell, optimizer)
for x in np.load("data.npz")["inputs0"].reshape(2, 8, 4):
    step(Tensor(x))
found = {p.name: p.asnumpy() for p in step.get_parameters()}
if get_rank() == 0:
    np.savez("script.npz", **found)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    np.savez(folder / "data.npz", inputs0=np.random.RandomState(5).randn(16, 4).astype(np.float32))
    (folder / "net.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("net.py", CompileOptions(4, out=Path("out"), loudness=Loudness(False, True)))
    return folder


def test_a_compiled_network_in_stages_has_its_scripts_numbers(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(compiled)
    run_script(Path("net.py"), 4, simulate=True)
    run_directory(Path("out"), simulate=True, data=Path("data.npz"), save=Path("saved.safetensors"))
    wanted, found = np.load("script.npz"), load_file("saved.safetensors")
    assert {"first.w", "last.w", "moments.first.w", "moments.last.w"} < set(found)
    for name in wanted.files:
        np.testing.assert_array_equal(found[name], wanted[name], name)


def test_layers_that_are_one_graph_in_stages_of_many_ranks(tmp_path: Path) -> None:
    """The sums of gradients over micro-batches have the layouts of the gradients, also where the rest is decided
    anew."""
    network = NETWORKS / "staged_llama.py"
    text = network.read_text().replace("def __init__", "@ms.lazy_inline\n    def __init__")
    (tmp_path / "folded.py").write_text(text)
    sizes = ("4", "64", "8", "8", "64", "512", "8", "8", "2", "2", "16")
    options = CompileOptions(
        128, out=tmp_path / "out", only_ranks=(0,), loudness=Loudness(False, True), script_arguments=sizes
    )
    compile_target(str(tmp_path / "folded.py"), options)
    (path,) = (tmp_path / "out" / "rank_0").glob("*_execute_*.ir")
    assert "Scan(" in path.read_text()


@pytest.mark.parametrize("stages", ["3", "0", "-2", '"2"'])
def test_ranks_that_cannot_have_so_many_stages(stages: str, compiled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(compiled / "out", out)
    content = json.loads((out / "program.json").read_text())
    (out / "program.json").write_text(json.dumps(content | {"digests": {}}))
    for path in out.glob("rank_*/*_execute_*.ir"):
        path.write_text(path.read_text().replace("pipeline_stages : 2", f"pipeline_stages : {stages}"))
    with pytest.raises(MspcError, match="is damaged: 4 ranks in "):
        run_directory(out, simulate=True, synthetic=True)
