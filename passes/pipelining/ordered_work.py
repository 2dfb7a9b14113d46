"""The work of a stage on all micro-batches, which is written down once in the body of a loop, in a schedule's order."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.copies import copied_node
from mspc.ir.graph import MICRO_BATCH, STAGE, WORK, Constant, Graph, Node, OpLike, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage
from mspc.ops.control.loops import Scan, body_of
from mspc.ops.control.regions import Call, emit_regions
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems
from mspc.ops.tensor.moving import Stack
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.pipelining.call_tuples import CallTuples, call_tuples
from mspc.passes.pipelining.chosen_schedule import chosen_schedule, has_weights_apart, kinds_of
from mspc.passes.pipelining.schedules.action import actions_of
from mspc.passes.pipelining.stage_program import CHUNK


class OrderedWork:
    """Writes the nodes in the place of a loop. results: what the values that were taken out of it are now."""

    def __init__(self, graph: Graph, loop: Node) -> None:
        assert isinstance(loop.op, Scan)
        self.graph, self.loop, self.op, self.body = graph, loop, loop.op, body_of(loop)
        self.results: dict[Value, Value] = {}
        self._places = {parameter: place for place, parameter in enumerate(self.body.parameters)}
        self._calls = {(str(n.attrs[WORK]), int(n.attrs[CHUNK])): n for n in self.body.nodes if WORK in n.attrs}
        self._tuples = call_tuples([*self._calls.values()], self.op, self.body, loop.inputs)
        self._nodes: list[Node] = []
        self._b = Builder(Graph(""), self._nodes)
        self._totals: list[Value] = [*loop.inputs[: self.op.carried]]
        self._values: dict[tuple[Value, int], Value] = {}
        """What stands for a value of the body on a micro-batch."""
        self._kept: dict[tuple[Node, int], Value] = {}
        """The tuples that a call keeps of a micro-batch for others, by the first value in each."""
        self._first: dict[Value, Node] = {}
        """The first of the nodes that differ by their micro-batches alone, and so have one type."""
        self._whole: dict[Node, Value] = {}
        self._total_tuples: dict[Node, Value] = {}
        """The tuples of parameters that a call is given, and that of totals with which its next one goes on."""
        self._left = dict.fromkeys(self._calls.values(), self.op.turns)
        """How often each call is still to come."""
        self._following = _following(self.body, [*self._calls.values()], self._tuples, self.op)

    def nodes(self) -> list[Node]:
        """All work, by the schedule that the header of the graph asks for."""
        schedule = chosen_schedule(self.graph.attrs, self.op.turns)
        weights_apart = has_weights_apart(self.graph.attrs)
        for action in actions_of(schedule.entries[int(self.graph.attrs[STAGE])]):
            for kind in kinds_of(action.kind, weights_apart):
                call = self._calls.get((kind, action.chunk))
                if call is not None:
                    self._run(call, action.micro_batch)
        for place, result in self._following[None].carried:
            self._totals[place] = self._value(result, self.op.turns - 1)
        return self._nodes

    def result(self, node: Node) -> list[Node]:
        """What takes a result out of the loop is a total from now on, or what puts the parts of one together."""
        assert isinstance(node.op, TupleGetItem)
        place = node.op.index
        if place < self.op.carried:
            self.results[node] = self._totals[place]
            return []
        begin = len(self._nodes)
        parts = [self._value(self.body.results[place], number) for number in range(self.op.turns)]
        self.results[node] = self._like(node).emit(Stack(axis=0), *parts)
        return self._nodes[begin:]

    def _like(self, node: Node) -> Builder:
        self._b.like(node).phase = node.phase
        return self._b

    def _run(self, call: Node, number: int) -> None:
        own = self._tuples[call]
        operands = [self._value(value, number) for value in own.single]
        for parameters, known in ((own.whole, self._whole), (own.totals, self._total_tuples)):
            if parameters:
                if call not in known:
                    values = [self._value(parameter, number) for parameter in parameters]
                    known[call] = self._like(self.loop).emit(MakeTuple(), *values)
                operands.append(known[call])
        operands += [self._kept[values[0], number] for _, values in own.read]
        made = self._first.get(call)
        if made is None:
            made = self._first[call] = emit_regions(self._like(call), Call(), operands, call.regions)
        else:
            made = self._copied(made, operands)
        made.attrs = {**call.attrs, MICRO_BATCH: number}
        self._left[call] -= 1
        self._take_apart(call, number, made)
        for node in self._following[call].sent:
            self._value(node, number)

    def _take_apart(self, call: Node, number: int, made: Node) -> None:
        """Take the results of a call out of its tuple, those that calls go on with together as tuples."""
        own = self._tuples[call]
        for values in own.kept:
            self._kept[values[0], number] = self._items(values, made)
        goes_on = bool(own.new_totals) and self._left[call] > 0
        if goes_on:
            self._total_tuples[call] = self._items(own.new_totals, made)
        for value in (*own.apart, *(() if goes_on else own.new_totals)):
            self._values[value, number] = self._copied(value, [made])
        following = self._following[call]
        for place, result in following.carried if goes_on else (*following.carried, *following.together):
            self._totals[place] = self._value(result, number)

    def _items(self, values: Sequence[Node], made: Node) -> Node:
        first = self._first.get(values[0])
        if first is not None:
            return self._copied(first, [made])
        b = self._like(values[0])
        indices = tuple(value.op.index for value in values if isinstance(value.op, TupleGetItem))
        found = self._first[values[0]] = b.emit(TupleGetItems(indices), made)
        return found

    @iterative
    def _value(self, value: Value, number: int) -> Generator[Any, Value, Value]:
        """What stands for a value of the body on a micro-batch."""
        if isinstance(value, Constant):
            return value
        if isinstance(value, Parameter):
            place = self._places[value]
            if place < self.op.carried:
                return self._totals[place]
            if place not in self.op.scanned_operands:
                return self.loop.inputs[place]
        if (value, number) not in self._values:
            if not isinstance(value, Node):
                assert isinstance(value, Parameter)
                self._values[value, number] = self._part(value, number)
                return self._values[value, number]
            inputs: list[Value] = []
            for each in value.inputs:
                inputs.append((yield self, each, number))
            self._values[value, number] = self._made(value, inputs, number)
        return self._values[value, number]

    def _made(self, value: Node, inputs: Sequence[Value], number: int) -> Node:
        op = value.op
        if isinstance(op, SendToStage | ReceiveFromStage):
            op = replace(op, sr_tag=op.sr_tag + number, micro_batch=number)
        return self._copied(value, inputs, op)

    def _part(self, parameter: Parameter, number: int) -> Node:
        """What a scanned operand has for a micro-batch."""
        operand = self.loop.inputs[self._places[parameter]]
        rank = len(operand.shape)
        part = StridedSlice(
            shrink_axis_mask=1, begin=(number, *[0] * (rank - 1)), end=(number + 1, *operand.shape[1:]),
            strides=(1,) * rank,
        )  # fmt: skip
        first = self._first.get(parameter)
        if first is not None:
            return self._copied(first, [operand], part)
        found = self._first[parameter] = self._like(self.loop).emit(part, operand, name=parameter.name)
        return found

    def _copied(self, node: Node, operands: Sequence[Value], op: OpLike | None = None) -> Node:
        """A node for one more micro-batch, of the same type."""
        made = copied_node(node, operands, op)
        self._nodes.append(made)
        return made


@dataclass
class _Following:
    """What follows a call. sent: messages. carried: results that the loop carries, with their numbers; together: those
    that it carries in a tuple."""

    sent: list[Node] = field(default_factory=list[Node])
    carried: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])
    together: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])


def _following(
    body: Graph, calls: Sequence[Node], tuples: Mapping[Node, CallTuples], op: Scan
) -> dict[Node | None, _Following]:
    """For every call, and for None what no call makes and what the loop only hands on."""
    found: dict[Node | None, _Following] = {call: _Following() for call in (None, *calls)}
    behind = _calls_behind(body)
    together = {value for own in tuples.values() for value in own.new_totals}
    for node in body.nodes:
        if isinstance(node.op, SendToStage):
            found[behind.get(node, calls[0])].sent.append(node)
    for place, result in enumerate(body.results[: op.carried]):
        if result is not body.parameters[place]:
            own = found[behind.get(result)]
            (own.together if result in together else own.carried).append((place, result))
    return found


def _calls_behind(body: Graph) -> dict[Value, Node]:
    """For what is made of results of calls the last of these."""
    found: dict[Value, Node] = {}
    place = {node: number for number, node in enumerate(body.nodes)}
    for node in body.nodes:
        made = [found[value] for value in node.inputs if value in found]
        if WORK in node.attrs:
            found[node] = node
        elif made:
            found[node] = max(made, key=lambda call: place[call])
    return found
