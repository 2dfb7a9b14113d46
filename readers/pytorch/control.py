"""Control operators that run a graph of their own once, where they stand."""

from __future__ import annotations

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class InlinedGraph:
    """How a control operator runs its graph. graph, operands: names of its arguments. enables: the name of the one that
    says whether gradients go through, "" where they do."""

    graph: str
    operands: str
    enables: str = ""


CONTROL = {
    "higher_order.wrap_with_set_grad_enabled": InlinedGraph("wrapped_func", "args", "enable_grad"),
    "higher_order.wrap_with_autocast": InlinedGraph("wrapped_func", "args"),
}
"""By their names."""
