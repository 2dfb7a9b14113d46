"""What the executor adds to the bare NumPy calls: a chain of 1000 operators on (8, 16) against the same
calls in a loop.

Run: python benchmarks/executor.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.op import ArrayBackend, Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor

NODES = 1000
REPEATS = 200


class BenchAdd(Op, abstract=True):
    """x + y."""

    def run(self, be: ArrayBackend, x: Any, y: Any) -> Any:
        return be.xp.add(x, y)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return be.xp.add


class BenchTanh(Op, abstract=True):
    """tanh(x)."""

    def run(self, be: ArrayBackend, x: Any) -> Any:
        return be.xp.tanh(x)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return be.xp.tanh


def chain() -> Graph:
    """x, then Add and Tanh in turn."""
    graph = Graph("chain")
    type = TensorType(FLOAT32, (8, 16))
    x, y = Parameter("x", type), Parameter("y", type)
    graph.parameters = [x, y]
    value: Value = x
    for i in range(NODES):
        node = Node(BenchTanh(), [value], type) if i % 2 else Node(BenchAdd(), [value, y], type)
        graph.nodes.append(node)
        value = node
    graph.results = [value]
    return graph


def bare(calls: list[tuple[Callable[..., Any], bool]], x: Any, y: Any) -> Any:
    """The same calls in a loop."""
    for function, binary in calls:
        x = function(x, y) if binary else function(x)
    return x


def best(function: Callable[[], Any]) -> float:
    """Seconds of the fastest of REPEATS calls."""
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print both times per node and their difference."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((8, 16), dtype=np.float32) for _ in range(2))
    calls = [(np.tanh, False) if i % 2 else (np.add, True) for i in range(NODES)]
    executor = Executor(chain(), NumPyBackend(OneRank()), {})
    assert np.array_equal(executor.run([x, y])[0], bare(calls, x, y))
    loop = best(lambda: bare(calls, x, y)) / NODES * 1e6
    graph = best(lambda: executor.run([x, y])) / NODES * 1e6
    print(f"bare NumPy calls  {loop:.3f} us per node")
    print(f"executor          {graph:.3f} us per node")
    print(f"added             {graph - loop:.3f} us per node (at most 0.8)")


if __name__ == "__main__":
    main()
