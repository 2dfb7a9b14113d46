"""What the gradient of an operator sends by itself: inside of its operators, and for sums that are its own.

A gradient is cut as its forward operator is. Beside the gradients of operands, which `Model` brings to where they are
wanted, it may exchange borders of windows or statistics, and may add up what only it reads, as the gradient of a maximum
counts equal maxima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mspc.ir.graph import Node, Value, element_types
from mspc.ir.layout import Layout
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.passes.sharding.choices import Choice, make_choice, merge, operand_types
from mspc.passes.sharding.traffic import scatter_bytes
from mspc.sharding.factors import Rule


class GradientBytes:
    """The backward operators of a graph by the forward operator that they differentiate; rules: of all operators.
    complete: of forward operators the operands whose gradients come out complete however the operator is cut."""

    def __init__(self, nodes: Sequence[Node], rules: Mapping[Node, Rule | None], ranks: int) -> None:
        self.rules, self.ranks = rules, ranks
        self.of: dict[Node, list[Node]] = {}
        read_by: dict[Value, list[tuple[Node, int]]] = {}
        for node in nodes:
            if node.phase != "backward":
                continue
            for index, value in enumerate(node.inputs):
                read_by.setdefault(value, []).append((node, index))
            if node.forward is not None and rules[node] is not None:
                self.of.setdefault(node.forward, []).append(node)
        self.complete = self._complete(nodes)
        self._summing = {node for node in read_by if isinstance(node, Node) and self._sums(node, read_by[node])}
        self.of = {
            node: gradients for node, gradients in self.of.items()
            if any(_moves(each) or each in self._summing for each in gradients)
        }  # fmt: skip

    def _complete(self, nodes: Sequence[Node]) -> dict[Node, frozenset[int]]:
        found: dict[Node, frozenset[int]] = {}
        for node in nodes:
            if not isinstance(node.op, TupleGetItem) or node.phase != "backward" or node.forward is None:
                continue
            made = node.inputs[0]
            rule = self.rules.get(made) if isinstance(made, Node) and made.forward is node.forward else None
            if rule is not None and node.forward_input >= 0 and not rule.reduced and node.op.index not in rule.summed:
                found[node.forward] = found.get(node.forward, frozenset()) | {node.forward_input}
        return found

    def _sums(self, node: Node, readers: list[tuple[Node, int]]) -> bool:
        """Whether a backward operator adds up what another one of the same gradient needs complete."""
        rule = self.rules.get(node)
        if node.phase != "backward" or rule is None or not rule.reduced:
            return False
        return any(
            reader.forward is node.forward and not (op := cast(Op, reader.op)).additive and index not in op.linear_in
            for reader, index in readers
        )

    def key(self, node: Node) -> Any:
        """What is equal for operators whose gradients send the same; None where they send nothing by themselves."""
        gradients = self.of.get(node)
        if gradients is None:
            return None
        return tuple((each.op, each.type, each.forward_input, each in self._summing, self._wires(node, each))
                     for each in gradients)  # fmt: skip

    def _wires(self, node: Node, gradient: Node) -> tuple[int, ...]:
        known = {value: index for index, value in enumerate((*node.inputs, node, *self.of[node]))}
        return tuple(known.get(value, -1) for value in gradient.inputs)

    def sent(self, node: Node, choice: Choice) -> float:
        """Bytes that a rank sends in the gradient of an operator that is cut by a choice."""
        placed: dict[Value, Layout] = dict(zip(node.inputs, choice.inputs, strict=True))
        results = [layout.without_partial() for layout in choice.outputs]
        types = element_types(node.type)
        placed[node] = results[0]
        total = 0.0
        for each in self.of.get(node, ()):
            rule = self.rules[each]
            assert rule is not None
            sources: list[tuple[Any, Layout]] = []
            if each.forward_input >= 0:
                sources.append((rule.outputs[0], choice.inputs[each.forward_input]))
            for dims, value in zip(rule.inputs, each.inputs, strict=False):
                layout = placed.get(value)
                if layout is None and value.type in types:
                    layout = results[types.index(cast(Any, value.type))]  # a gradient lies as its value does
                if layout is not None and dims and len(dims) == len(layout.dims):
                    sources.append((dims, layout.without_partial()))
            found = make_choice(rule, *merge(rule, tuple(sources), self.ranks))
            placed[each] = found.outputs[0]
            op = cast(Op, each.op)
            if _moves(each):
                total += op.moved_bytes(operand_types(each), found.inputs)
            if each in self._summing and found.outputs[0].partial:
                type = each.tensor_type
                total += scatter_bytes(found.outputs[0], type.shape, type.dtype.itemsize)
        return total


def _moves(node: Node) -> bool:
    return type(cast(Op, node.op)).moved_bytes is not Op.moved_bytes
