"""Commands with networks in stages: pictures of their schedules, and targets that they do not take yet."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mspc.commands.budget.breaches import baseline_of
from mspc.commands.budget.limits import budget_of
from mspc.commands.check import Limits, check_target
from mspc.commands.facts.reading import folder_facts
from mspc.commands.search import SearchOptions, search_target
from mspc.ir.diagnostics import MspcError
from tests.compiled_scripts import NETWORKS, QUIET, CompileOptions, compile_target, run_directory, run_script
from tests.errors import error_of
from tests.texts import IMPORTS

NET = """\
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = Layer(0), Layer(1)
    def construct(self, x):
        return self.last(self.first(x)).sum()
cell = nn.PipelineCell(Net(), 4)
"""
SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2, OTHERS)
class Layer(nn.Cell):
    def __init__(self, stage):
        super().__init__()
        self.w = Parameter(Tensor(np.eye(4, dtype=np.float32)))
        self.pipeline_stage = stage
    def construct(self, x):
        return ops.relu(ops.matmul(x, self.w))
""" + NET + """step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(Tensor(np.ones((8, 4), np.float32)))
"""


def written(folder: Path, others: str = "") -> str:
    (folder / "net.py").write_text(SCRIPT.replace(", OTHERS", others))
    return str(folder / "net.py")


def test_a_schedule_has_the_times_of_a_machine(tmp_path: Path) -> None:
    script, out = written(tmp_path), tmp_path / "out"
    texts: list[str] = []
    for machine in ("", "h200", "a100"):
        options = CompileOptions(2, out=out, schedule=tmp_path / "times.txt", machine=machine, loudness=QUIET)
        compile_target(script, options)
        texts.append((tmp_path / "times.txt").read_text())
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(MspcError, match="there is no machine 'h20'"):
        compile_target(script, CompileOptions(2, out=out, schedule=tmp_path / "times.txt", machine="h20"))
    with pytest.raises(MspcError, match="--machine a100 says whose times --schedule and --trace have"):
        compile_target(script, CompileOptions(2, out=out, machine="a100"))


def test_a_compile_draws_the_schedule(tmp_path: Path) -> None:
    script, out = written(tmp_path), tmp_path / "out"
    compile_target(script, CompileOptions(2, out=out, schedule=tmp_path / "times.txt", loudness=QUIET))
    head, *rows = (tmp_path / "times.txt").read_text().splitlines()
    assert head.startswith("1f1b: 2 stages, 4 micro-batches, a step takes ")
    assert [row.split()[:2] for row in rows] == [["stage", "0"], ["stage", "1"]]
    assert all(f"{kind}{number}" in rows[1] for kind in "FB" for number in range(4))
    with pytest.raises(MspcError, match=r"its name ends in none of \.txt, \.csv"):
        compile_target(script, CompileOptions(2, out=out, schedule=tmp_path / "times.png", loudness=QUIET))


def test_a_compile_writes_its_schedule_as_a_table(own_folder: Path) -> None:
    """A compile takes it as a table of the user's own."""
    first = written(own_folder, ", pipeline_config={'pipeline_scheduler': 'zero_bubble_h1'}")
    compile_target(first, CompileOptions(2, schedule=own_folder / "order.csv", loudness=QUIET))
    order = (own_folder / "order.csv").read_text()
    assert sorted(order.splitlines()[1].split(",")) == sorted(f"1{kind}{n}" for kind in "FIW" for n in range(4))
    second, out = written(own_folder, ", pipeline_config={'pipeline_scheduler': 'order.csv'}"), own_folder / "out"
    compile_target(second, CompileOptions(2, out=out, loudness=QUIET))
    (program,) = (out / "rank_1").glob("*.ir")
    found = re.findall(r'work: "(\w)", chunk: (\d), micro_batch: (\d)', program.read_text())
    assert ",".join(chunk + kind + number for kind, chunk, number in found) == order.splitlines()[1]


def test_a_table_orders_the_stages_and_is_proved_first(own_folder: Path) -> None:
    script = written(own_folder, ", pipeline_config={'pipeline_scheduler': 'order.csv'}")
    first, out = "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n", own_folder / "out"
    (own_folder / "order.csv").write_text(first + "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    compile_target(script, CompileOptions(2, out=out, loudness=QUIET))
    (program,) = (out / "rank_1").glob("*.ir")
    assert re.findall(r'work: "(\w)"', program.read_text()) == ["F", "B"] * 4
    (own_folder / "order.csv").write_text(first + "1F0,1B0,1B1,1F1,1F2,1B2,1F3,1B3\n")
    error = error_of(compile_target, script, CompileOptions(2, out=out, loudness=QUIET))
    assert error.message == "stage 1 runs 1B1 before 'activation of chunk 1' of micro-batch 1 is there"
    assert str(error.location) == "order.csv:2:9"


AVERAGED = IMPORTS + """
from mindspore.communication import init

init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", pipeline_stages=2,
    pipeline_config={"pipeline_scheduler": "order.csv"},
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(2, momentum=0.5), nn.Dense(2, 1)
        self.norm.pipeline_stage, self.last.pipeline_stage = 0, 1

    def construct(self, x):
        return ops.mean(self.last(self.norm(x)))


net = Net()
step = nn.TrainOneStepCell(nn.PipelineCell(net, 2), nn.SGD(net.trainable_params(), 0.1)).set_train()
step(Tensor(np.array([[1, 2], [3, 4], [10, 20], [30, 40]]), ms.float32))
print(net.norm.moving_mean.asnumpy().tolist())
"""


def test_a_moving_average_takes_micro_batches_in_their_order(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the mean that was, and half of a micro-batch's: [2, 3], then [20, 30]."""
    (own_folder / "net.py").write_text(AVERAGED)
    (own_folder / "order.csv").write_text("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n")  # stage 1 changes no parameter
    run_script(own_folder / "net.py", 2, simulate=True)
    assert capsys.readouterr().out.splitlines() == ["[10.5, 15.75]"] * 2
    (own_folder / "order.csv").write_text("0F1,0F0,0B1,0B0\n1F1,1B1,1F0,1B0\n")
    error = error_of(run_script, own_folder / "net.py", 2, simulate=True)
    assert error.message == (
        "0F0 comes after 0F1, and BatchNorm 'bn_train' changes norm.moving_mean in every micro-batch, so that their "
        "order decides its value"
    )
    assert str(error.location) == "order.csv:1:5"


def test_a_budget_holds_stages_to_their_idle_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    compile_target(written(tmp_path), CompileOptions(2, out=out, loudness=QUIET))
    facts = folder_facts(out)
    assert all(0.1 < (facts.idle(kind) or 0.0) < 0.9 for kind in facts.kinds)

    def checked(most: str) -> int:
        limits = Limits(budget_of({"max-idle": most}))
        return check_target(str(out), CompileOptions(), limits)

    assert (checked("10%"), checked("90%")) == (1, 0)
    assert capsys.readouterr().out.startswith("max-idle: a stage is idle for ")
    with pytest.raises(MspcError, match="max-idle is 'x', not a share as in 5% or"):
        checked("x")


def test_a_budget_holds_the_step_with_the_waits_of_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    compile_target(written(tmp_path), CompileOptions(2, out=out, loudness=QUIET))
    facts = folder_facts(out)
    assert facts.pipeline is not None
    assert facts.step == facts.pipeline.step
    assert facts.step != max(kind.times.step for kind in facts.kinds if kind.times is not None)
    assert baseline_of(facts).step == facts.step

    def checked(share: float) -> int:
        limits = Limits(budget_of({"max-step": f"{(facts.step or 0.0) * share * 1e6:.3f}us"}))
        return check_target(str(out), CompileOptions(), limits)

    assert (checked(0.99), checked(1.01)) == (1, 0)
    assert " including the waits of stages for each other; " in capsys.readouterr().out


def test_a_search_is_for_as_many_stages_and_explains_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    search_target(written(tmp_path), SearchOptions(CompileOptions(2), (2,)))
    assert re.search(r"2  the\s.*\n\s+script's\n", capsys.readouterr().out)
    search_target(written(tmp_path), SearchOptions(CompileOptions(2), (2,), explain="MatMul"))
    assert "to shard it" in capsys.readouterr().out


def test_a_mesh_is_of_the_ranks_of_one_of_the_scripts_stages(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="--mesh 2 is of the 2 ranks of one stage, and --stages is 2 of 2 ranks"):
        search_target(written(tmp_path), SearchOptions(CompileOptions(2), (2,), meshes=("2",)))


COMPILED_SCRIPT = """\
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
""" + NET + """optimizer = nn.Momentum(cell.trainable_params(), 0.1, 0.9)
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
    (folder / "net.py").write_text(COMPILED_SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("net.py", CompileOptions(4, out=Path("out"), loudness=QUIET))
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
        128, out=tmp_path / "out", only_ranks=(0,), loudness=QUIET, script_arguments=sizes
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
