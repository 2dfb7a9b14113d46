"""AllFinite: layouts of its own for every operand, and its CUDA kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, TensorType
from mspc.ops.optim.optimizer import AT_ONCE, AllFinite
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.lib.choices import operandwise_choice
from tests.interpret import run_on_ranks
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator

BAD = [None, (0, np.inf), (1, -np.inf), (2, np.nan)]


def arrays(bad: tuple[int, float] | None) -> list[np.ndarray]:
    kinds = (((700, 3), FLOAT32), ((5,), FLOAT16), ((), BFLOAT16), ((0, 2), FLOAT32))
    made = [np.full(shape, 3e4, kind.numpy) for shape, kind in kinds]
    if bad is not None:
        made[bad[0]].reshape(-1)[-1] = bad[1]
    return made


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
def test_kernel_equals_numpy(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    cases = []
    for bad in BAD:
        for inputs in (arrays(bad), arrays(bad) * AT_ONCE):
            out = np.zeros((), bool)
            cases.append((AllFinite().launch(device, out, *inputs), out, bad is None))
            assert bool(AllFinite().run(type("B", (), {"xp": np}), *inputs)) == (bad is None)
    for launch, out, expected in cases:
        launch()
        assert bool(out) == expected


def test_operands_stay_as_they_lie() -> None:
    one, other = Layout.of((2, 4), [(0,), ()]), Layout.of((2, 4), [(1,)])
    whole = Layout.replicated(8, 1)
    assert operandwise_choice(AllFinite(), [one, whole], 8).outputs == (Layout.of((2, 4), (), (0,), "all"),)
    assert operandwise_choice(AllFinite(), [one, other], 8).outputs == (Layout.of((8,), (), (0,), "all"),)
    assert operandwise_choice(AllFinite(), [whole], 8).outputs == (Layout.replicated(8, 0),)
    crossing = [Layout.of((3, 4), [(0,)]), Layout.of((4, 3), [(0,)])]
    choice = operandwise_choice(AllFinite(), crossing, 12)
    assert choice.inputs == tuple(crossing)
    assert choice.outputs == (Layout.of((12,), (), (0,), "all"),)


@pytest.mark.parametrize("bad", [None, (0, 5), (1, 11)])
def test_one_bad_element_on_one_rank_is_known_to_all(bad: tuple[int, int] | None) -> None:
    graph = Graph("flag")
    graph.attrs = {"ranks": 12, "mode": "semi_auto_parallel", "outputs": "whole"}
    shapes = [(12, 2), (12,)]
    graph.parameters = [Parameter(f"x{i}", TensorType(FLOAT32, s), "input") for i, s in enumerate(shapes)]
    graph.parameters[0].layout = Layout.of((3, 4), [(0,), ()])
    graph.parameters[1].layout = Layout.of((4, 3), [(0,)])
    b = Builder(graph)
    graph.results = [b.emit(Cast(dst_type=FLOAT32), b.emit(AllFinite(), *graph.parameters))]
    graph = run_passes(graph, parse_passes("propagate_sharding,insert_redistribution,lower_redistribution"))
    assert [node.op.name for node in graph.nodes] == ["AllFinite", "AllReduce", "Cast"]
    feeds = {p.name: np.ones(s, np.float32) for p, s in zip(graph.parameters, shapes, strict=True)}
    if bad is not None:
        feeds[f"x{bad[0]}"][bad[1]] = np.nan
    assert bool(run_on_ranks(graph, feeds)[0]) == (bad is None)
