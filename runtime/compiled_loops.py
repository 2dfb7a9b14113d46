"""Nodes of a graph run as compiled loops if there is a C++ compiler and the graph is large enough to pay for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np

from mspc.analysis.aliasing import elements, step_elements
from mspc.ir.graph import Graph, element_types
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend

WORTH = 1 << 23
"""Elements of a step's values from which compilation, which takes seconds, pays."""
LEAST = 1 << 12
"""Elements of a node from which a compiled function pays."""

Kernel = Callable[..., Any]


def pays(program: Graph, backend: NumPyBackend) -> bool:
    """Return whether the graphs of a program are to be compiled. The sum over all graphs decides, each counted as often
    as a step runs it."""
    return backend.xp is np and step_elements(program) >= WORTH


def begin_library(traced: Graph, device: str, ranks: int) -> Thread | None:
    """Start a thread that compiles the library shared by all programs while the passes run, or return None. The library
    is needed if the traced graph is large enough for each rank, since then its compiled form is too."""
    if device != "CPU" or sum(map(elements, traced.nodes)) < WORTH * ranks:
        return None
    from mspc.ops.cpu.thread_pool import put_on_disk  # late: a small graph needs none of it

    thread = Thread(target=put_on_disk, name="mspc loops")
    thread.start()
    return thread


def compiled_kernels(graph: Graph, backend: NumPyBackend) -> tuple[dict[int, Kernel], dict[int, Kernel]]:
    """Return (kernels `function(*operands, out=None)`, kernels of updates) by the index of their node."""
    from mspc.ops.cpu.loops import program  # late: a small graph needs none of it

    found = program.kernels(backend, large_calls(graph))
    return found.loops, found.updates


def large_calls(graph: Graph) -> dict[int, tuple[Op, list[TensorType], Sequence[TensorType]]]:
    """Return the operators that are large enough for a function, with the types of operands and results, by the index
    of their node."""
    return {
        index: (node.op, [value.tensor_type for value in node.inputs], element_types(node.type))
        for index, node in enumerate(graph.nodes)
        if isinstance(node.op, Op) and elements(node) >= LEAST
        and all(isinstance(value.type, TensorType) for value in node.inputs)
    }  # fmt: skip
