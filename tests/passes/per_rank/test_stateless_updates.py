"""Updates that do without states change parameters as those that have them."""

from typing import Any

import numpy as np
import pytest

from mspc.passes.lib.unused_states import drop_unused_parameters, stateless_nodes
from tests.executors import Executor, NumPyBackend, OneRank
from tests.graphs import BFLOAT16, FLOAT16, FLOAT32, Builder, DType, Graph, Parameter, TensorType
from tests.operators import SGD, ApplyMomentum, GroupedUpdate

SIZES = (5, 300)


def updates(gradient: DType, op: Any, weights: DType = FLOAT32) -> Graph:
    """A graph that updates two parameters by one operator."""
    graph = Graph("updates")

    def parameter(name: str, size: int | None, dtype: DType = FLOAT32, kind: str = "parameter") -> Parameter:
        graph.parameters.append(Parameter(name, TensorType(dtype, () if size is None else (size,)), kind))
        return graph.parameters[-1]

    rate, momentum = parameter("rate", None), parameter("momentum", None)
    operands = [
        value
        for i, size in enumerate(SIZES)
        for value in (
            parameter(f"w{i}", size, weights), parameter(f"g{i}", size, gradient, "input"), rate,
            parameter(f"accum{i}", size, weights), momentum, parameter(f"stat{i}", size, weights),
        )
    ]  # fmt: skip
    graph.results = [Builder(graph).emit(GroupedUpdate.of(op, len(SIZES)), *operands)]
    return graph


def values(graph: Graph) -> dict[str, Any]:
    draw = np.random.default_rng(4)
    found = {p.name: draw.uniform(0.1, 1, p.shape).astype(p.tensor_type.dtype.numpy) for p in graph.parameters}
    return found | {"momentum": np.zeros((), np.float32)}


@pytest.mark.parametrize("gradient", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
def test_parameters_become_the_same(gradient: DType) -> None:
    found = []
    for dropped in (False, True):
        graph = updates(gradient, SGD())
        given = values(graph)
        if dropped:
            for found_node in stateless_nodes(graph, lambda scalar, given=given: float(given[scalar.name])):
                found_node.apply(found_node.node)
            drop_unused_parameters(graph)
            assert [p.name for p in graph.parameters] == ["rate", "w0", "g0", "w1", "g1"]
        inputs = [given[p.name] for p in graph.parameters if p.kind == "input"]
        held = {p.name: given[p.name].copy() for p in graph.parameters if p.kind == "parameter"}
        [results] = Executor(graph, NumPyBackend(OneRank()), held).run(inputs)
        found.append([*results, held["w0"], held["w1"]])
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("op", "number"), [(SGD(), 0.9), (SGD(), None), (SGD(weight_decay=0.1), 0.0)],
    ids=["momentum", "changing", "decay in the operator"],
)  # fmt: skip
def test_states_that_are_used_stay(op: Any, number: float | None) -> None:
    assert stateless_nodes(updates(FLOAT32, op), lambda scalar: number) == []


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=str)
def test_states_beside_halves_whose_rate_is_in_float32_stay(half: DType) -> None:
    assert stateless_nodes(updates(half, SGD(), half), lambda scalar: 0.0) == []


def test_states_that_others_read_stay() -> None:
    graph = updates(FLOAT32, SGD())
    graph.results.append(next(p for p in graph.parameters if p.name == "stat1"))
    assert stateless_nodes(graph, lambda scalar: 0.0) == []
    assert not ApplyMomentum().without_states(lambda place: 0.0)
