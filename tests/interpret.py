"""Runs graphs of any stage for tests: on one device as they stand, or sliced on all ranks in this process.

Before slicing all types are global, and every collective or redistribution leaves the global value as it is.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from ml_dtypes import finfo

from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import CUT, rank_graphs
from mspc.ir.graph import STAGES, Constant, Graph, Parameter, Value
from mspc.passes.base import Pass
from mspc.passes.fusion.attention_masks import CAUSAL_MASK
from mspc.runtime.data import full_type, padded_slice
from tests.executors import Executor, Grad, LocalComm, NumPyBackend, World
from tests.graphs import Layout, Op
from tests.interpreted_regions import region_results
from tests.operators import AllReduce, Gradient, ReduceScatter

Arrays = dict[str, np.ndarray]


class Apart(AssertionError):
    """Ranks hold copies of one value that differ."""


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


def run_global(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a graph with global types, then the parameters that it changed, by name order."""
    return steps_global(graph, [feeds])[0]


def steps_global(graph: Graph, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """The same for several steps: inputs come from each step's feeds, parameters from those of the first."""
    if any(isinstance(node.op, Gradient) for node in graph.all_nodes()):
        Grad().run(graph)
    backend = SimpleNamespace(xp=np, comm=None, step=0)
    held = {p: padded_slice(p, feeds[0][p.name]).copy() for p in graph.parameters if p.kind != "input"}
    inputs = [p for p in graph.parameters if p.kind == "input"]
    found: list[list[np.ndarray]] = []
    for feed in feeds:
        backend.step += 1
        values: dict[Value, Any] = {**held, **{p: feed[p.name].copy() for p in inputs}}
        _compute(graph, backend, values)
        results = [v.value if isinstance(v, Constant) else values[v] for v in graph.results]
        found.append([*flatten(results), *(_unpadded(p, values[p]) for p in by_name(graph))])
    return found


def _unpadded(parameter: Parameter, array: np.ndarray) -> np.ndarray:
    return array[tuple(map(slice, full_type(parameter).shape))].copy() if parameter.global_type else array.copy()


def _compute(graph: Graph, backend: Any, values: dict[Value, Any]) -> None:
    for node in graph.nodes:
        inputs = [v.value if isinstance(v, Constant) else values[v] for v in node.inputs]
        assert isinstance(node.op, Op)
        if node.regions:
            values[node] = region_results(node, inputs, lambda region, read: _region(region, read, backend))
            continue
        values[node] = node.op.kernel(backend)(*inputs)
        source = node.inputs[0].layout if node.inputs else None
        if isinstance(node.op, AllReduce | ReduceScatter) and isinstance(source, Layout) and source.reduction == "mean":
            # The sum of partial means; the multiplication by 1/parts comes behind it.
            values[node] = values[node] * source.size_of(source.partial)


def _region(region: Graph, read: Sequence[Any], backend: Any) -> list[Any]:
    values: dict[Value, Any] = dict(zip(region.parameters, read, strict=True))
    _compute(region, backend, values)
    return [v.value if isinstance(v, Constant) else values[v] for v in region.results]


def run_on_ranks(
    graph: Graph, feeds: Mapping[str, np.ndarray], passes: Sequence[str] = rank_passes()[1:]
) -> list[np.ndarray]:
    """The same from all ranks of a graph that is ready for slicing: results and parameters put together.

    `passes` go over every rank's graph; one of several stages is cut, too, and parameters come from the stages that
    hold them.
    """
    return steps_on_ranks(graph, [feeds], passes)[0]


def steps_on_ranks(
    graph: Graph, feeds: Sequence[Mapping[str, np.ndarray]], passes: Sequence[str] = rank_passes()[1:]
) -> list[list[np.ndarray]]:
    """The same for several steps of the ranks, which keep their parameters: inputs come from each step's feeds."""
    stages = int(graph.attrs.get(STAGES, 1))
    cut = (CUT,) if stages > 1 and CUT not in passes else ()
    of_ranks = rank_graphs(graph, ("slice_to_rank", *cut, *passes))

    def main(comm: LocalComm) -> list[tuple[list[Any], dict[str, Any]]]:
        local = of_ranks.executable(comm.rank)
        held = {p.name: slice_for(p, comm.rank, feeds[0][p.name]) for p in local.parameters if p.kind != "input"}
        executor = Executor(local, NumPyBackend(comm), held)
        found: list[tuple[list[Any], dict[str, Any]]] = []
        for feed in feeds:
            results = executor.run([slice_for(p, comm.rank, feed[p.name]) for p in executor.inputs])
            found.append((results, {p.name: executor.parameter(p.name).copy() for p in by_name(local)}))
        return found

    ran = World(int(graph.attrs["ranks"]) * stages).run(main)
    parameters = by_name(graph)
    return [
        [
            *joined(graph.results, [steps[step][0] for steps in ran]),
            *joined(parameters, [[steps[step][1].get(p.name) for p in parameters] for steps in ran]),
        ]
        for step in range(len(feeds))
    ]


def slice_for(parameter: Parameter, rank: int, global_value: np.ndarray) -> np.ndarray:
    assert isinstance(parameter.layout, Layout)
    return np.array(global_value[parameter.layout.slices_for(rank, global_value.shape)])


def joined(values: Sequence[Value], held: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    """Global arrays of `values` from what every rank holds of them, None where it is another stage's; replicas must
    agree (NumPy's vector loops may round the last bit of tanh or exp differently where memory is aligned
    differently)."""
    found: list[np.ndarray] = []
    for index, value in enumerate(values):
        if isinstance(value, Constant):
            found.append(value.value)
            continue
        assert isinstance(value.layout, Layout)
        global_value = np.zeros(value.shape, value.tensor_type.dtype.numpy)
        seen = np.zeros(value.shape, np.bool_)
        for rank, mine in enumerate(held):
            if mine[index] is None:
                continue
            place = value.layout.slices_for(rank, value.shape)
            if seen[place].any() and not np.allclose(mine[index], global_value[place], 1e-12, 1e-12, equal_nan=True):
                raise Apart(f"rank {rank} holds another copy of result {index}, {value.type}, than ranks before it")
            global_value[place], seen[place] = mine[index], True
        assert seen.all()
        found.append(global_value)
    return found


def by_name(graph: Graph) -> list[Any]:
    return sorted((p for p in graph.parameters if p.kind == "parameter"), key=lambda p: p.name)


def flatten(values: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for value in values:
        found += flatten(value) if isinstance(value, tuple) else [np.asarray(value)]
    return found


def left_behind(step: Pass, graph: Graph) -> list[str]:
    """The names of the nodes that a pass leaves, but for views; the numbers are checked to be the same."""
    feeds = random_feeds(graph)
    expected = run_global(graph, feeds)
    step.run(graph)
    graph.verify()
    same(run_global(graph, feeds), expected)
    return [node.op.name for node in graph.nodes if not node.op.is_view]


def same(left: list[np.ndarray], right: list[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        rounding = 2 * float(finfo(a.dtype).eps) if a.dtype.kind in "fV" else 0.0  # sums in another order end one apart
        np.testing.assert_allclose(a, b, rtol=max(tolerance, rounding), atol=tolerance)
