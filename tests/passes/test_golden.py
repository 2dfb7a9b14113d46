"""Golden tests: `tests/passes/ROOM/PASS/CASE.ir` through the passes on its `# RUN:` line must give `CASE.out.ir`.

`pytest tests/passes --update-goldens` rewrites the files that differ. A rewritten golden is still checked: the
text reads
back equal, both graphs are run and give the same numbers, and the `# COLLECTIVES:` line, where there is one, holds.
A case with a `CASE.err` must fail with exactly that message.
Data parallel mode: a rank's graph takes its own rows for the batch, whatever an operator does with sizes.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.collective.collectives import Collective, LayoutChange
from mspc.passes.base import PassManager, parse_passes, run_passes
from mspc.passes.per_rank.slice_to_rank import SliceToRank
from tests.errors import error_of
from tests.graphs import REGISTRY, Builder, Graph, Layout, Op, Parameter, difference, element_types, parse, print_graph
from tests.grouped import grouped
from tests.interpret import random_feeds, run_global, run_on_ranks, same
from tests.ops.simulate import BACKEND, arrays_of, operator_of, types_of

HERE = Path(__file__).parent
CASES = sorted(p for p in HERE.glob("*/*/*.ir") if not p.name.endswith(".out.ir"))
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "NeighborExchange", "Exchange")


def read(text: str, name: str) -> Graph:
    return parse(text, REGISTRY, file=name, frames=True).main


def header(text: str, key: str) -> str:
    found = re.search(rf"^# {key}: (.*)$", text, re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("case", CASES, ids=[f"{p.parent.name}/{p.stem}" for p in CASES])
def test_golden(case: Path, update_goldens: bool) -> None:
    text = case.read_text(encoding="utf-8")
    passes = parse_passes(header(text, "RUN"))
    assert passes, f"{case} has no # RUN: line"
    assert case.parent.name in {p.name for p in passes}
    expected = case.with_suffix(".out.ir")
    failure = case.with_suffix(".err")
    if failure.exists():
        _compare(failure, error_of(run_passes, read(text, case.name), passes).render() + "\n", update_goldens)
        return
    result = run_passes(read(text, case.name), passes)
    result.verify()
    got = print_graph(result)
    assert difference(read(got, expected.name), result) == "", "the printed text does not read back equal"
    _same_numbers(read(text, case.name), result)
    wanted = dict(re.findall(r"(\w+)=(\d+)", header(text, "COLLECTIVES")))
    counts = Counter(node.op.name for node in result.nodes)
    for name, number in wanted.items():
        assert counts[name] == int(number), f"{counts[name]} {name} instead of {number}"
    _compare(expected, got, update_goldens)


@pytest.mark.parametrize("case", CASES, ids=[f"{p.parent.name}/{p.stem}" for p in CASES])
def test_a_pass_says_whether_it_has_changed_the_graph(case: Path) -> None:
    if case.with_suffix(".err").exists():
        return
    text = case.read_text(encoding="utf-8")
    graph, manager = read(text, case.name), PassManager()
    for step in parse_passes(header(text, "RUN")):
        before = print_graph(graph)
        graph, changed = manager.apply(step, graph)
        assert changed == (print_graph(graph) != before), step.name


def _compare(path: Path, got: str, update: bool) -> None:
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    if got == known:
        return
    if update:
        path.write_text(got, encoding="utf-8")
        print(f"rewrote {os.path.relpath(path, HERE)}")
        return
    assert got == known, f"{path.name} differs; look at it, then pytest tests/passes --update-goldens"


def _same_numbers(before: Graph, after: Graph) -> None:
    """Both graphs, run, hand back the same numbers; a graph of one rank is run with all its siblings."""
    if "rank" in after.attrs:
        feeds = random_feeds(before)
        same(run_on_ranks(before, feeds), run_global(before, feeds))
        return
    if after.attrs["mode"] == "data_parallel":
        return  # the sum over ranks that hold different data; tests/commands compare that with one device
    feeds = random_feeds(before)
    updates = [any(node.phase == "update" for node in graph.nodes) for graph in (before, after)]
    count = None if updates[0] == updates[1] else len(after.results)  # the view shows forward operators only
    same(run_global(after, feeds)[:count], run_global(before, feeds)[:count])


def _localized() -> Iterator[tuple[str, int]]:
    """(operator, index of a sample) of all whose attributes may hold global sizes."""
    for name, cls in sorted(REGISTRY.items()):
        own = cls.localize is not Op.localize or cls.expand is not Op.expand
        if own and cls.__module__.startswith("mspc.ops.") and not issubclass(cls, Collective | LayoutChange):
            yield from ((name, index) for index in range(len(cls.samples)))


def _fed(name: str, index: int, ranks: int) -> tuple[Graph, Op]:
    """A graph that feeds an operator every rank's own rows; parameters that it changes are replicated."""
    op, sample = operator_of(name, index)
    graph = Graph("own_rows")
    graph.attrs = {"mode": "data_parallel", "ranks": ranks}
    for i, type in enumerate(types_of(sample)):
        parameter = Parameter(f"x{i}", type, "parameter" if i in op.mutates else "input")
        if i not in op.mutates and type.shape:
            parameter.layout = Layout.of((ranks,), [(0,), *[()] * (type.rank - 1)])
            parameter.global_type = type.with_shape((type.shape[0] * ranks, *type.shape[1:]))
        graph.parameters.append(parameter)
    graph.results = [Builder(graph).emit(op, *graph.parameters)]
    return graph, op


def test_there_are_such_operators() -> None:
    names = {name for name, _ in _localized()}
    assert {"Slice", "StridedSlice", "Tile", "Reshape", "BroadcastTo", "Gather", "Tril", "Dropout"} <= names


@grouped([(*case, ranks) for case in _localized() for ranks in (1, 2, 4)])
def test_an_operator_on_an_input_computes_what_it_does_on_the_own_rows(name: str, index: int, ranks: int) -> None:
    graph, op = _fed(name, index, ranks)
    _, sample = operator_of(name, index)
    types = types_of(sample)
    for rank in range(ranks):
        local, _ = SliceToRank(rank).apply(graph)
        (node,) = local.nodes
        rows = [np.roll(x, rank, 0) if x.ndim else x for x in arrays_of(name, sample, types)]
        expected = op.kernel(BACKEND)(*[np.array(x) for x in rows])
        found: Any = node.op.kernel(BACKEND)(*[np.array(x) for x in rows])  # type: ignore[attr-defined]  # an Op
        assert element_types(node.type) == element_types(op.infer(*types))
        for mine, wanted in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
            np.testing.assert_array_equal(mine, wanted)
