"""Runs graphs of any stage for tests: on one device as they stand, or sliced on all ranks in this process.

Before slicing all types are global, and every collective or redistribution leaves the global value as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.compiler.pipeline import PER_RANK
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ops.collective.collectives import AllReduce, ReduceScatter
from mspc.ops.control.structural import Gradient
from mspc.ops.op import Op
from mspc.passes.autodiff.grad import Grad
from mspc.passes.base import Pass, find_pass, run_passes
from mspc.passes.fusion.causal_masks import CAUSAL_MASK
from mspc.passes.per_rank.slice_to_rank import SliceToRank
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor

Arrays = dict[str, np.ndarray]
FINAL = [find_pass(name) for name in PER_RANK[1:]]
"""What follows on a rank's slice of the graph."""


def random_feeds(graph: Graph, seed: int = 0, dtype: Any = None) -> Arrays:
    """Global arrays for all parameters of the graph: floats in (0.1, 1.1), integers 0 to 3, noted triangles."""
    generator = np.random.default_rng(seed)
    feeds: Arrays = {}
    for parameter in graph.parameters:
        type = parameter.tensor_type if parameter.global_type is None else parameter.global_type
        if CAUSAL_MASK in parameter.attrs:
            diagonal, near, far = parameter.attrs[CAUSAL_MASK]
            triangle = np.where(np.tri(*type.shape[-2:], diagonal, dtype=np.bool_), near, far)
            feeds[parameter.name] = np.broadcast_to(triangle, type.shape).astype(type.dtype.numpy)
        elif type.dtype.is_float:
            feeds[parameter.name] = (generator.random(type.shape) + 0.1).astype(dtype or type.dtype.numpy)
        else:
            feeds[parameter.name] = generator.integers(0, 4, type.shape).astype(type.dtype.numpy)
    return feeds


def run_whole(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a graph with global types, then the parameters that it changed, by name order."""
    if any(isinstance(node.op, Gradient) for node in graph.nodes):
        Grad().run(graph)
    backend = SimpleNamespace(xp=np, comm=None, step=1)
    values: dict[Value, Any] = {p: feeds[p.name].copy() for p in graph.parameters}
    for node in graph.nodes:
        inputs = [v.value if isinstance(v, Constant) else values[v] for v in node.inputs]
        assert isinstance(node.op, Op)
        values[node] = node.op.kernel(backend)(*inputs)
        source = node.inputs[0].layout if node.inputs else None
        if isinstance(node.op, AllReduce | ReduceScatter) and isinstance(source, Layout) and source.reduction == "mean":
            # The sum of partial means; the multiplication by 1/parts comes behind it.
            values[node] = values[node] * source.size_of(source.partial)
    results = [v.value if isinstance(v, Constant) else values[v] for v in graph.results]
    return [*flatten(results), *(values[p] for p in by_name(graph))]


def run_on_ranks(graph: Graph, feeds: Mapping[str, np.ndarray], passes: Sequence[Pass] = FINAL) -> list[np.ndarray]:
    """The same from all ranks of a graph that is ready for slicing: results of rank 0, parameters put together.

    `passes` go over every rank's graph.
    """
    ranks = int(graph.attrs["ranks"])
    locals_ = [SliceToRank(rank).apply(graph)[0] for rank in range(ranks)]
    executors: dict[int, Executor] = {}

    def main(comm: LocalComm) -> list[Any]:
        local = run_passes(locals_[comm.rank], passes)
        cut = {p.name: cut_for(p, comm.rank, feeds[p.name]) for p in local.parameters}
        executor = executors[comm.rank] = Executor(local, NumPyBackend(comm), cut)
        return executor.run([cut[p.name] for p in executor.inputs])

    results = World(ranks).run(main)
    changed = []
    for p in by_name(graph):
        whole = np.full(feeds[p.name].shape, np.nan, feeds[p.name].dtype)
        for rank in range(ranks):
            assert isinstance(p.layout, Layout)
            whole[p.layout.slices_for(rank, whole.shape)] = executors[rank].parameter(p.name)
        changed.append(whole)
    return [*joined(graph, results), *changed]


def cut_for(parameter: Parameter, rank: int, whole: np.ndarray) -> np.ndarray:
    assert isinstance(parameter.layout, Layout)
    return np.array(whole[parameter.layout.slices_for(rank, whole.shape)])


def joined(graph: Graph, results: list[list[Any]]) -> list[np.ndarray]:
    """Global results from what every rank hands back; replicas must agree (NumPy's vector loops may round the last
    bit of tanh or exp differently where memory is aligned differently)."""
    found = []
    for index, value in enumerate(graph.results):
        if isinstance(value, Constant):
            found.append(value.value)
            continue
        whole = np.full(value.shape, np.nan, value.tensor_type.dtype.numpy)
        assert isinstance(value.layout, Layout)
        for rank, mine in enumerate(results):
            place = value.layout.slices_for(rank, value.shape)
            assert np.isnan(whole[place]).all() or np.allclose(whole[place], mine[index], 1e-12, 1e-12)
            whole[place] = mine[index]
        found.append(whole)
    return found


def by_name(graph: Graph) -> list[Any]:
    return sorted((p for p in graph.parameters if p.kind == "parameter"), key=lambda p: p.name)


def flatten(values: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for value in values:
        found += flatten(value) if isinstance(value, tuple) else [np.asarray(value)]
    return found


def same(left: list[np.ndarray], right: list[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
