"""`mspc diff` of networks in stages: schedules, borders, operators in another stage, numbers of stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.comparison.all_differences import Difference, moved_cells
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.diff import diff_targets
from mspc.commands.facts.reading import read_facts
from mspc.commands.report.verbosity import Loudness
from mspc.ir.diagnostics import MspcError

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)

    def construct(self, x):
        return ops.tanh(self.dense(x))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(4)])
        for layer, stage in zip(self.layers, STAGES):
            layer.pipeline_stage = stage

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=max(STAGES) + 1,
    pipeline_config={"pipeline_scheduler": "SCHEDULE"},
)
net = nn.WithLossCell(Net(), nn.MSELoss())
cell = nn.PipelineCell(net, MICRO)
rows = Tensor(np.ones((16, 16), np.float32))
nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))(rows, rows)
"""
BELOW = "Default/network-PipelineCell/network-WithLossCell/_backbone-Net/layers-CellList"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles of one network on 4 ranks: in two stages, with another border, another schedule, and in four."""
    path = tmp_path_factory.mktemp("stages")
    compiled(path, "two")
    compiled(path, "border", stages="(0, 1, 1, 1)")
    compiled(path, "gpipe", schedule="gpipe", micro=8)
    compiled(path, "four", stages="(0, 1, 2, 3)")
    compiled(path, "part", only_ranks=(2,))
    return path


def compiled(
    path: Path, name: str, stages: str = "(0, 0, 1, 1)", schedule: str = "1f1b", micro: int = 4, **options: Any
) -> None:
    text = SCRIPT.replace("STAGES", stages).replace("SCHEDULE", schedule).replace("MICRO", str(micro))
    (path / "net.py").write_text(text)
    quiet = Loudness(False, True)
    compile_target(str(path / "net.py"), CompileOptions(4, out=path / name, loudness=quiet, **options))


def found(folder: Path, first: str, second: str) -> dict[str, Any]:
    file = folder / "found.json"
    options = CompileOptions(json=file, loudness=Loudness(quiet=True))
    status = diff_targets(str(folder / first), str(folder / second), options)
    told = json.loads(file.read_text())
    assert status == (not told["equal"])
    return told


def test_equal_pipelines_are_equal(folder: Path) -> None:
    told = found(folder, "two", "two")
    assert (told["equal"], told["stages"]) == (True, None)


def test_a_border_elsewhere_moves_operators(folder: Path) -> None:
    stages = found(folder, "two", "border")["stages"]
    assert stages["settings"] == []
    moved = {entry["cell"] for entry in stages["moved"] if entry["cell"].startswith(BELOW)}
    assert moved == {f"{BELOW}/1-Layer", f"{BELOW}/1-Layer/dense-Dense"}
    texts = {(entry["first"].partition(":")[0], entry["second"].partition(":")[0]) for entry in stages["moved"]}
    assert texts == {("stage 0", "stage 1")}
    assert any(entry["name"] == "MatMul 'matmul'" and entry["line"] == "net.py:12" for entry in stages["moved"])
    assert [entry["stage"] for entry in stages["stages"]] == [0, 1]


def test_what_moved_is_no_operator_of_one_alone(folder: Path) -> None:
    operators = [entry for kind in found(folder, "two", "border")["kinds"] for entry in kind["operators"]]
    own = [entry for entry in operators if "1-Layer" in entry["cell"]]
    assert not [entry for entry in own if None in (entry["first"], entry["second"])]


def test_schedules_and_micro_batches(folder: Path) -> None:
    stages = found(folder, "two", "gpipe")["stages"]
    assert [(entry["name"], entry["first"], entry["second"]) for entry in stages["settings"]] == [
        ("schedule", "1f1b", "gpipe"), ("micro-batches", "4", "8")
    ]  # fmt: skip
    assert stages["moved"] == []
    assert [entry["keeps"] for entry in stages["stages"]] == [[2, 8], [1, 8]]
    (there, back) = stages["borders"]
    assert (there["source"], there["target"], there["messages"]) == (0, 1, [4, 8])
    assert (back["source"], back["target"], back["messages"]) == (1, 0, [5, 9])  # with the loss
    assert there["bytes"] == [512, 512]  # half of the 16 rows


def test_unequal_numbers_of_stages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = found(folder, "two", "four")["stages"]
    assert [(entry["name"], entry["first"], entry["second"]) for entry in stages["settings"]] == [("stages", "2", "4")]
    moved = {entry["cell"]: (entry["first"], entry["second"]) for entry in stages["moved"] if "-Layer" in entry["cell"]}
    told = {cell.removeprefix(f"{BELOW}/")[0]: [text[:7] for text in texts] for cell, texts in moved.items()}
    assert told == {"1": ["stage 0", "stage 1"], "2": ["stage 1", "stage 2"], "3": ["stage 1", "stage 3"]}
    pairs = [(entry["source"], entry["target"], entry["messages"]) for entry in stages["borders"]]
    assert (2, 3, [0, 4]) in pairs
    assert [entry["idle"][0] is None for entry in stages["stages"]] == [False, False, True, True]
    capsys.readouterr()
    options = CompileOptions(all_rows=True)
    assert diff_targets(str(folder / "two"), str(folder / "four"), options) == 1
    out = capsys.readouterr().out
    for title in ("the pipeline\n", "stages: idle part", "messages between stages", "operators in another stage"):
        assert title in out
    assert f"{BELOW}/3-Layer\n" in out


def test_a_part_of_the_stages_is_compared_where_both_tell(folder: Path) -> None:
    told = found(folder, "two", "part")
    assert (told["equal"], told["stages"]) == (True, None)
    pipeline = read_facts(folder / "part").pipeline
    assert pipeline is not None
    assert (pipeline.count, pipeline.schedule, pipeline.step, list(pipeline.stages)) == (2, "", None, [1])


def test_the_largest_cells_that_moved_together_are_named() -> None:
    def difference(cell: str, first: str = "stage 0", second: str = "stage 1") -> Difference:
        return Difference("Add", cell, "", first, second)

    alike = [difference("net/a/b"), difference("net/a/c"), difference("net/d", "stage 1", "stage 2: Float32 (2)")]
    assert moved_cells(alike) == [("net/a", 2, ("stage 0", "stage 1")), ("net/d", 1, ("stage 1", "stage 2"))]
    assert moved_cells(alike[:2]) == [("net", 2, ("stage 0", "stage 1"))]


EDITS = [
    ("micro_batch: 3", "micro_batch: 900000000", "works on micro-batch 900000000, and not on all of those"),
    ('work: "F"', 'work: "Q"', "no work on a micro-batch is work: Q, chunk: 0, micro_batch: 0"),
    ("chunk: 0", "chunks: 0", "no work on a micro-batch is work: F, chunk: None, micro_batch: 0"),
    ("pipeline_stages : 2", "pipeline_stages : 3", "the header says stage 0 of 3, and rank 0 of 4"),
    ("stage : 0", "stage : 1", "the header says stage 1 of 2, and rank 0 of 4"),
    ("# scope", "# changed\n      # scope", ""),
]


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_programs_of_stages_that_were_changed_by_hand(
    old: str, new: str, message: str, folder: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(folder / "two", changed)
    (file,) = (changed / "rank_0").glob("*execute*.ir")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if message:
        with pytest.raises(MspcError, match=message):
            diff_targets(str(folder / "two"), str(changed), CompileOptions())
    else:
        assert diff_targets(str(folder / "two"), str(changed), CompileOptions()) == 0
