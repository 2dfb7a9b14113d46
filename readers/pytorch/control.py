"""Control operators that run a graph of their own once, where they stand.

Their arguments have no names: settings, then the graph, then what the graph is called with. Of
`wrap_with_set_grad_enabled` the first setting says whether gradients go through; of `wrap_with_autocast` the settings
say in which element types operators compute, which the types of the results have, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.program import Argument, ExportedGraph, ExportedNode

SET_GRADIENT = "higher_order.wrap_with_set_grad_enabled"
CONTROL = frozenset({SET_GRADIENT, "higher_order.wrap_with_autocast"})
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
