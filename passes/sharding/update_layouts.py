"""Decides where updates of parameters run, and where they need the values that lead to them."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.passes.sharding.choices import ShardingChoice, make_choice, merge
from mspc.sharding.factors import Rule


def update_choice(node: Node, rule: Rule, op: Op, ranks: int) -> ShardingChoice | None:
    """An update runs on the parameter's own slices; None where no parameter that it names has slices yet."""
    sources = [
        (rule.inputs[i], layout)
        for i in (*op.mutates, *range(len(node.inputs)))
        if isinstance(layout := node.inputs[i].layout, Layout) and isinstance(node.inputs[i], Parameter)
    ]
    return make_choice(rule, *merge(rule, tuple(sources[:1]), ranks)) if sources else None


def wanted_by_updates(graph: Graph, rules: Mapping[Node, Rule | None], ranks: int) -> dict[Value, Layout]:
    """The layouts of what updates read, and of what that is computed from element by element.

    An optimizer that scales or clips a gradient, or only looks at it, then finds it reduced to the parameter's
    slices once, not reduced one way here and another way there. States of an optimizer that is made of small operators
    are among what is read: nobody else has decided on them, so they are stored as it is wanted.
    """
    wanted: dict[Value, Layout] = {}
    while _spread(graph, rules, ranks, wanted):
        pass
    return wanted


def _spread(graph: Graph, rules: Mapping[Node, Rule | None], ranks: int, wanted: dict[Value, Layout]) -> bool:
    """Add to `wanted`, from the last update to the first; True where a parameter was decided on: an update of it that
    came before may now want something, too."""
    decided = False
    for node in reversed(graph.nodes):
        rule = rules[node]
        op = node.op
        if rule is None or node.phase != "update" or not isinstance(op, Op) or node.in_layouts is not None:
            continue
        choice = update_choice(node, rule, op, ranks) if op.mutates else None
        if choice is None and node in wanted and (op.mutates or elementwise(rule)):
            choice = make_choice(rule, *merge(rule, ((rule.outputs[0], wanted[node]),), ranks))
        if choice is None:
            continue
        for value, layout in zip(node.inputs, choice.inputs, strict=True):
            if isinstance(value, Node) and value.shape:
                wanted.setdefault(value, layout)
            elif isinstance(value, Parameter) and value.layout is None:
                value.layout, decided = layout, True
    return decided


def elementwise(rule: Rule) -> bool:
    """Whether every operand is a scalar or lies as the one result does."""
    return len(rule.outputs) == 1 and all(not dims or dims == rule.outputs[0] for dims in rule.inputs)
