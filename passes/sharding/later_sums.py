"""Lets partial sums go on through operators that are linear in them, where there are fewer elements behind.

Propagation decides on one operator after another, each of which brings a sum no fewer bytes than the one ahead of it:
that a row is added up over several experts a few operators later is not seen.

Input:  `%3 = Mul(%2)` at `(4) [-, -] sum[0]`, `%4 = Gather(%3)` at `(4) [-, -]`, `%5 = ReduceSum(%4)` of half the size
Output: `%4` and `%5` at `sum[0]`, too: what reads `%5` needs the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.passes.sharding.choices import ShardingChoice, choices, multiplies
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import operand_layouts
from mspc.passes.sharding.plan_header import GIVEN
from mspc.passes.sharding.traffic import work_of
from mspc.passes.sharding.unset_layouts import LEAST, UnsetLayouts


def sum_later(search: Search, forward: Iterable[Node]) -> None:
    """Take the layouts with later sums that save bytes; nothing else changes."""
    costs = UnsetLayouts(search, ())
    for node in forward:
        if isinstance(node.layout, Layout) and node.layout.partial and costs.moves(node) > LEAST:
            _hand_on(search, costs, node)


def _hand_on(search: Search, costs: UnsetLayouts, value: Node) -> None:
    replaced: list[tuple[Node, ShardingChoice]] = []
    saved, best, kept = 0.0, 0.0, 0
    while True:
        found = _reader(search, costs, value)
        if found is None:
            break
        node, option = found
        assert node.in_layouts is not None
        assert isinstance(node.layout, Layout)
        operands = cast("tuple[Layout, ...]", node.in_layouts)
        replaced.append((node, ShardingChoice(operands, (node.layout,), option.work)))
        around = dict.fromkeys((*node.inputs, node))
        before = sum(map(costs.moves, around))
        search.place(node, option.inputs, option.layout(node.type))
        saved += before - sum(map(costs.moves, around))
        if saved > best + LEAST:
            best, kept = saved, len(replaced)
        value = node
    for node, option in reversed(replaced[kept:]):
        search.place(node, option.inputs, option.layout(node.type))


def _reader(search: Search, costs: UnsetLayouts, value: Node) -> tuple[Node, ShardingChoice] | None:
    """The one operator that reads a partial value, and takes it complete, with its choice that takes it as it is; None
    where it cannot, would multiply more, was told otherwise, or has another operand whose gradient needs the value
    complete."""
    readers = [(user, index) for user, index in search.traffic.users.get(value, ()) if user.phase == "forward"]
    if len(readers) != 1:
        return None
    node, index = readers[0]
    rule, op = search.rules.get(node), node.op
    if rule is None or not isinstance(op, Op) or op.operandwise or node.attrs.get("strategy_from") in GIVEN:
        return None
    if node.in_layouts is None or not isinstance(node.layout, Layout) or node.layout.partial:
        return None
    others = [other for number, other in enumerate(node.inputs) if number != index]
    if any(_has_gradient(costs, other) for other in others):
        return None
    for option in choices(op, rule, operand_layouts(node), (), search.ranks):
        more = option.work > work_of(node, rule) and multiplies(rule, node)
        if option.inputs[index] == value.layout and not more:
            return node, option
    return None


def _has_gradient(costs: UnsetLayouts, value: Value) -> bool:
    return value in costs.graded
