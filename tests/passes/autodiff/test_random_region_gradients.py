"""Gradients of random graphs with regions are those of the flat graphs of what they do, of the second order too."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.graph import Builder, Graph
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.elementwise import Square
from mspc.ops.tensor.reshape import ReduceSum
from mspc.passes.autodiff.grad import Grad
from mspc.passes.cleanup.simplify import Simplify
from tests.passes.autodiff.differentiated import checked, run
from tests.passes.autodiff.unrolled import unrolled
from tests.random_regions import RandomRegions

WANTED = (0, 3, 4)
"""The rows and the weights among a random graph's parameters."""


def arrays_for(graph: Graph, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        generator.normal(size=p.shape) * 0.4 if p.tensor_type.dtype.is_float else np.array(generator.integers(0, 4))
        for p in graph.parameters
    ]


def request(graph: Graph) -> None:
    """Add to a graph's results the gradients of the sums of them."""
    b = Builder(graph)
    totals = [b.emit(ReduceSum(), b.emit(Square(), value)) for value in graph.results]
    made = b.emit(Gradient(outputs=len(totals)), *totals, *(graph.parameters[i] for i in WANTED))
    graph.results = [*graph.results, *(b.emit(TupleGetItem(i), made) for i in range(len(WANTED)))]
    graph.returns_tuple = True


def check(seed: int, overwrites: bool, order: int) -> None:
    made = RandomRegions(seed, mode="stand_alone", overwrites=overwrites).graph
    made.attrs = {}
    arrays = arrays_for(made, seed)
    flat = unrolled(made, arrays)
    for graph in (flat, made):
        for _ in range(order):
            request(graph)
        Grad().run(graph)
    expected = run(flat, arrays)
    for step in (Simplify(), Simplify()):
        for found, wanted in zip(run(checked(made), arrays), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        step.run(made)


@pytest.mark.parametrize("seed", range(16))
def test_gradients(seed: int) -> None:
    check(seed, seed % 2 == 0, 1)


@pytest.mark.parametrize("seed", range(100, 104))
def test_gradients_of_gradients(seed: int) -> None:
    check(seed, False, 2)
