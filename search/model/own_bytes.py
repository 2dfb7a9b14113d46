"""Counts the bytes that an operator and its gradient send inside of them, and for sums that are the gradient's own.

A gradient is sharded as its forward operator is. Beside the gradients of operands, which `Model` brings to where they
are wanted, it may exchange borders of windows or statistics, and may add up what only it reads, as the gradient of a
maximum counts equal maxima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mspc.ir.graph import Node, Value, element_types, operand_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.passes.lib.choices import ShardingChoice, exchanges, make_choice, merge
from mspc.passes.lib.placement import scatter_bytes
from mspc.search.model.uneven_costs import UnevenCosts
from mspc.sharding.factors import Rule


class OwnBytes:
    """The backward operators of a graph by the forward operator that they differentiate; rules: of all operators.
    complete: of forward operators the operands whose gradients come out complete however the operator is sharded.
    uneven: what counts beside bytes."""

    def __init__(
        self, nodes: Sequence[Node], rules: Mapping[Node, Rule | None], ranks: int, uneven: UnevenCosts
    ) -> None:
        self.rules, self.ranks, self.uneven = rules, ranks, uneven
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
            if any(exchanges(each) or each in self._summing for each in gradients)
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
        """What is equal for operators that send the same by themselves; None where they send nothing."""
        if not exchanges(node) and node not in self.of:
            return None
        gradients = self.of.get(node, [])
        known = {value: index for index, value in enumerate((*node.inputs, node, *gradients))}
        return node.op, tuple(
            (each.op, each.type, each in self._summing, tuple(known.get(value, -1) for value in each.inputs))
            for each in gradients
        )

    def cost(self, node: Node, types: Sequence[TensorType], choice: ShardingChoice) -> float:
        """Bytes that a rank sends in an operator of operands of these types that is sharded by a choice, and in its
        gradient, which is taken to exchange nothing where the operator does not, nor to be uneven where that is even;
        with what else ranks do inside of them."""
        form = cast(Op, node.op).in_form(choice.inputs)
        own = form.moved_bytes(types, choice.inputs)
        more = self.uneven.of(form, types, choice.inputs, own)
        gradients = self.of.get(node, [])
        if own or more or not self._summing.isdisjoint(gradients):
            more += self._of_gradients(node, form, gradients, choice, own)
        return own + more

    def _of_gradients(
        self, node: Node, form: Op, gradients: Sequence[Node], choice: ShardingChoice, own: float
    ) -> float:
        """form: the operator as it is sharded. own: what it sends."""
        results = [layout.without_partial() for layout in choice.outputs]
        placed: dict[Value, Layout] = dict(zip(node.inputs, choice.inputs, strict=False))
        placed[node] = results[0]
        alike: dict[Type, Layout] = {value.type: layout for value, layout in placed.items()}
        alike |= dict(zip(reversed(element_types(node.type)), reversed(results), strict=True))
        total, shared = 0.0, set[tuple[Value, float]]()
        if (bordered := cast(Op, node.op).bordered) is not None:
            shared.add((node.inputs[bordered], own))
        for each in gradients:
            # What is not known lies as what has its type: a gradient as its value.
            op = cast(Op, each.op).like_forward(form)
            operands = [placed.get(value) or alike.get(value.type) for value in each.inputs]
            if exchanges(each) and None not in operands:
                layouts = cast("list[Layout]", operands)
                nbytes = op.moved_bytes(operand_types(each), layouts)
                total += self.uneven.of(op, operand_types(each), layouts, nbytes)
                sent = None if op.bordered is None else (each.inputs[op.bordered], nbytes)
                total += 0.0 if sent in shared else nbytes
                if sent is not None:
                    shared.add(sent)
            if each in self._summing:
                made = self._sums_of(each, operands)
                placed[each] = made[0]  # elements of several results are read, never the tuple
                total += sum(
                    scatter_bytes(layout, type.shape, type.dtype.itemsize)
                    for layout, type in zip(made, element_types(each.type), strict=True) if layout.partial
                )  # fmt: skip
        return total

    def _sums_of(self, node: Node, operands: Sequence[Layout | None]) -> tuple[Layout, ...]:
        """How the results of an operator that adds up come out of operands."""
        rule = self.rules[node]
        assert rule is not None
        sources = tuple((dims, layout.without_partial()) for dims, layout in zip(rule.inputs, operands, strict=True)
                        if layout is not None and dims)  # fmt: skip
        return make_choice(rule, *merge(rule, sources, self.ranks)).outputs
