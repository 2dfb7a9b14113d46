"""The rules of a graph's operators, each of the form that its operator has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mspc.ir.graph import Node
from mspc.passes.sharding.choices import rule_of
from mspc.sharding.factors import Rule


class KnownRules(Mapping[Node, "Rule | None"]):
    """Rules by node, None where an operator has none. A node that has been given another operator, as attention in its
    other form, has the rule of that one."""

    def __init__(self) -> None:
        self._known: dict[Node, tuple[Any, Rule | None]] = {}

    def note(self, node: Node) -> None:
        """Know a node's rule from now on. Raises MspcError where the operator does not take its operands."""
        self._known[node] = node.op, rule_of(node)

    def __getitem__(self, node: Node) -> Rule | None:
        op, rule = self._known[node]
        if op is node.op:
            return rule
        self.note(node)
        return self._known[node][1]

    def __contains__(self, node: object) -> bool:
        return node in self._known

    def __iter__(self) -> Iterator[Node]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
