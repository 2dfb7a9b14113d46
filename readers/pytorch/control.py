"""Control operators that run graphs of their own: once, where they stand, or again and again.

Their arguments have no names: settings, then the graph, then what the graph is called with. Of
`wrap_with_set_grad_enabled` the first setting says whether gradients go through; of `wrap_with_autocast` the settings
say in which element types operators compute, which the types of the results have, too. `cond` has a condition, a graph
for either answer, and what both are called with. `while_loop`, `scan` and `map` are read in `loops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.program import Argument, ExportedGraph, ExportedNode

SET_GRADIENT = "higher_order.wrap_with_set_grad_enabled"
CONDITION = "higher_order.cond"
WHILE, SCAN, MAP = "higher_order.while_loop", "higher_order.scan", "higher_order.map_impl"
LOOPS = frozenset({WHILE, SCAN, MAP})
INLINED = frozenset({SET_GRADIENT, "higher_order.wrap_with_autocast"})
CONTROL = frozenset({*INLINED, CONDITION, *LOOPS})
"""Their names."""


def inlined(node: ExportedNode) -> tuple[ExportedGraph, Sequence[Argument], bool]:
    """(the graph, what it is called with, whether gradients go through). Raises MspcError where there is none."""
    values = [value for _, value in node.arguments]
    for place, value in enumerate(values):
        if isinstance(value, ExportedGraph):
            operands = values[place + 1 :]
            if len(operands) != len(value.inputs):
                raise MspcError(f"its graph takes {len(value.inputs)} operands, not {len(operands)}")
            return value, operands, node.target != SET_GRADIENT or values[0] is not False
    raise MspcError("it has no graph to run")


def branches(node: ExportedNode) -> tuple[Argument, tuple[ExportedGraph, ExportedGraph], Sequence[Argument]]:
    """(the condition, the graphs where it holds and where it does not, their operands).

    Raises:
        MspcError: it has no two graphs that take its operands.
    """
    values = [value for _, value in node.arguments]
    if len(values) == 4:
        condition, holds, fails, operands = values
        if isinstance(holds, ExportedGraph) and isinstance(fails, ExportedGraph) and isinstance(operands, tuple):
            if all(len(graph.inputs) == len(operands) for graph in (holds, fails)):
                return condition, (holds, fails), operands
    raise MspcError("it has no two graphs that take its operands")
