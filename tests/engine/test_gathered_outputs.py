"""Evaluation over several ranks: metrics are those of one device that sees all the data.

The output of ranks under an mpirun that mspc has started comes complete, and a job ends whose output goes
nowhere.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from tests.errors import error_of
from tests.serving import HANG, succeed

TEXT = """
import json
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, Tensor
from mindspore.communication import init, get_rank, get_group_size
from mindspore.train import Accuracy, Loss, Metric, Model

SETTINGS
init()
rank, size = get_rank(), get_group_size()
ms.set_seed(1)
draw = np.random.default_rng(0)
x, y = draw.standard_normal((24, 6)).astype(np.float32), draw.integers(0, 4, 24).astype(np.int32)


class Largest(Metric):
    def clear(self):
        self.found = {}

    def update(self, *inputs):
        logits, labels = (self._convert_data(value) for value in inputs)
        for row, label in zip(logits, labels):
            self.found[str(label)] = max(self.found.get(str(label), -9.0), round(float(row.max()), 4))

    def eval(self):
        return dict(sorted(self.found.items()))


def rows(which, batch):
    return ds.GeneratorDataset(list(zip(x[which], y[which])), ["x", "y"], shuffle=False).batch(batch)


net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
metrics = {"accuracy": Accuracy(), "loss": Loss(), "largest": Largest()}
model = Model(net, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), 0.5), metrics=metrics)
data = DATA
TRAIN
found = model.eval(data)
print(json.dumps(found))
"""
OWN = "rows(slice(rank, None, size), 8 // size)"
TRAINED = "model.train(2, data)"
PARALLEL = 'ms.set_auto_parallel_context(parallel_mode="{}"{})'
DATA_PARALLEL = PARALLEL.format("data_parallel", ", gradients_mean=True, parameter_broadcast=True")


def text(settings: str, data: str, train: str = TRAINED) -> str:
    return TEXT.replace("SETTINGS", settings).replace("DATA", data).replace("TRAIN", train)


def printed(script: Path, what: str, ranks: int, capsys: Any) -> list[Any]:
    """The results of each rank."""
    script.write_text(what)
    run_script(script, ranks, simulate=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def same(found: Any, expected: Any) -> bool:
    """Whether metrics are equal, the loss but for rounding."""
    exact = {**found, "loss": 0} == {**expected, "loss": 0}
    return exact and found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("mode", "data"),
    [
        (DATA_PARALLEL, OWN),
        (PARALLEL.format("semi_auto_parallel", ""), OWN),
        (PARALLEL.format("auto_parallel", ""), OWN),
        (PARALLEL.format("semi_auto_parallel", ', dataset_strategy="full_batch"'), "rows(slice(None), 8)"),
    ],
    ids=["data", "semi", "auto", "full"],
)
def test_metrics_are_those_of_one_device(script: Path, capsys: Any, mode: str, data: str) -> None:
    expected = printed(script, text("", "rows(slice(None), 8)"), 1, capsys)[0]
    found = printed(script, text(mode, data), 4, capsys)
    assert len(found) == 4
    assert all(same(each, expected) for each in found)


@pytest.mark.parametrize(
    ("mode", "data"),
    [
        ("data_parallel", "rows(slice(0, 8) if rank == 0 else slice(8, 24), 4)"),
        ("hybrid_parallel", "rows(slice(0, 10) if rank == 0 else slice(10, 24), 4)"),
    ],
)
def test_ranks_with_less_data_wait_for_the_others(script: Path, capsys: Any, mode: str, data: str) -> None:
    expected = printed(script, text("", "rows(slice(None), 24)", ""), 1, capsys)[0]
    found = printed(script, text(PARALLEL.format(mode, ""), data, ""), 2, capsys)
    assert found[0] == found[1]
    for name in ("accuracy", "largest"):
        assert found[0][name] == expected[name]


@pytest.mark.parametrize(
    ("data", "first", "second"),
    [
        ("rows(slice(0, 7 + rank), 4)", "Float32 (3, 6), Int32 (3,)", "Float32 (4, 6), Int32 (4,)"),
        ("rows(slice(0, 4 + 3 * rank), 4)", "no tensors", "Float32 (3, 6), Int32 (3,)"),
    ],
)
def test_batches_of_different_sizes_are_named(script: Path, data: str, first: str, second: str) -> None:
    script.write_text(text(DATA_PARALLEL, data, ""))
    assert (
        f"the ranks call WithEvalCell with different tensors: rank 0 with {first}; rank 1 with {second}"
        in error_of(run_script, script, 2, simulate=True).render()
    )


def test_ranks_that_compute_together_need_as_many_batches(script: Path) -> None:
    script.write_text(text(PARALLEL.format("semi_auto_parallel", ""), "rows(slice(0, 4 + 4 * rank), 4)", ""))
    error = error_of(run_script, script, 2, simulate=True)
    message = "the ranks have different numbers of batches for WithEvalCell: 1 of 2 have a further one, rank 0 has none"
    assert message in error.render()
    assert "in mode semi_auto_parallel all ranks compute every batch together" in error.render()


def test_an_evaluation_on_one_rank_alone_is_explained(script: Path) -> None:
    once = text(DATA_PARALLEL, OWN, "").replace("found = model", "found = {} if rank else model")
    script.write_text(once.replace('print(json', "raise SystemExit #"))
    error = error_of(run_script, script, 2, simulate=True)
    assert "metrics are those of the data of all ranks, so all must evaluate" in error.render()


def test_a_rank_without_any_batch_is_named(script: Path) -> None:
    empty = "type('Empty', (), {'get_dataset_size': lambda s: 0, 'create_tuple_iterator': lambda s, **k: iter(())})()"
    script.write_text(text(PARALLEL.format("hybrid_parallel", ""), f"rows(slice(0, 4), 4) if rank else {empty}", ""))
    with pytest.raises(MspcError, match="rank 0 has no batch for WithEvalCell"):
        run_script(script, 2, simulate=True)


PRINTS = """
from mspc.communication import get_rank, init
init()
for number in range({lines}):
    print("line", number, "of", get_rank(), flush=number % 100 == 0)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "prints.py").write_text(PRINTS.format(lines=3000))
    return [sys.executable, "-m", "mspc", "run", str(tmp_path / "prints.py"), "--ranks", "2"]


def test_all_lines_come(command: list[str]) -> None:
    done = succeed(*command)
    assert sorted(done.stdout.splitlines()) == sorted(f"line {n} of {r}" for n in range(3000) for r in (0, 1))


def test_a_full_disk_is_told(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: cannot write to stdout: No space left on device"
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_enough_ends_the_job(command: list[str]) -> None:
    reader, writer = os.pipe()
    job = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert select.select([reader], [], [], HANG)[0], job.poll()
    os.read(reader, 10)
    os.close(reader)
    _, said = job.communicate(timeout=HANG)
    assert (job.returncode, "Traceback" in said) == (141, False)
