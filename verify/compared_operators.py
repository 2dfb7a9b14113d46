"""Matches the operators of one device with those of the ranks, in the order in which one device runs them.

In stages that is also within micro-batches. One device runs a loop over them forward, and another backward from the
last on; the ranks add gradients up in the order of the micro-batches. So what depends on sums of the second loop is the
same behind all micro-batches alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.regions import Scan, body_of
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import AddN


class Matched(NamedTuple):
    """An operator of one device, and of the ranks.

    key, other_key: of its value, of one device and of the ranks. micro_batch: its number, None outside of these. term:
    of a sum over micro-batches the operator whose values are added up.
    """

    node: Node
    other: Node
    key: Any
    other_key: Any
    micro_batch: int | None = None
    term: Node | None = None


class FirstOperator(NamedTuple):
    """The first operator whose value differs, or of which the sum over micro-batches does (`is_sum`). micro_batch,
    stage: None where there are none."""

    node: Node
    micro_batch: int | None = None
    stage: int | None = None
    is_sum: bool = False

    @property
    def place(self) -> str:
        """` in micro-batch 2 on stage 1`, as far as there are any."""
        part = "" if self.micro_batch is None else f" in micro-batch {self.micro_batch}"
        part = ", added up over micro-batches," if self.is_sum else part
        return part if self.stage is None else f"{part} on stage {self.stage}"


def number_operators(graph: Graph, mark: str) -> None:
    """Number the operators, those that work on micro-batches too."""
    for number, node in enumerate(_all_nodes(graph)):
        node.attrs[mark] = number


def matched(one: Graph, many: Graph, mark: str) -> Iterator[Matched]:
    """The operators that both have. mark: attribute that numbers both alike."""
    others = _numbered(many, mark)
    for node in one.nodes:
        if isinstance(node.op, Scan) and node.op.micro_batches:
            yield from _in_micro_batches(node, node.op, others, mark)
            continue
        inner = _total(node)
        if inner is not None and inner.attrs.get(mark) in others:
            number = inner.attrs[mark]
            source = node.inputs[0].op  # type: ignore[union-attr]  # a loop
            keys = (number, _last(source)), (number, source.turns - 1)
            yield Matched(node, others[number], *keys, term=_term(inner))
        elif node.attrs.get(mark) in others:
            number = node.attrs[mark]
            yield Matched(node, others[number], number, number, term=None if inner is None else _term(inner))


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        if isinstance(node.op, Scan) and node.op.micro_batches:
            yield from body_of(node).nodes


def _numbered(graph: Graph, mark: str) -> dict[Any, Node]:
    """Operators by number. Of several with one number, as parts of a sum that stages take apart, the one that has the
    parameter's gradient; none where there is no such one."""
    found: dict[Any, list[Node]] = {}
    for node in _all_nodes(graph):
        if mark in node.attrs:
            found.setdefault(node.attrs[mark], []).append(node)
    chosen: dict[Any, Node] = {}
    for number, nodes in found.items():
        those = nodes if len(nodes) == 1 else [node for node in nodes if node.attrs.get("gradient_for")]
        if len(those) == 1:
            chosen[number] = those[0]
    return chosen


def _in_micro_batches(loop: Node, op: Scan, others: dict[Any, Node], mark: str) -> Iterator[Matched]:
    body = body_of(loop)
    sums = _depend(body.nodes, body.parameters[: op.carried]) if op.reverse else set[Value]()
    nodes = [node for node in body.nodes if node not in sums and node.attrs.get(mark) in others]
    for turn in range(op.turns)[:: -1 if op.reverse else 1]:
        for node in nodes:
            key = node.attrs[mark], turn
            yield Matched(node, others[node.attrs[mark]], key, key, turn)


def _total(node: Node) -> Node | None:
    """The operator in a loop over micro-batches whose value behind the last one a node takes."""
    source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
    if not (isinstance(source, Node) and isinstance(source.op, Scan) and source.op.micro_batches):
        return None
    assert isinstance(node.op, TupleGetItem)
    result = body_of(source).results[node.op.index] if node.op.index < source.op.carried else None
    return result if isinstance(result, Node) else None


def _term(total: Node) -> Node:
    """What is added to a total: the last operator that it reads, and is no sum itself."""
    while isinstance(total.op, AddN):
        read = [value for value in total.inputs if isinstance(value, Node)]
        if not read:
            break
        total = read[-1]
    return total


def _last(op: Scan) -> int:
    """The number of the last turn."""
    return 0 if op.reverse else op.turns - 1


def _depend(nodes: Sequence[Node], roots: Sequence[Value]) -> set[Value]:
    found: set[Value] = set(roots)
    for node in nodes:
        if any(value in found for value in node.inputs):
            found.add(node)
    return found
