"""`mspc verify` of networks in stages: right ones are equal to one device, and planted faults are found and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.compiler.frontend import micro_batches
from mspc.passes.lib import stage_chunks
from mspc.passes.lib.stage_chunks import ChunkGraph
from mspc.passes.lib.stage_programs import OrderedWork
from tests.compiled_scripts import QUIET, CompileOptions, compile_target, verify_target, verify_text
from tests.errors import failure_of
from tests.graphs import ExecutionError, Node
from tests.operators import AddN, ReceiveFromStage

SCRIPT = """\
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
                             pipeline_config={"pipeline_scheduler": "SCHEDULER"})
drawn = np.random.RandomState(3)
class Layer(nn.Cell):
    def __init__(self, stage, w=None, drops=False):
        super().__init__()
        self.w = Parameter(Tensor(drawn.randn(4, 4), ms.float32)) if w is None else w
        self.drop = nn.Dropout(p=0.3) if drops else None
        self.pipeline_stage = stage
    def construct(self, x):
        x = ops.tanh(ops.matmul(x, self.w))
        return x if self.drop is None else self.drop(x)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = Layer(0, drops=DROPS)
        self.second, self.last = Layer(0), Layer(1)
        self.tied = Layer(1, self.first.w)
    def construct(self, x, y):
        return ((self.tied(self.last(self.second(self.first(x)))) - y) ** 2).mean()
cell = nn.PipelineCell(Net(), 4)
manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=256, scale_factor=2, scale_window=2)
optimizer = nn.Momentum(cell.trainable_params(), 0.1, 0.9)
step = nn.TrainOneStepWithLossScaleCell(cell, optimizer, manager).set_train()
step(Tensor(np.ones((8, 4), np.float32)), Tensor(np.ones((8, 4), np.float32)))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(scheduler: str = "1f1b", drops: bool = False) -> str:
        path = tmp_path / "net.py"
        path.write_text(SCRIPT.replace("SCHEDULER", scheduler).replace("DROPS", str(drops)))
        return str(path)

    return write


def found(target: str, ranks: int | None = 2, **options: Any) -> ExecutionError:
    """The message on a program that differs."""
    error = failure_of(verify_target, target, CompileOptions(ranks, loudness=QUIET), 1, **options)
    assert error.exit_status == 1
    return error


@pytest.mark.parametrize(("scheduler", "ranks"), [("1f1b", 2), ("gpipe", 4), ("zero_bubble_h1", 4)])
def test_right_stages_are_equal(
    script: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str, ranks: int
) -> None:
    file = tmp_path / "rows.json"
    verify_target(script(scheduler), CompileOptions(ranks, json=file), 1)
    shown = capsys.readouterr().out
    assert shown.startswith(f"one device beside {ranks} ranks in 2 stages: 3 steps, inputs from seed 1\n")
    assert "gradients on one device beside finite differences along 3 random directions" in shown
    rows = {(row["kind"], row["name"]): row for row in json.loads(file.read_text())["values"]}
    assert all(row["same"] for row in rows.values())
    weights = [("gradient", "second.w"), ("gradient", "last.w"), ("parameter", "last.w")]
    assert [rows[each]["stage"] for each in weights] == [0, 1, 1]
    assert ("gradient", "tied.w") in rows  # which both stages read
    assert ("parameter", "moments.second.w") in rows
    assert ("parameter", "scale_sense") in rows


def test_random_numbers_are_those_of_the_stages(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(script(drops=True), CompileOptions(2), 1)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("equal: ")


def test_a_network_that_draws_before_its_parts_is_held_to_them(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts have no loop on one device, as they draw nothing, and are compared though the step draws."""
    path = Path(script())
    text = path.read_text().replace("optimizer = ", '''
class Dropped(nn.Cell):
    def __init__(self):
        super().__init__()
        self.drop, self.cell = nn.Dropout(p=0.3), cell
    def construct(self, x, y):
        return self.cell(self.drop(x), y)
dropped = Dropped()
optimizer = ''').replace("WithLossScaleCell(cell,", "WithLossScaleCell(dropped,")
    path.write_text(text)
    verify_target(str(path), CompileOptions(2, loudness=QUIET), 1)
    right = micro_batches._parts

    def doubled(tracer: Any, place: Any, value: Any, *rest: Any) -> Any:
        return right(tracer, place, tracer.emit(tracer.op("Add"), value, value), *rest)

    monkeypatch.setattr(micro_batches, "_parts", doubled)
    assert "micro-batches unrolled" in found(str(path)).notes[0]


def test_a_message_of_another_micro_batch_is_found(
    script: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first operator that reads it is named, with its micro-batch and stage."""
    right = OrderedWork._value

    def exchanged(self: OrderedWork, value: Any, number: int) -> Any:
        is_received = isinstance(value, Node) and isinstance(value.op, ReceiveFromStage) and value.phase == "forward"
        return right(self, value, {1: 2, 2: 1}.get(number, number) if is_received else number)

    monkeypatch.setattr(OrderedWork, "_value", exchanged)
    error = found(script("gpipe"))
    assert error.notes[0] == "the first operator that differs is MatMul in micro-batch 1 on stage 1"
    assert "net.py" in error.render()
    assert "x = ops.tanh(ops.matmul(x, self.w))" in error.render()


def test_a_gradient_that_is_added_twice_is_found(
    script: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = stage_chunks._fill

    def twice(chunk: ChunkGraph, *args: Any) -> None:
        fill(chunk, *args)
        for node in chunk.graph.nodes if chunk.key == ("B", 0) else ():
            if isinstance(node.op, AddN) and node.inputs[0].name == "gradient_of_second.w":
                node.inputs.append(node.inputs[-1])

    monkeypatch.setattr(stage_chunks, "_fill", twice)
    file = tmp_path / "rows.json"
    error = failure_of(verify_target, script(), CompileOptions(2, json=file, loudness=QUIET), 1)
    rows = json.loads(file.read_text())["values"]
    wrong = {(row["kind"], row["name"], row.get("stage")) for row in rows if not row["same"]}
    gradients = {name for kind, name, _ in wrong if kind == "gradient"}
    assert gradients == {"second.w"}
    assert ("parameter", "second.w", 0) in wrong
    assert error.notes[0].endswith(" is MatMul, added up over micro-batches, on stage 0")
    assert "they part at MatMul, added up over micro-batches, on stage 0, net.py:14" in capsys.readouterr().out


def test_a_tied_weight_whose_stages_do_not_add_up_is_found(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry = stage_chunks._carry

    def alone(graph: Any, loop: Any, more: Any) -> None:
        carry(graph, loop, more)
        for node in graph.nodes:
            if isinstance(node.op, AddN) and node.attrs.get("reason", "").startswith("stages add up"):
                node.inputs = node.inputs[:1]

    monkeypatch.setattr(stage_chunks, "_carry", alone)
    assert found(script()).notes[0].endswith(" is MatMul, added up over micro-batches, on stage 0")


def test_an_overflow_of_another_stage_that_is_lost_is_found(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values that stages exchange of no micro-batch, the gradients in which an overflow is looked for among
    them."""
    right = ReceiveFromStage.kernel

    def deaf(self: ReceiveFromStage, be: Any) -> Callable[..., Any]:
        kernel = right(self, be)
        told = self.micro_batch < 0
        return lambda: np.nan_to_num(kernel(), posinf=0.0, neginf=0.0) if told else kernel()

    monkeypatch.setattr(ReceiveFromStage, "kernel", deaf)
    assert "they differ if a gradient overflows on one rank" in found(script()).notes


def test_parts_of_the_batch_that_are_wrong_on_one_device_too_are_found(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = micro_batches._parts

    def doubled(tracer: Any, place: Any, value: Any, *rest: Any) -> Any:
        return right(tracer, place, tracer.emit(tracer.op("Add"), value, value), *rest)

    monkeypatch.setattr(micro_batches, "_parts", doubled)
    note = "one device computes other values with the loop over micro-batches unrolled"
    assert list(found(script()).notes) == [note]


def test_a_folder_is_verified_too(
    script: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    compile_target(script(), CompileOptions(4, out=folder, loudness=QUIET))
    verify_target(str(folder), CompileOptions(loudness=QUIET), 1)
    assert capsys.readouterr().out.startswith("equal: ")
    path = next((folder / "rank_2").glob("*.ir"))
    text = path.read_text()
    assert text.count("Tanh(") > 1
    path.write_text(text.replace("Tanh(", "Sigmoid(", 1))
    error = found(str(folder), None)
    assert any(note.startswith("edited since the compile: ") for note in error.notes)


TABLE = """\
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2)
drawn = np.random.RandomState(3)
class First(nn.Cell):
    def __init__(self, table):
        super().__init__()
        self.table, self.pipeline_stage = table, 0
        self.gather = ops.Gather().shard(((2, 1), (2,)))
    def construct(self, places):
        return self.gather(self.table, places, 0)
class Head(nn.Cell):
    def __init__(self, table):
        super().__init__()
        self.table, self.pipeline_stage = table, 1
        self.matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (2, 1)))
    def construct(self, x):
        return self.matmul(x, self.table)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(drawn.randn(16, 8), ms.float32))
        self.first, self.head = First(self.table), Head(self.table)
    def construct(self, places, y):
        return ((self.head(self.first(places)) - y) ** 2).mean()
cell = nn.PipelineCell(Net(), 2)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1)).set_train()
step(Tensor(drawn.randint(0, 16, 8), ms.int32), Tensor(np.ones((8, 16), np.float32)))
"""


def test_ranks_that_only_send_a_tied_table_do_it_on_the_stage_that_reads_it(tmp_path: Path) -> None:
    verify_text(tmp_path, TABLE, CompileOptions(8, loudness=QUIET))
