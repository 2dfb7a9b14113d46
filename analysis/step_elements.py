"""How many elements a step's nodes read and make: what decides whether more work at a compile pays."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.types import TensorType, Type
from mspc.ops.control.structural import taken_elements
from mspc.ops.op import Op


def elements(node: Node, known: dict[int, int] | None = None) -> int:
    """Elements of the largest tensor that a node reads, makes, or spares. known: of types, by their ids, while all of
    them are there; it is added to."""
    known = {} if known is None else known
    largest = spared = 0
    for value in (node, *node.inputs):
        size = known.get(id(value.type))
        if size is None:
            size = known[id(value.type)] = _largest(value.type)
        largest = max(largest, size)
    if isinstance(node.op, Op) and all(isinstance(value.type, TensorType) for value in node.inputs):
        spared = node.op.elements_between([value.tensor_type for value in node.inputs])
    return max(spared, largest)


def _largest(type: Type) -> int:
    return max((tensor.size for tensor in element_types(type)), default=0)


def step_elements(program: Graph) -> int:
    """Those of all nodes of a program's graphs together, each as often as a step runs it; what only names a result of
    several makes and reads nothing."""
    if not any(node.regions for node in program.nodes):
        return _of_nodes(program)
    from mspc.ops.control.regions import times_of  # late: most programs have no regions

    return sum(times.count * _of_nodes(graph) for graph, times in times_of(program).items())


def _of_nodes(graph: Graph) -> int:
    known: dict[int, int] = {}  # many calls of one graph have the same types
    return sum(elements(node, known) for node in graph.nodes if taken_elements(node.op) is None)
