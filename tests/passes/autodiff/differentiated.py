"""Graphs with regions made by hand, whose gradients are compared with finite differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Builder, Graph, Parameter, Value
from mspc.ops.control.regions import RegionOp
from mspc.ops.control.structural import items
from tests.executors import Executor, Grad, NumPyBackend, OneRank, Simplify
from tests.graphs import BOOL, FLOAT64, INT64, REGISTRY, TensorType, check_graph, parse, print_graph
from tests.operators import Gradient, ReduceSum
from tests.runtime.region_graphs import run_graphs as region

COUNT = TensorType(INT64, ())
CONDITION = TensorType(BOOL, ())
STEP = 1e-6
Body = Callable[..., Sequence[Value]]


def floats(*shape: int) -> TensorType:
    return TensorType(FLOAT64, shape)


def graph(name: str, types: Sequence[TensorType], body: Body, weights: int = 0) -> Graph:
    """A graph of parameters `p0`, `p1`, ..., of which the last are weights; `body` gets a builder and them and gives
    the results."""
    made = Graph(name)
    for i, type in enumerate(types):
        kind = "parameter" if i >= len(types) - weights else "input"
        made.parameters.append(Parameter(f"p{i}", type, kind))
    made.results = list(body(Builder(made), *made.parameters))
    made.returns_tuple = True
    made.verify()
    return made


def total_of(op: RegionOp, types: Sequence[TensorType], *regions: Graph, weights: int = 1) -> Graph:
    """A graph of parameters of these types: the sum of the first result of a node that runs graphs on them."""
    return graph("main", types, lambda b, *given: [b.emit(ReduceSum(), region(b, op, given, *regions)[0])], weights)


def run(made: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a graph for arrays of its parameters, weights too."""
    held = {p.name: a.copy() for p, a in zip(made.parameters, arrays, strict=True) if p.kind == "parameter"}
    executor = Executor(made, NumPyBackend(OneRank()), held)
    return [np.array(found) for found in executor.run(
        [a.copy() for p, a in zip(made.parameters, arrays, strict=True) if p.kind == "input"])]  # fmt: skip


def arrays_for(made: Graph, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        generator.uniform(0.2, 1.2, p.shape) if p.tensor_type.dtype.is_float else np.array(3, np.int64)
        for p in made.parameters
    ]


def checked(made: Graph) -> Graph:
    """The graph, which is in order and reads back from its text."""
    made.verify()
    check_graph(made)
    text = print_graph(made)
    assert print_graph(parse(text, REGISTRY, file="made.ir").main) == text
    return made


def with_gradients(make: Callable[[], Graph], wanted: Sequence[int], outputs: int = 1) -> Graph:
    """The graph that returns the gradients of its first `outputs` results for parameters by number."""
    made = make()
    b = Builder(made)
    request = b.emit(Gradient(outputs=outputs), *made.results[:outputs], *(made.parameters[i] for i in wanted))
    made.results = list(items(b, request, len(wanted)))
    return made


def numerical(made: Graph, arrays: list[np.ndarray], number: int, outputs: int = 1) -> np.ndarray:
    """The gradient of the sum of the first results for a parameter, by central differences."""

    def total() -> float:
        return float(sum(each.sum() for each in run(made, arrays)[:outputs]))

    found = np.zeros(arrays[number].shape)
    for place in np.ndindex(*found.shape):
        before = arrays[number][place]
        arrays[number][place] = before + STEP
        above = total()
        arrays[number][place] = before - STEP
        found[place] = (above - total()) / (2 * STEP)
        arrays[number][place] = before
    return found


def assert_gradients(make: Callable[[], Graph], wanted: Sequence[int], outputs: int = 1, seed: int = 0) -> Graph:
    """The gradients are those of finite differences, as the pass makes them and simplified; returns the graph."""
    plain = make()
    arrays = arrays_for(plain, seed)
    found: Any = None
    for passes in ([Grad()], [Grad(), Simplify()]):
        made = with_gradients(make, wanted, outputs)
        for step in passes:
            step.run(made)
        checked(made)
        gradients = run(made, arrays)
        for number, gradient in zip(wanted, gradients, strict=True):
            expected = numerical(plain, arrays, number, outputs)
            np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)
        if found is not None:
            for one, other in zip(found, gradients, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-14)
        found = gradients
    return made
