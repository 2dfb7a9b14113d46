"""Attention with rows whose keys are all masked, by kernels that g++ compiles: the numbers are those written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Constant, Graph, Value
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import BOOL, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import REGISTRY
from mspc.passes.autodiff.grad import Grad
from mspc.passes.cleanup.simplify import Simplify
from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.interpret import run_global, same
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, placed
from tests.passes.fusion.masked_attention import LOWEST, Masked, with_whole_rows


def filled(number: float) -> Graph:
    m = Masked("BSND")
    return m.finish(m.filled(m.scores(), m.parameter("mask", (2, 1, 4, 5), BOOL), number))


def added(number: float) -> Graph:
    m = Masked("BNSD")
    shift = m.parameter("shift", (2, 1, 4, 5))
    shift.kind = "input" if number == -math.inf else "parameter"
    return m.finish(m.emit("Add", m.scores(), shift), shift)


NUMBERS = {"1e4": -1e4, "1e9": -1e9, "lowest": LOWEST, "inf": -math.inf}
CASES = {f"{make.__name__} {name}": (make, n) for make in (filled, added) for name, n in NUMBERS.items()}


def prepared(
    device: Emulator, graph: Graph, feeds: dict[str, Any]
) -> tuple[list[Callable[[], object]], list[Any], set[str]]:
    """(what is to be run in turn, the results' arrays, operators with kernels)."""
    values: dict[Value, Any] = {p: placed(feeds[p.name]) for p in graph.parameters}
    runs: list[Callable[[], object]] = []
    names: set[str] = set()

    def by_numpy(op: Any, inputs: list[Any], out: Any) -> Callable[[], object]:
        kernel = op.kernel(device)
        return lambda: np.copyto(out, kernel(*inputs))

    for node in graph.nodes:
        inputs = [placed(np.asarray(v.value)) if isinstance(v, Constant) else values[v] for v in node.inputs]
        op: Any = node.op
        if isinstance(op, TupleGetItem):
            values[node] = inputs[0][op.index]
            continue
        single = isinstance(node.type, TensorType)
        types: Any = (node.type,) if single else node.type.elements  # type: ignore[union-attr]  # a tuple
        made = tuple(placed(np.full(t.shape, 7).astype(t.dtype.numpy)) for t in types)
        values[node] = made[0] if single else made
        launch = op.launch(device, values[node], *inputs)
        if launch is None:
            assert single
            launch = by_numpy(op, inputs, made[0])
        else:
            names.add(op.name)
        runs.append(launch)
    return runs, [values[v] for v in graph.results], names


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case with the numbers of what is written out; all kernels are compiled together."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path_factory.mktemp("kernels"))
    found: dict[str, Any] = {}
    for name, (make, number) in CASES.items():
        graph = make(number)
        before = parse(print_graph(graph), REGISTRY).main
        assert FuseAttention().run(graph)
        Grad().run(graph)
        Simplify().run(graph)
        draw = np.random.default_rng(3).standard_normal
        feeds = {p.name: draw(p.shape).astype(np.float32) for p in graph.parameters}
        rows = with_whole_rows((2, 1, 4, 5), 1)
        feeds |= {"mask": rows} if make is filled else {"shift": np.where(rows, number, 0).astype(np.float32)}
        with np.errstate(all="ignore"):
            expected = run_global(before, feeds)[: len(graph.results)]
        found[name] = *prepared(device, graph, feeds), expected
    return found


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_written_out(cases: dict[str, Any], name: str) -> None:
    runs, results, names, expected = cases[name]
    with np.errstate(all="ignore"):
        for run in runs:
            run()
    assert {"FlashAttentionScore", "FlashAttentionScoreGrad"} <= names
    same(results, expected)
