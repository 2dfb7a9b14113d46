"""Execution of a graph's nodes as compiled loops, if there is a C++ compiler and the graph is large enough."""

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

MIN_PROGRAM_ELEMENTS = 1 << 23
"""Minimum number of elements of a step's values for which compilation, which takes seconds, pays off."""
MIN_NODE_ELEMENTS = 1 << 12
"""Minimum number of elements of a node for which a compiled function pays off."""

Kernel = Callable[..., Any]


def is_worth_compiling(program: Graph, backend: NumPyBackend) -> bool:
    """Return whether the graphs of a program are compiled. The total over all graphs decides, each weighted by its runs
    per step."""
    return backend.xp is np and step_elements(program) >= MIN_PROGRAM_ELEMENTS


def begin_library(traced: Graph, device: str, ranks: int) -> Thread | None:
    """Start a thread that compiles the library shared by all programs while the passes run, or return None. The library
    is needed if each rank's share of the traced graph is large enough."""
    if device != "CPU" or sum(map(elements, traced.nodes)) < MIN_PROGRAM_ELEMENTS * ranks:
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
    """Return the operators that are large enough for a compiled function, with the types of operands and results, by
    node index."""
    return {
        index: (node.op, [value.tensor_type for value in node.inputs], element_types(node.type))
        for index, node in enumerate(graph.nodes)
        if isinstance(node.op, Op) and elements(node) >= MIN_NODE_ELEMENTS
        and all(isinstance(value.type, TensorType) for value in node.inputs)
    }  # fmt: skip
