"""Checks that a parameter which several operators read is sharded alike for all of them, as it is stored once.

The rule is MindSpore's: it refuses a parameter whose readers were given different strategies. Slices of one number that
two operators place on other ranks are redistributed, as those of a table that is also the head of a network.
"""

from __future__ import annotations

from collections.abc import Iterator

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ops.control.constraint import is_constraint


def differing_readers(graph: Graph) -> Iterator[MspcError]:
    """A mistake for every operator whose strategy shards a parameter unlike that of an operator before it.

    Operators without a strategy follow the stored layout, and a ShardingConstraint asks for a change of layout, so
    that neither counts.
    """
    first: dict[Parameter, tuple[Node, Layout]] = {}
    for node in graph.nodes:
        if node.in_layouts is None or is_constraint(node):
            continue
        for value, layout in zip(node.inputs, node.in_layouts, strict=True):
            if not isinstance(value, Parameter) or value.kind != "parameter" or layout is None:
                continue
            before, known = first.setdefault(value, (node, layout))
            if layout.strategy != known.strategy:
                yield node.error(
                    f"{node.label}: its strategy shards the parameter {value.name} {layout.strategy}, but that of "
                    f"{before.label} {known.strategy}",
                    notes=["a parameter is stored once: give all its readers strategies that shard it alike, "
                           "or read it through reshard"],
                )  # fmt: skip
