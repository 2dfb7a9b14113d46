"""Graphs within graphs made by hand, for tests of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import BOOL, FLOAT32, INT64, TensorType
from mspc.ops.control.regions import RegionOp, emit_regions
from mspc.ops.control.structural import items
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor

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
