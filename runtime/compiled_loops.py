"""Nodes of a graph run as compiled loops where there is a C++ compiler and the graph is large enough to pay for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend

WORTH = 1 << 23
"""Elements of a step's values from which the seconds that a compiler takes pay."""
LEAST = 1 << 12
"""Elements of a node from which it is worth a function."""

Kernel = Callable[..., Any]


def compiled_kernels(
    graph: Graph, backend: NumPyBackend, runs: int = 1
) -> tuple[dict[int, Kernel], dict[int, Kernel]]:
    """(kernels `function(*operands, out=None)`, kernels of updates) by the index of their node; none where nothing is
    compiled. runs: how often a step runs the graph."""
    if backend.xp is not np or runs * sum(map(_elements, graph.nodes)) < WORTH:
        return {}, {}
    from mspc.ops.cpu.loops import program  # late: a small graph needs none of it

    nodes = {
        index: (node.op, [value.type for value in node.inputs], element_types(node.type))
        for index, node in enumerate(graph.nodes)
        if isinstance(node.op, Op) and _elements(node) >= LEAST
        and all(isinstance(value.type, TensorType) for value in node.inputs)
    }  # fmt: skip
    found = program.kernels(backend, nodes)
    return found.loops, found.updates


def _elements(node: Node) -> int:
    """Elements of the largest tensor that a node reads, makes, or spares."""
    tensors = [type for value in (node, *node.inputs) for type in element_types(value.type)]
    spared = 0
    if isinstance(node.op, Op) and all(isinstance(value.type, TensorType) for value in node.inputs):
        spared = node.op.elements_between([value.tensor_type for value in node.inputs])
    return max([spared, *(type.size for type in tensors)])
