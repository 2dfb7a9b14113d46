"""What the calls of a stage's program hand to each other as tuples: parameters that all calls of a graph read, values
that a graph keeps for others on each micro-batch, and totals that it goes on with on the next one.

A tuple is one operand, so that the program grows by micro-batches alone, not by micro-batches times tensors. One tensor
alone stays an operand, as do constants, which graphs take in, parameters that a graph overwrites, and stacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.control.loops import Scan
from mspc.ops.control.structural import TupleGetItem

FEWEST = 2
"""Tensors that are worth a tuple."""


@dataclass
class CallTuples:
    """Of one call in the loop over micro-batches: its operands, which stand behind each other in this order.

    single: those that come by themselves. whole: parameters that are the same on all micro-batches. totals: those that
    stand for totals, whose new values the call makes. read: values that another call makes, with that call; the tuples
    are those that it has `kept`. apart: results that are taken out by themselves on every micro-batch.
    """

    single: list[Value] = field(default_factory=list[Value])
    whole: list[Parameter] = field(default_factory=list[Parameter])
    totals: list[Parameter] = field(default_factory=list[Parameter])
    read: list[tuple[Node, list[Node]]] = field(default_factory=list["tuple[Node, list[Node]]"])
    new_totals: list[Node] = field(default_factory=list[Node])
    kept: list[list[Node]] = field(default_factory=list["list[Node]"])
    apart: list[Node] = field(default_factory=list[Node])


def call_tuples(calls: Sequence[Node], op: Scan, body: Graph, operands: Sequence[Value]) -> dict[Node, CallTuples]:
    """For every call, whose graph's parameters are put into the order of its operands.

    Args:
        calls: in the loop `op`, of which `body` is the graph. operands: of its node. Where several of them run one
        graph its parameters stay as they are.
    """
    places = {parameter: i for i, parameter in enumerate(body.parameters)}
    times = Counter(call.regions for call in calls)
    readers = _readers([call for call in calls if times[call.regions] == 1])
    found = {call: CallTuples() for call in calls}
    among: dict[Value, Node] = {call: call for call in calls}
    made = {
        node: among[node.inputs[0]]
        for node in body.nodes if isinstance(node.op, TupleGetItem) and node.inputs[0] in among
    }  # fmt: skip
    alike: dict[tuple[Node, ...], list[Node]] = {}
    for node, maker in made.items():
        if readers.get(node) and not isinstance(node.type, StackType):
            alike.setdefault((maker, *readers[node]), []).append(node)
    for (maker, *keys), values in alike.items():
        if len(values) >= FEWEST:
            found[maker].kept.append(values)
            for reader in keys:
                found[reader].read.append((maker, values))
    reading = Counter(value for node in body.nodes for value in node.inputs)
    alone = set(body.results)
    for call, own in found.items():
        totals: dict[Parameter, Node] = {}
        once = Counter(call.inputs)
        for index, value in enumerate(call.inputs):
            if not isinstance(value, Parameter) or isinstance(value.type, StackType):
                continue
            if index in call.op.mutates or once[value] > 1 or times[call.regions] > 1:
                continue
            place = places[value]
            if place < op.carried:
                result = body.results[place]
                if isinstance(result, Node) and reading[value] == 1 and made.get(result) is call:
                    totals[value] = result
            elif place not in op.scanned_operands and not isinstance(operands[place], Constant):
                own.whole.append(value)
        own.whole = own.whole if len(own.whole) >= FEWEST else []
        if len(totals) >= FEWEST:
            own.totals, own.new_totals = [*totals], [*totals.values()]
        alone -= set(own.new_totals)
        _put_in_order(call, own)
    for node in body.nodes:
        alone.update(found[node].single if node in found else node.inputs)
    for node, maker in made.items():
        if node in alone:
            found[maker].apart.append(node)
    return found


def _readers(calls: Sequence[Node]) -> dict[Value, list[Node]]:
    """The calls that read a value, each of them once; none of what others read twice."""
    found: dict[Value, list[Node]] = {}
    for call in calls:
        for value, count in Counter(call.inputs).items():
            if count == 1:
                found.setdefault(value, []).append(call)
    return found


def _put_in_order(call: Node, own: CallTuples) -> None:
    """Put the parameters of a call's graph into the order of its operands."""
    together: list[Value] = [*own.whole, *own.totals, *(value for _, values in own.read for value in values)]
    among = set(together)
    own.single = [value for value in call.inputs if value not in among]
    (graph,) = call.regions
    inside: dict[Value, Parameter] = dict(zip(call.inputs, graph.parameters, strict=True))
    singles = [p for value, p in zip(call.inputs, graph.parameters, strict=True) if value not in among]
    graph.parameters = singles + [inside[value] for value in together]
