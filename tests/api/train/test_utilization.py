"""The callback that says how much of a device's arithmetic a step uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mspc import train
from mspc.commands.run import run_script

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from mindspore.communication import init
from mindspore.dataset import GeneratorDataset
from mindspore.train import FlopsUtilizationCollector, Model

SETTINGS


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(16, 32, has_bias=False)
        self.last = nn.Dense(32, 16, has_bias=False)
        self.first.matmul.shard(FIRST)
        self.last.matmul.shard(LAST)
        NETWORK

    def construct(self, x):
        return self.last(self.first(x))


class Loss(nn.Cell):
    def construct(self, y, label):
        return ops.square(y - label).mean()


rows = np.ones((64, 16), np.float32)
data = GeneratorDataset(list(zip(rows, rows)), ["x", "y"]).batch(8)
net = Net()
step = nn.WithLossCell(net, Loss())
CELL
model = Model(step, optimizer=nn.SGD(net.trainable_params(), 0.1))
model.train(1, data, callbacks=[FlopsUtilizationCollector(3, OPTIONS)], dataset_sink_mode=False)
"""
PRODUCT = 2 * 8 * 16 * 32
"""Operations of one of the two products on 8 rows."""
STEP = PRODUCT * 5
"""Both, both gradients of the second, and that of the first's weight."""
SHARDED = 'init()\nms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"MORE)'


def said(
    folder: Path, capsys: Any, ranks: int = 1, settings: str = "", more: str = "", network: str = "", cell: str = "",
    options: str = "computility=1e9", first: str = "None", last: str = "None",
) -> list[str]:  # fmt: skip
    text = SCRIPT.replace("SETTINGS", settings.replace("MORE", more)).replace("NETWORK", network).replace("CELL", cell)
    text = text.replace("OPTIONS", options).replace("FIRST", first).replace("LAST", last)
    if first == "None":
        text = "\n".join(line for line in text.splitlines() if ".shard(None)" not in line)
    (folder / "net.py").write_text(text)
    run_script(folder / "net.py", ranks, simulate=True)
    return capsys.readouterr().out.splitlines()


def flops(full: float, full_hardware: float, own: float, own_hardware: float) -> str:
    return (
        f"Full model flops is {full}, Full hardware flops is {full_hardware}, "
        f"Shard model flops is {own}, Shard hardware flops is {own_hardware}."
    )


def test_the_operations_of_a_step_and_the_share_of_the_device(tmp_path: Path, capsys: Any) -> None:
    first, *steps = said(tmp_path, capsys)
    assert first == flops(*4 * [float(STEP)])
    assert len(steps) == 2  # the 3rd and the 6th of 8
    for line in steps:
        found = re.fullmatch(r"Train per step time: +([\d.]+) ms mfu:([\d.]+)% hfu:([\d.]+)%", line)
        assert found is not None
        assert float(found[2]) == float(found[3])
        assert float(found[2]) == pytest.approx(100 * STEP / 1e9 / (float(found[1]) / 1000), rel=0.02, abs=0.011)


def test_what_is_recomputed_counts_for_the_hardware_alone(tmp_path: Path, capsys: Any) -> None:
    network = "self.first.recompute()"
    text = "self.first = nn.SequentialCell(nn.Dense(16, 32, has_bias=False), nn.GELU())\n        "
    first = said(tmp_path, capsys, network=text + network)[0]
    assert first == flops(*2 * [float(STEP), float(STEP + PRODUCT)])


def test_ranks_and_stages_have_their_part_of_it(tmp_path: Path, capsys: Any) -> None:
    strategies = {"first": "((2, 1), (2, 1))", "last": "((2, 2), (1, 2))"}
    sharded = said(tmp_path, capsys, 4, SHARDED, **strategies)[0]
    assert sharded == flops(float(STEP), float(STEP), STEP / 4, STEP / 4)
    staged = said(
        tmp_path, capsys, 4, SHARDED, ", pipeline_stages=2",
        "self.first.pipeline_stage = 0\n        self.last.pipeline_stage = 1", "step = nn.PipelineCell(step, 2)",
        first="((2, 1), (1, 1))", last="((2, 1), (1, 1))",
    )[0]  # fmt: skip
    assert staged == flops(float(STEP), float(STEP), float(PRODUCT), float(PRODUCT))


def test_figures_for_a_cloud(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MA_LOG_DIR", str(tmp_path))
    assert said(tmp_path, capsys, options="enable_ma_collector=True") == []
    lines = (tmp_path / "flops_rank_0.txt").read_text().splitlines()
    assert re.fullmatch(rf'flops{{type="model_flops", rank_id="0"}} {STEP}\.0 \d+', lines[0])
    assert re.fullmatch(rf'flops{{type="hardware_flops", rank_id="0"}} {STEP}\.0 \d+', lines[1])
    assert re.fullmatch(
        r'time_monitor{type="per_step_time", rank_id="0"} [\d.]+ \d+\n', (tmp_path / "time_step_rank_0.txt").read_text()
    )


def test_this_rank_alone(tmp_path: Path, capsys: Any) -> None:
    assert said(tmp_path, capsys, options="full_flops=False")[0] == (
        f"Shard model flops is {STEP}.0, Shard hardware flops is {STEP}.0."
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("3",), TypeError, "data_size must be an integer, not '3'"),
        ((0,), ValueError, "data_size must be at least 1, not 0"),
        ((3, 1, 1), TypeError, "full_flops must be True or False, not 1"),
        ((3, 1, True, None), TypeError, "enable_ma_collector must be True or False, not None"),
    ],
)
def test_wrong_arguments(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"FlopsUtilizationCollector: {message}"):
        train.FlopsUtilizationCollector(*arguments)
