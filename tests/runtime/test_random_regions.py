"""Random graphs of regions, with memory that is planned and without, give what a plain walk over their nodes gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Constant, Graph, Value
from mspc.ops.collective.one_rank import OneRank
from mspc.passes.autodiff.grad import Grad
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from mspc.runtime.plan import copy_value
from tests.interpreted_regions import region_results
from tests.random_regions import RandomRegions

SEEDS = range(80)
STEPS = 2


def evaluated(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """The results of a graph; every value is an array of its own, but for parameters, which are overwritten."""
    values: dict[Value, Any] = dict(zip(graph.parameters, operands, strict=True))

    def of(value: Value) -> Any:
        return value.value if isinstance(value, Constant) else values[value]

    for node in graph.nodes:
        op: Any = node.op
        given = [of(value) for value in node.inputs]
        if node.regions:
            values[node] = region_results(node, given, evaluated)
        else:
            values[node] = copy_value(op.kernel(NumPyBackend(OneRank()))(*given))
    return [copy_value(of(value)) for value in graph.results]


def check(made: RandomRegions, seed: int, planned_from: int) -> None:
    """Steps with other inputs each, on parameters that go from one to the next."""
    graph = made.graph
    generator = np.random.default_rng(seed)
    stored = {p: generator.random(p.shape) - 0.5 for p in graph.parameters if p.kind == "parameter"}
    plain = {p: array.copy() for p, array in stored.items()}
    run = Executor(graph, NumPyBackend(OneRank(), planned_from=planned_from), {p.name: a for p, a in stored.items()})
    held = []
    for _ in range(STEPS):
        x, n, k = generator.random(run.inputs[0].shape), *generator.integers(0, 4, 2)
        fed = dict(zip(run.inputs, (x, np.asarray(n), np.asarray(k)), strict=True))
        wanted = evaluated(graph, [plain[p] if p in plain else fed[p].copy() for p in graph.parameters])
        found = run.run(list(fed.values()))
        held.append((found, wanted))
        for parameter, array in plain.items():
            np.testing.assert_array_equal(stored[parameter], array, parameter.name)
    for found, wanted in held:  # what was handed out stays as it was
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_values(seed: int) -> None:
    for planned_from in (0, 1 << 60):
        check(RandomRegions(seed, "stand_alone"), seed, planned_from)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_gradients(seed: int) -> None:
    for planned_from in (0, 1 << 60):
        made = RandomRegions(seed, "stand_alone", differentiated=True)
        Grad().run(made.graph)
        check(made, seed, planned_from)
