"""Finds how an operator can be sharded, given what a plan says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mspc.ir.graph import Node
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.passes.sharding.choices import ShardingChoice, choices, make_choice, merge, operandwise_choice
from mspc.sharding.factors import Rule


def options_of(
    node: Node, rule: Rule, layouts: tuple[Layout, ...], results: Sequence[Layout] | None, ranks: int
) -> list[ShardingChoice]:
    """The choices for an operator that layouts of its operands, and those of its results, lead to. The first is what a
    plan means that says nothing of results."""
    op = cast(Op, node.op)
    if op.operandwise:
        return [operandwise_choice(op, list(layouts), ranks)]
    taken = tuple((d, layout.without_partial()) for d, layout in zip(rule.inputs, layouts, strict=True) if d)
    found = [make_choice(rule, *merge(rule, taken, ranks))]
    if any(layout.partial for layout in layouts):
        passing = choices(op, rule, layouts, (), ranks)
        found = [*(option for option in passing if option.inputs == layouts), *found]
    if results is not None:
        made = tuple((d, layout.without_partial()) for d, layout in zip(rule.outputs, results, strict=True) if d)
        found.append(make_choice(rule, *merge(rule, (*taken, *made), ranks)))
        found += choices(op, rule, layouts, made, ranks)
    return found
