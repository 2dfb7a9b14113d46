"""Small graphs made by hand, for tests of the runtime."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import Location
from tests.graphs import FLOAT32, Collective, Graph, Layout, Node, NotDifferentiable, Op, Parameter, TensorType, Value

WHERE = (Location("net.py", 12, 5, 9, "    out = self.op(x)"),)


class Plus(Op, abstract=True):
    """x + y."""

    def run(self, be: Any, x: Any, y: Any) -> Any:
        return be.xp.add(x, y)


class Logarithm(Op, abstract=True):
    """log(x)."""

    def run(self, be: Any, x: Any) -> Any:
        return be.xp.log(x)


class Total(Op, abstract=True):
    """The sum of all elements, on this rank."""

    def run(self, be: Any, x: Any) -> Any:
        return be.xp.sum(x)


class TotalOfRanks(Collective, abstract=True):
    """The sum over the ranks in `rank_list`."""

    rank_list: tuple[int, ...] = ()

    def bind(self, comm: Any) -> Callable[..., Any]:
        return lambda x: comm.all_reduce(x, "sum", self.ranks)


class Turned(Op, abstract=True):
    """x transposed, sharing memory with x."""

    may_alias: ClassVar[bool] = True

    def run(self, be: Any, x: Any) -> Any:
        return x.T


class Subtract(Op, abstract=True):
    """w -= x, in place."""

    mutates: ClassVar[tuple[int, ...]] = (0,)
    has_side_effect: ClassVar[bool] = True
    bprop: ClassVar[Any] = NotDifferentiable("a test")

    def run(self, be: Any, w: Any, x: Any) -> Any:
        w -= x
        return w


class Broken(Op, abstract=True):
    """Fails."""

    def run(self, be: Any, *inputs: Any) -> Any:
        raise ValueError("the kernel is broken")


class WithoutKernel(Op, abstract=True):
    """Has none."""


class GraphMaker:
    """Builds a graph in run order."""

    def __init__(self) -> None:
        self.graph = Graph("test")

    def parameter(
        self, name: str, shape: tuple[int, ...], kind: str = "input", layout: Layout | None = None
    ) -> Parameter:
        local = layout.local_shape(shape) if layout else shape
        made = Parameter(
            name, TensorType(FLOAT32, local), kind, kind == "parameter", layout, TensorType(FLOAT32, shape)
        )
        self.graph.parameters.append(made)
        return made

    def node(self, op: Op, *inputs: Value, shape: tuple[int, ...] = (2, 3), instance: str = "") -> Node:
        made = Node(op, inputs, TensorType(FLOAT32, shape), instance=instance, frames=WHERE)
        self.graph.nodes.append(made)
        return made

    def returns(self, *values: Value) -> Graph:
        self.graph.results = list(values)
        self.graph.verify()
        return self.graph


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)
