"""Puts operators into the form in which operands may lie as they are to, with the operators of their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Graph, Node, operand_types
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.sharding.factors import Rule


def other_rule(node: Node, ranks: int) -> Rule | None:
    """The rule of the other form of a node's operator, by which so many ranks may shard it, too; None without one."""
    types = operand_types(node)
    form = node.op.other_form(types, ranks) if isinstance(node.op, Op) else None
    return None if form is None else form.parsed_rule(*types)


def take_form(graph: Graph, node: Node, layouts: Sequence[Layout]) -> list[Node]:
    """Let an operator of a graph be what takes operands that lie so. The nodes whose operators changed."""
    op = node.op
    if not isinstance(op, Op) or (form := op.in_form(layouts)) is op:
        return []
    return give_form(graph, node, form)


def give_form(graph: Graph, node: Node, form: Op) -> list[Node]:
    """Give an operator a form, and its gradients theirs. The nodes whose operators changed."""
    node.op = form
    changed = [node]
    for other in graph.nodes:
        if other.forward is node and isinstance(other.op, Op):
            own = other.op.like_forward(form)
            if own is not other.op:
                other.op = own
                changed.append(other)
    return changed
