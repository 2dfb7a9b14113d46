"""Graphs within graphs made by hand, for tests of the runtime."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ops.control.regions import Call, RegionOp, emit_regions
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems, items
from tests.executors import Executor, NumPyBackend, OneRank
from tests.graphs import BOOL, FLOAT32, INT64, Builder, Graph, Node, Parameter, TensorType, Value
from tests.operators import Add, Exp, Mul, Tanh

COUNT = TensorType(INT64, ())
CONDITION = TensorType(BOOL, ())
SCALAR = TensorType(FLOAT32, ())
Body = Callable[..., Sequence[Value]]


def floats(*shape: int) -> TensorType:
    return TensorType(FLOAT32, shape)


def graph(name: str, types: Sequence[TensorType], body: Body, weights: Sequence[str] = ()) -> Graph:
    """A graph of parameters `p0`, `p1`, ... or, the last ones, of these weights; `body` is called with a builder and
    them and gives the results."""
    made = Graph(name)
    for i, type in enumerate(types):
        place = i - len(types) + len(weights)
        name, kind = (weights[place], "parameter") if place >= 0 else (f"p{i}", "input")
        made.parameters.append(Parameter(name, type, kind))
    made.results = list(body(Builder(made), *made.parameters))
    made.returns_tuple = True
    made.verify()
    return made


def run_graphs(b: Builder, op: RegionOp, inputs: Sequence[Value], *regions: Graph) -> list[Value]:
    """The results of a node that runs graphs, one by one."""
    node: Node = emit_regions(b, op, inputs, regions)
    return items(b, node, len(node.type.elements))  # type: ignore[attr-defined]  # it is a tuple


def executor(main: Graph, values: Mapping[str, Any] | None = None, cursor: Any = None) -> Executor:
    return Executor(main, NumPyBackend(OneRank()), values or {}, cursor)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def calls_with_tuples() -> Graph:
    """Two calls of a graph, and two of one that reads what it keeps, as a stage's program has them: tuples of weights,
    of what is kept, of which `spare` is not read, and of totals. It returns two results and two totals."""
    forward = graph("forward", [floats(4)] * 3, _forward)
    backward = graph("backward", [floats(4)] * 8, _backward)

    def main(b: Builder, x: Value, z: Value, first: Value, last: Value) -> Sequence[Value]:
        weights, others = (b.emit(MakeTuple(), first, last) for _ in range(2))
        totals: Value = b.emit(MakeTuple(), x, z)
        results: list[Value] = []
        for given in (x, z):
            made = emit_regions(b, Call(), [given, weights], [forward])
            results.append(b.emit(TupleGetItem(0), made))
            kept = b.emit(TupleGetItems((1, 2, 3)), made)
            node = emit_regions(b, Call(), [results[-1], others, totals, kept], [backward])
            totals = b.emit(TupleGetItems((0, 1)), node)
        return [*results, b.emit(TupleGetItem(0), totals), b.emit(TupleGetItem(1), totals)]

    return graph("main", [floats(4)] * 4, main, ["first", "last"])


def _forward(b: Builder, x: Value, first: Value, last: Value) -> Sequence[Value]:
    y = b.emit(Mul(), x, first)
    return y, b.emit(Tanh(), y), b.emit(Exp(), y), b.emit(Mul(), y, last)


def _backward(b: Builder, *given: Value) -> Sequence[Value]:
    y, first, _, one, other, tanh, _, product = given
    return b.emit(Add(), one, b.emit(Mul(), tanh, first)), b.emit(Add(), other, b.emit(Mul(), product, y))
