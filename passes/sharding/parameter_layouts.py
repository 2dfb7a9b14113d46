"""Gives parameters layouts: they are stored as their first configured readers need them, or else as their first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ops.control.constraint import is_constraint
from mspc.ops.op import Op
from mspc.passes.sharding.choices import make_choice, merge
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.parallel_optimizer import shard_parameters
from mspc.passes.sharding.placement import is_master, stored
from mspc.passes.sharding.plan_header import GIVEN


def store_parameters(search: Search, forward: list[Node]) -> None:
    """A parameter is stored as its first configured reader needs it, or else its first reader.

    A configured operator that changes the parameter comes before all; one that would run on other slices than the
    stored ones loses its strategy, or its change would be lost.
    """
    configured = [node for node in search.graph.nodes if node.attrs.get("strategy_from") in GIVEN]
    changing = [node for node in configured if cast(Op, node.op).mutates]
    for node in (*changing, *configured):
        if node.in_layouts is not None:
            store_operands(node)
    for node in forward:
        if node.in_layouts is not None:
            store_operands(node, search.replicated)
    shard_parameters(search.graph)
    for node in forward:
        _narrow_slices(search, node)
    for node in changing:
        assert node.in_layouts is not None
        if any(node.inputs[i].layout != node.in_layouts[i] for i in cast(Op, node.op).mutates):
            search.place(node, None, None)


def _narrow_slices(search: Search, node: Node) -> None:
    """A parameter that is stored in smaller slices than it is read in is cast slice by slice, so that it travels in
    the narrower element type."""
    value = node.inputs[0] if len(node.inputs) == 1 and not is_constraint(node) else None
    while isinstance(value, Node) and is_constraint(value) and is_master(stored(value)):
        value = value.inputs[0]
    rule = search.rules[node]
    if not isinstance(value, Parameter) or stored(node) is not value or rule is None or node.in_layouts is None:
        return
    layout = value.layout
    if isinstance(layout, Layout) and layout != node.in_layouts[0] and _width(node) <= _width(value):
        search.take(node, make_choice(rule, *merge(rule, ((rule.inputs[0], layout),), search.ranks)),
                  str(node.attrs.get("strategy_from", "")))  # fmt: skip


def store_operands(node: Node, replicated: Mapping[Value, Layout] | None = None) -> None:
    """Parameters that the node reads and nobody has decided on yet lie as it needs them, or as `replicated` says."""
    assert node.in_layouts is not None
    for value, layout in zip(node.inputs, node.in_layouts, strict=True):
        if isinstance(value, Parameter) and value.layout is None and layout is not None:
            value.layout = (replicated or {}).get(value, layout).without_partial()


def settle_rest(graph: Graph, ranks: int) -> None:
    """Replicate whatever nobody reads on every rank."""
    for parameter in graph.parameters:
        if parameter.layout is None:
            parameter.layout = Layout.replicated(ranks, len(parameter.shape))


def _width(value: Value) -> int:
    return value.tensor_type.dtype.itemsize
