"""States of optimizers that a script's numbers leave unused take no memory, until the numbers change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.api import call_handler
from mspc.commands.run import run_script
from mspc.engine.calls import CompiledCall
from mspc.ir.graph import Graph

STEPS = 6


def losses(
    moments: dict[int, float], alike: bool, by_graph: bool = False, **options: Any
) -> tuple[list[float], nn.SGD]:
    """The losses of steps, before some of which the script gives the momentum another value.

    alike: every step is computed with the states in place. by_graph: a graph gives the values.
    """
    ms.set_seed(1)
    call_handler.install(None)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
    optimizer = nn.SGD(net.trainable_params(), 0.05, **options)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    change = ms.jit(lambda value: ops.assign(optimizer.momentum, value)) if by_graph else optimizer.momentum.set_data
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        if alike:
            patch.setattr(CompiledCall, "_without_unused_states", lambda self, graph: graph)
        for number in range(STEPS):
            if number in moments:
                change(Tensor(moments[number], ms.float32))
            found.append(float(step(Tensor(data), Tensor(data[:, :2])).asnumpy()))
    return found, optimizer


@pytest.mark.parametrize("moments", [{}, {0: 0.9}, {3: 0.9}, {2: 0.9, 4: 0.0}, {1: 0.0, 4: 0.5}])
@pytest.mark.parametrize("options", [{}, {"dampening": 0.5}, {"weight_decay": 0.1}], ids=str)
def test_losses_are_those_of_a_run_with_all_states(moments: dict[int, float], options: dict[str, float]) -> None:
    expected, _ = losses(moments, True, **options)
    found, optimizer = losses(moments, False, **options)
    assert found == expected
    is_used = any(moments.values())
    states = [*optimizer.accum, *optimizer.stat]
    assert all((state.store is not None) == is_used for state in states)
    assert all((state.asnumpy() == 1).all() for state in optimizer.stat) != is_used


@pytest.mark.parametrize("moments", [{0: 0.9}, {3: 0.9}, {0: 0.0, 2: 0.9, 4: 0.0}])
def test_a_momentum_that_a_graph_changes_is_not_relied_on(moments: dict[int, float]) -> None:
    expected, _ = losses(moments, True, by_graph=True)
    found, optimizer = losses(moments, False, by_graph=True)
    assert found == expected
    assert all(state.store is not None for state in optimizer.accum)


@pytest.mark.parametrize("moments", [{}, {3: 0.9}, {2: 0.9, 4: 0.0}])
def test_tables_are_updated_by_the_rows_that_are_looked_up(moments: dict[int, float]) -> None:
    """Until the momentum is another one than 0; the losses and tables are those of dense updates."""
    graphs: list[Graph] = []
    found = []
    for dense in (False, True):
        ms.set_seed(1)
        call_handler.install(None)
        net = nn.SequentialCell(nn.Embedding(50, 4), nn.Dense(4, 3))
        optimizer = nn.SGD(net.trainable_params(), 0.05)
        step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
        make = CompiledCall._without_unused_states

        def noted(self: CompiledCall, graph: Graph, make: Any = make, dense: bool = dense) -> Graph:
            graphs.append(graph if dense else make(self, graph))
            return graphs[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CompiledCall, "_without_unused_states", noted)
            for number in range(STEPS):
                if number in moments:
                    optimizer.momentum.set_data(Tensor(moments[number], ms.float32))
                ids = Tensor(np.array([3, 1, 3, number], np.int32))
                found.append(float(step(ids, Tensor(np.ones((4, 3), np.float32))).asnumpy()))
        found.append(net[0].embedding_table.asnumpy().tobytes())
    assert found[: STEPS + 1] == found[STEPS + 1 :]
    used = ["GroupedRowUpdate" in {node.op.name for node in graph.nodes} for graph in graphs]
    assert used == [True, *([False] if moments else []), False]


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
from mindspore.communication import get_rank, init

init()
ms.set_seed(2)
ms.set_auto_parallel_context(parallel_mode="MODE", gradients_mean=True, dataset_strategy=DATA)
net = nn.Dense(8, 8)
net.matmul.shard(((1, 1), (2, 1)))
optimizer = nn.SGD(net.trainable_params(), 0.1)
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
x = Tensor(np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
losses = [float(step(x, x).asnumpy()) for _ in range(2)]
optimizer.momentum.set_data(Tensor(0.9, ms.float32))
losses += [float(step(x, x).asnumpy()) for _ in range(3)]
ms.save_checkpoint(optimizer, "states-RANK.ckpt".replace("RANK", str(get_rank())))
stat = ms.load_checkpoint("states-RANK.ckpt".replace("RANK", str(get_rank())))["stat.weight"].asnumpy()
print(*[f"{loss:.6f}" for loss in losses], stat.sum())
"""


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel", "stand_alone"])
def test_ranks_change_their_graphs_together(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "states.py"
    data = '"data_parallel"' if mode == "data_parallel" else '"full_batch"'
    script.write_text(SCRIPT.replace("MODE", mode).replace("DATA", data))
    run_script(script, 2, simulate=True)
    found = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(CompiledCall, "_without_unused_states", lambda self, graph: graph)
    run_script(script, 2, simulate=True)
    assert found == capsys.readouterr().out.splitlines()
    assert len(found) == 2
