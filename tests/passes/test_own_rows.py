"""Data parallel mode: a rank's graph takes its own rows for the batch, whatever an operator does with sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter, element_types
from mspc.ir.layout import Layout
from mspc.ops.collective.collectives import Collective, LayoutChange
from mspc.ops.op import REGISTRY, Op, load_operators
from mspc.passes.per_rank.slice_to_rank import SliceToRank
from tests.grouped import grouped
from tests.ops.simulate import BACKEND, arrays_of, operator_of, types_of


def _localized() -> Iterator[tuple[str, int]]:
    """(operator, index of a sample) of all whose attributes may hold global sizes."""
    load_operators()
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
