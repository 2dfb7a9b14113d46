"""Graphs that are worth a compiler run their nodes as compiled loops; others never ask for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.regions import Scan
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import library, program
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.elementwise import Square
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.activation import GeLU
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.nn.norm import LayerNorm
from mspc.ops.nn.softmax import Softmax
from mspc.ops.optim.optimizer import AssignAdd
from mspc.ops.tensor.reshape import ReduceSum
from mspc.runtime import compiled_loops
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from tests.conftest import HANG
from tests.runtime.region_graphs import graph as region
from tests.runtime.region_graphs import run_graphs
from tests.runtime.test_buffers import Maker, arrays


def network() -> Graph:
    """Products between chains, a norm, rows, sums, and an update of a parameter."""
    make = Maker()
    x, w = make.values
    make.graph.parameters[1].kind = "parameter"
    product = make.add(GeLU(), make.add(MatMul(), x, w))
    total = make.add(ReduceSum(False, (0,)), product)
    normed = make.add(TupleGetItem(0), make.add(LayerNorm(1, 1, 1e-5), product, total, total))
    soft = make.add(Softmax(), make.add(Add(), normed, x))
    grown = make.add(AssignAdd(), w, make.add(Mul(), soft, product))
    return make.done(soft, total, grown)


def losses(steps: int = 3) -> list[list[Any]]:
    """The results of some steps, and the names of the nodes' kernels."""
    x, w = arrays()
    executor = Executor(network(), NumPyBackend(OneRank(), planned_from=0), {"x1": w.copy()})
    return [[np.array(value) for value in executor.run([x])] for _ in range(steps)]


def test_a_small_graph_asks_for_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(program, "kernels", refuse)
    losses(1)
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", 0)
    with pytest.raises(AssertionError):
        losses(1)


def test_steps_are_those_of_numpy_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.compiler():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = losses()
    found: list[program.LoopKernels] = []
    make = program.kernels

    def noted(*arguments: Any) -> program.LoopKernels:
        found.append(make(*arguments))
        return found[-1]

    monkeypatch.setattr(program, "kernels", noted)
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", 0)
    monkeypatch.setattr(compiled_loops, "MIN_NODE_ELEMENTS", 0)
    first, again = losses(), losses()
    assert [(len(made.loops), len(made.updates)) for made in found] == [(6, 1)] * 2
    for step, other, numbers in zip(first, again, wanted, strict=True):
        for one, two, three in zip(step, other, numbers, strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_allclose(one, three, rtol=2e-5, atol=2e-6)


def test_attention_counts_with_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("attention")
    builder = Builder(graph)
    sides = [Parameter(name, TensorType(FLOAT32, (1, 2, 64, 4)), "input") for name in ("q", "k", "v")]
    builder.emit(FlashAttentionScore(2, input_layout="BNSD"), *sides)
    found: list[bool] = []
    for worth in (2 * 64 * 64, 2 * 64 * 64 + 1):
        monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", worth)
        found.append(compiled_loops.is_worth_compiling(graph, NumPyBackend(OneRank())))
    assert found == [True, False]


def test_what_loops_do_counts_as_often_as_they_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = TensorType(FLOAT32, (64,))
    body = region("body", [row], lambda b, x: [b.emit(Square(), b.emit(Square(), x))])
    loop = region("main", [row], lambda b, x: run_graphs(b, Scan(turns=5, carried=1), [x], body))
    found: list[bool] = []
    for worth in (5 * 2 * 64, 10 * 2 * 64):
        monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", worth)
        found.append(compiled_loops.is_worth_compiling(loop, NumPyBackend(OneRank())))
    assert found == [True, False]


def test_what_programs_share_is_compiled_beside_the_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.compiler():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elements = sum(map(compiled_loops.elements, network().nodes))
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", elements // 2)
    assert compiled_loops.begin_library(network(), "CPU", 4) is None
    assert compiled_loops.begin_library(network(), "GPU", 1) is None
    thread = compiled_loops.begin_library(network(), "CPU", 2)
    assert thread is not None
    thread.join(HANG)
    assert not thread.is_alive()
    made = list((tmp_path / "mspc" / "loops").glob("*.so"))
    assert len(made) == 1
    monkeypatch.setattr(library, "_compile_library", lambda *_: pytest.fail("it is compiled again"))
    thread_pool.library.cache_clear()
    assert thread_pool.library() is not None
    thread_pool.put_on_disk()
