"""Graphs that are written operator by operator."""

from typing import Any

from tests.graphs import FLOAT32, REGISTRY, Builder, DType, Graph, Node, Parameter, TensorType


class WrittenGraph:
    """A graph of one rank, before it is finished. dtype: of parameters and numbers."""

    def __init__(self, dtype: DType = FLOAT32) -> None:
        self.graph = Graph("written")
        self.graph.attrs = {"mode": "stand_alone", "ranks": 1}
        self.b, self.dtype = Builder(self.graph), dtype

    def parameter(
        self, name: str, shape: tuple[int, ...], dtype: DType | None = None, kind: str = "input"
    ) -> Parameter:
        made = Parameter(name, TensorType(dtype or self.dtype, shape), kind=kind)
        self.graph.parameters.append(made)
        return made

    def emit(self, name: str, *inputs: Any, strategy: Any = None, **attributes: Any) -> Node:
        values = [v if not isinstance(v, float) else self.b.constant(v, self.dtype) for v in inputs]
        node = self.b.emit(REGISTRY[name](**attributes), *values)
        node.in_strategy = strategy
        return node


def graph_of(*types: TensorType, kind: str = "parameter") -> tuple[Graph, Builder, list[Parameter]]:
    """A graph of one rank, what adds nodes to it, and its parameters x0, x1 and so on."""
    written = WrittenGraph()
    for number, type in enumerate(types):
        written.parameter(f"x{number}", type.shape, type.dtype, kind)
    return written.graph, written.b, written.graph.parameters
