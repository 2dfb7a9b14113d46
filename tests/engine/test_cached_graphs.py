"""A limited number of graphs of a cell is stored; others are given up and compiled again."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn
from mspc.commands.run import run_script
from mspc.engine.variants import graphs_to_keep
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import call_handler
from tests.texts import IMPORTS

SIZES = (1, 2, 3, 1, 2, 3, 3, 1)


def handler() -> Any:
    return call_handler.current()


def train_step() -> nn.Cell:
    """Return a step that trains a network, whose outputs depend on how often each graph has run."""
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.5))
    return nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1)).set_train()


def outputs(step: nn.Cell) -> list[float]:
    rows = [Tensor(np.ones((size, 16), np.float32)) for size in SIZES]
    return [float(step(x, x).asnumpy()) for x in rows]


def test_values_are_those_of_a_run_that_keeps_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = train_step()  # a step that is gone is no longer counted
    expected = outputs(step)
    counts = handler().steps()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    call_handler.install(None)
    step = train_step()
    assert outputs(step) == expected
    assert handler().steps() == counts == {"train.0": 3, "train.1": 2, "train.2": 3}
    assert len(handler().compiled_calls) == 2
    assert capsys.readouterr().err == (
        "warning: TrainOneStepCell was called with more than 2 kinds of arguments (MSPC_KEPT_GRAPHS): its graph for "
        "Float32 (1, 16), Float32 (1, 16) is given up, as others will be, and compiled again for the next such call\n"
    )


def test_what_was_not_called_for_longest_goes_and_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    net = nn.ReLU()
    alive: dict[int, Any] = {}
    for size in (1, 2, 1, 3):
        net(Tensor(np.ones(size, np.float32)))
        alive.setdefault(size, weakref.ref(list(handler().compiled_calls.values())[-1].executor))
    gc.collect()
    assert [size for size, executor in alive.items() if executor() is not None] == [1, 3]
    other = nn.ReLU()  # has graphs of its own
    for size in (1, 2):
        other(Tensor(np.ones(size, np.float32)))
    assert len(handler().compiled_calls) == 4


def test_graphs_that_look_alike_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "1")
    function = ms.jit(lambda x, unused: x + 1)
    for unused in (1, 2, 3, 1, 2, 2):
        function(Tensor(np.ones(2, np.float32)), unused)
    assert sum(handler().steps().values()) == 6


@pytest.mark.parametrize("given", ["0", "many", "-1", ""])
def test_a_number_that_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", given)
    with pytest.raises(MspcError, match=f"MSPC_KEPT_GRAPHS must be an integer from 1, not '{given}'"):
        graphs_to_keep()


SCRIPT = IMPORTS + """
from mindspore.communication import init, get_rank

init()
ms.set_auto_parallel_context(parallel_mode="MODE")
net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
for size in (2, 4, 6, 2, 4) if get_rank() or not APART else (2, 2, 4, 2, 6):
    out = net(Tensor(np.ones((size, 4), np.float32)))
from mspc.mindspore_api import call_handler
print(len(call_handler.current().compiled_calls), float(out.asnumpy().sum()))
"""


@pytest.mark.parametrize(
    ("mode", "apart", "expected"),
    [("semi_auto_parallel", False, ["2 16.0"] * 2), ("stand_alone", True, ["2 24.0", "2 16.0"])],
)
def test_on_ranks(
    mode: str, apart: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    script = tmp_path / "shapes.py"
    script.write_text(SCRIPT.replace("MODE", mode).replace("APART", str(apart)))
    run_script(script, 2, simulate=True)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)


class Trainer:
    """An object whose method is a graph, as scripts have them."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.dropout = nn.Dropout(p=0.5).set_train()

    @ms.jit
    def step(self, x: Any) -> Any:
        return self.dropout(x) * self.factor


def test_a_method_is_compiled_once_for_each_object() -> None:
    x = Tensor(np.ones(64, np.float32))
    trainers = (Trainer(1.0), Trainer(3.0))
    found = [trainer.step(x).asnumpy() for _ in range(3) for trainer in trainers]
    assert len(handler().compiled_calls) == 2
    assert [set(values) <= {0.0, factor} for values, factor in zip(found, (2.0, 6.0) * 3, strict=True)] == [True] * 6
    assert len({values.tobytes() for values in found[::2]}) == 3


def test_gradients_that_are_requested_again_draw_other_numbers() -> None:
    """A request in a loop is compiled again, as what its function reads may have changed; it is one more step of it."""
    x = Tensor(np.ones(64, np.float32))
    dropout = nn.Dropout(p=0.5).set_train()

    def made_again(cell: Any) -> Any:
        def forward(x: Any) -> Any:
            return cell(x).sum()

        return ms.grad(forward)

    def same(x: Any) -> Any:
        return dropout(x).sum()

    for request in (lambda: ms.grad(same), lambda: made_again(dropout)):
        assert len({request()(x).asnumpy().tobytes() for _ in range(3)}) == 3
