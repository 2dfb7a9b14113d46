"""Each mistake with stages and micro-batches is one message, with the line of the script and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import nn
from mspc.ir.diagnostics import MspcError
from tests.pipelining.staged_script import printed

STEP = "nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))(*batch({rows}))\n"


def trained(stages: str = "", made: str = "nn.PipelineCell(net, 4)", rows: int = 8, more: str = "") -> str:
    return f"settings({more})\nnet = staged({stages})\ncell = {made}\n" + STEP.format(rows=rows)


@pytest.mark.parametrize(("text", "kind", "message", "line", "note"), [
    (trained(made="nn.PipelineCell(net, 1)"), ValueError, "micro_size is 1, and there are 2 stages",
     "cell = nn.PipelineCell(net, 1)", "give at least 2 micro-batches"),
    (trained(rows=10), ValueError,
     "input 0 of shape (10, 8) must have a number of rows that is a multiple of micro_size=4",
     "cell = nn.PipelineCell(net, 4)", "10 rows can be cut into 2 micro-batches"),
    (trained(rows=11), ValueError, "input 0 of shape (11, 8) must have a number of rows",
     "cell = nn.PipelineCell(net, 4)", "give 8 or 12 rows; if they are the last ones of a data set, batch("),
    (trained("0, 1, 2"), ValueError, "Layer is of stage 2, and there are stages 0 to 1", "cell.pipeline_stage = stage",
     "pipeline_stages is 2"),
    (trained("1, 0, 1"), ValueError, "is in a cell of stage 0, but reads Tanh of stage 1: values flow forward",
     "return ops.tanh(ops.matmul(x, self.w))", "give its cell stage 1 or a later one"),
    (trained(made="net"), RuntimeError, "a network of 2 stages is trained in micro-batches, and there are none",
     "y) ** 2).mean()", "PipelineCell(network, micro_size)"),
    (trained(made="Both(net)").replace("settings", """
class Both(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.one, self.other = nn.PipelineCell(net, 2), nn.PipelineCell(net, 4)

    def construct(self, x, y):
        return self.one(x, y) + self.other(x, y)

settings""", 1), RuntimeError, "a program with several stages has one loop over micro-batches, and this is the second",
     "self.one(x, y) + self.other(x, y)", "call one PipelineCell in a step"),
    (trained(more="pipeline_stages=3"), RuntimeError, "pipeline_stages is 3, which does not divide 2 ranks",
     "ms.set_auto_parallel_context", "every stage has as many ranks"),
    (trained(more="parallel_mode='stand_alone'"), RuntimeError, "pipeline_stages is 2, and the mode is stand_alone",
     "ms.set_auto_parallel_context", "set parallel_mode to semi_auto_parallel"),
    (trained(more="parallel_mode='data_parallel', full_batch=False"), RuntimeError, "the mode is data_parallel",
     "ms.set_auto_parallel_context", "set parallel_mode to semi_auto_parallel"),
])  # fmt: skip
def test_a_launch_says_what_is_wrong(
    tmp_path: Path, text: str, kind: type[Exception], message: str, line: str, note: str
) -> None:
    with pytest.raises(MspcError) as refused:
        printed(tmp_path, text)
    told = refused.value.render()
    first, source, caret = told.splitlines()[:3]
    assert issubclass(refused.value.kind or type(refused.value), kind)
    assert "script_2.py:" in first
    assert message in first
    assert line in source
    assert set(caret.strip()) == {"^"}
    assert note in told.partition("note: ")[2]


def test_parts_of_a_batch_leave_no_rows_out_in_one_stage_either(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"must be a multiple of the number of parts, not 10 of \d"):
        printed(tmp_path, trained(rows=10), ranks=1, stages=1)


class Wrapped(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Dense(2, 2)

    def construct(self, x: Any) -> Any:
        return self.layer1(x)


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    (("4",), TypeError, r"PipelineCell: micro_size must be an int, not '4'"),
    ((2.0,), TypeError, r"PipelineCell: micro_size must be an int, not 2\.0"),
    ((0,), ValueError, r"PipelineCell: micro_size 0 must be at least 1"),
    ((-2,), ValueError, r"PipelineCell: micro_size -2 must be at least 1"),
    ((2, [0]), TypeError, r"PipelineCell: stage_config must be a dict or None, not list"),
    ((2, {"_backbone.layer1": -1}), ValueError, r"pipeline_stage=-1 must be at least 0"),
    ((2, {"_backbone.layer1": "0"}), TypeError, r"pipeline_stage must be an integer, not '0'"),
    ((2, {"layer1": 0}), KeyError, r"names 'layer1', and WithLossCell has no such cell(.|\n)*mean '_backbone\.layer1'"),
    ((2, {"_backbone.layer2": 0}), KeyError, r"names '_backbone\.layer2'(.|\n)*did you mean '_backbone\.layer1'"),
    ((2, None, {"layer1": 0}), KeyError, r"segment_config names 'layer1'"),
])  # fmt: skip
def test_arguments_of_a_pipeline_cell(arguments: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(MspcError) as refused:
        nn.PipelineCell(nn.WithLossCell(Wrapped(), nn.MSELoss()), *arguments)
    assert isinstance(refused.value, kind)
    assert "test_refused_stages.py" in refused.value.render()
    with pytest.raises(kind, match=message):
        raise kind(refused.value.render())


@pytest.mark.parametrize(("scheduler", "message"), [
    ("1F1B", r"'1F1B' is no schedule; there are 1f1b, "),
    ("zero_bubble", r"is no schedule; there are zero_bubble_"),
    ("seqpipe", r"'seqpipe' cuts sequences into parts, and micro-batches are the only parts here"),
    ("seqsmartvpp", r"cuts sequences into parts"),
])  # fmt: skip
def test_names_of_schedules(scheduler: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        ms.set_auto_parallel_context(pipeline_config={"pipeline_scheduler": scheduler})
    assert isinstance(refused.value, MspcError)
