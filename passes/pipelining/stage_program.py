"""Writes the nodes of one stage's program: the work on micro-batches in the order of the schedule, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from mspc.ir.builder import Builder
from mspc.ir.copies import copied_node
from mspc.ir.graph import MICRO_BATCH, WORK, Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage
from mspc.ops.control.loops import Scan, body_of
from mspc.ops.control.regions import Call, emit_regions
from mspc.ops.control.structural import CALL, TupleGetItem
from mspc.ops.tensor.moving import Stack
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.pipelining.call_tuples import Tuples, call_tuples
from mspc.passes.pipelining.chosen_schedule import chosen_schedule, has_weights_apart, kinds_of
from mspc.passes.pipelining.chunk_graphs import ChunkGraph, Key, chunk_graphs
from mspc.passes.pipelining.placement import Placement
from mspc.passes.pipelining.schedules.action import FORWARD, actions_of

CHUNK = "chunk"
"""Attribute of the calls of a stage's program beside WORK and MICRO_BATCH: of which chunk the work is."""


_Message = SendToStage | ReceiveFromStage


@dataclass
class Messages:
    """Numbers the messages between stages, alike on all of them. ranks: of one stage."""

    placement: Placement
    ranks: int
    _numbers: dict[object, int] = field(default_factory=dict[object, int])

    def tag(self, key: object) -> int:
        """The tag of a message; all stages ask in the same order."""
        return self._numbers.setdefault(key, len(self._numbers))

    def distance(self, source: int, target: int) -> int:
        """By how many ranks the stages are apart."""
        return (target - source) * self.ranks


class StageProgram:
    """The program of one stage as it is written. of: what stands in it for values of the graph of all stages."""

    def __init__(self, graph: Graph, loop: Node | None, stage: int, messages: Messages) -> None:
        self.graph, self.loop, self.stage, self.messages = graph, loop, stage, messages
        self.of: dict[Value, Value] = {}
        self._builder = Builder(Graph(""))
        self._entries: dict[tuple[Value, int], Node] = {}
        """Parts of what is given to the loop."""
        self._first_part: dict[Value, Node] = {}
        self._first_message: dict[tuple[Value, int | None], Node] = {}
        """What sends a value to a stage, or receives it, for the first micro-batch."""
        self._values: dict[tuple[Value, int], Value] = {}
        """What this stage has of a micro-batch."""
        self._totals: dict[int, Value] = {}
        self._results: dict[int, list[Value]] = {}
        self._calls: dict[Key, Node] = {}
        """The first call of each graph."""
        self._readers: dict[Value, set[int]] = {}
        """The stages that read a value of a micro-batch which another graph makes."""
        if loop is not None:
            assert isinstance(loop.op, Scan)
            self.op = loop.op
            self.body = body_of(loop)
            self.places = {parameter: i for i, parameter in enumerate(self.body.parameters)}
            self.weights_apart = has_weights_apart(graph.attrs)
            self.chunks = chunk_graphs(self.body, self.weights_apart)
            for chunk in self.chunks.graphs.values():
                for value in chunk.read:
                    source, target = self._stage(self.chunks.made_in[value]), self._stage(chunk.key)
                    self._readers.setdefault(value, set()).add(target)
                    if source != target:
                        for number in range(self.op.turns):
                            messages.tag((value, target, number))
            stage_of = {key: self._stage(key) for key in self.chunks.graphs}
            self.tuples = Tuples(call_tuples(self.chunks, stage_of, self.op, self.body, loop.inputs), self.op.turns)

    def _stage(self, key: Key) -> int:
        return self.messages.placement.stage(key.chunk)

    def operands_by_stage(self) -> dict[Value, set[int]]:
        """The stages that read each operand of the loop."""
        assert self.loop is not None
        found: dict[Value, set[int]] = {}
        for key, chunk in self.chunks.graphs.items():
            for parameter in chunk.given:
                found.setdefault(self.loop.inputs[self.places[parameter]], set()).add(self._stage(key))
        for number in range(self.op.carried):
            result = self.body.results[number]
            stage = self._stage(self.chunks.made_in[result]) if result in self.chunks.made_in else None
            for each in range(self.messages.placement.stages) if stage is None else [stage]:
                found.setdefault(self.loop.inputs[number], set()).add(each)
        return found

    # What is of no micro-batch

    def begin(self, made: Graph) -> None:
        """Write into a graph from now on."""
        self._builder = Builder(made)

    def add(self, node: Node, operands: Sequence[Value]) -> None:
        """Compute a node here."""
        if self.loop is not None and node.inputs[:1] == [self.loop]:
            self.of[node] = self._result(node)
            return
        made = copied_node(node, [v if isinstance(v, Constant) else self.of[v] for v in operands])
        self._builder.nodes.append(made)
        self.of[node] = made

    def hand_on(self, node: Node, source: int, target: int) -> None:
        """Send a value to another stage, or receive it, where this stage is one of the two."""
        tag = self.messages.tag((node, target, -1))
        if self.stage == source:
            self._send(node, self.of[node], target, tag, -1)
        elif self.stage == target:
            self.of[node] = self._receive(node, source, tag, -1)

    def _send(self, value: Value, mine: Value, target: int, tag: int, number: int) -> None:
        op = SendToStage(target, self.messages.distance(self.stage, target), tag, number)
        self._message((value, target), value, op, [mine]).attrs["reason"] = f"{_said(value)} is read by stage {target}"

    def _receive(self, value: Value, source: int, tag: int, number: int) -> Value:
        kind = value.tensor_type
        op = ReceiveFromStage(
            source, self.messages.distance(source, self.stage), tag, kind.shape, kind.dtype, number
        )
        made = self._message((value, None), value, op, [])
        made.name, made.type = value.name, kind  # the same one of every micro-batch
        made.attrs["reason"] = f"{_said(value)} is computed by stage {source}"
        return made

    def _message(self, key: tuple[Value, int | None], value: Value, op: _Message, operands: list[Value]) -> Node:
        """What sends a value, or receives it; of later micro-batches a copy of the first one's, of the same type."""
        b, first = self._at(value), self._first_message.get(key)
        if first is None:
            found = self._first_message[key] = b.emit(op, *operands)
            return found
        found = copied_node(first, operands, op)
        b.nodes.append(found)
        return found

    def _at(self, value: Value) -> Builder:
        b = self._builder
        if isinstance(value, Node):
            b.like(value).phase = value.phase
        return b

    # Micro-batches

    def run_micro_batches(self) -> None:
        """The stage's work on all micro-batches."""
        assert self.loop is not None
        self._at(self.loop)
        for number in range(self.op.carried):
            operand = self.loop.inputs[number]
            if operand in self.of or isinstance(operand, Constant):
                self._totals[number] = self._own(operand)
        schedule = chosen_schedule(self.graph.attrs, self.op.turns)
        for action in actions_of(schedule.entries[self.stage]):
            for kind in kinds_of(action.kind, self.weights_apart):
                chunk = self.chunks.graphs.get(Key(kind, action.chunk))
                if chunk is not None:
                    self._run(chunk, action.micro_batch)

    def _own(self, value: Value) -> Value:
        return value if isinstance(value, Constant) else self.of[value]

    def _run(self, chunk: ChunkGraph, number: int) -> None:
        loop = self.loop
        assert loop is not None
        own = self.tuples.of[chunk.key]
        operands = [self._given(parameter, number) for parameter in own.single_given]
        operands += [self._read(value, number) for value in own.single_read]
        b = self._at(loop)
        operands += self.tuples.operands(b, chunk.key, number, lambda parameter: self._given(parameter, number))
        b = self._at(loop)
        b.phase = "forward" if chunk.key.kind == FORWARD else "backward"
        first = self._calls.get(chunk.key)
        made = emit_regions(b, Call(), operands, (chunk.graph,)) if first is None else copied_node(first, operands)
        if first is None:
            self._calls[chunk.key] = made
        else:
            b.nodes.append(made)
        made.attrs[CALL] = number + 1
        made.attrs |= {WORK: chunk.key.kind, CHUNK: chunk.key.chunk, MICRO_BATCH: number}
        b.scope, b.frames = "", ()  # the call has them
        apart = self.tuples.take_apart(b, chunk, number, made)
        self._values |= {(value, number): mine for value, mine in apart.items()}
        for place, result in enumerate(self.body.results):
            if result in apart:
                mine = apart[result]
                if place < self.op.carried:
                    self._totals[place] = mine
                else:
                    self._results.setdefault(place, []).append(mine)
        for value in chunk.results:
            for target in sorted(self._readers.get(value, set()) - {self.stage}):
                tag = self.messages.tag((value, target, number))
                self._send(value, self._values[value, number], target, tag, number)

    def _given(self, parameter: Parameter, number: int) -> Value:
        loop, op, place = self.loop, self.op, self.places[parameter]
        assert loop is not None
        if place < op.carried:
            return self._totals[place]
        operand = self._own(loop.inputs[place])
        if place not in op.scanned_operands:
            return operand
        if (operand, number) not in self._entries:
            rank = len(operand.shape)
            part = StridedSlice(
                shrink_axis_mask=1, begin=(number, *[0] * (rank - 1)), end=(number + 1, *operand.shape[1:]),
                strides=(1,) * rank,
            )  # fmt: skip
            self._entries[operand, number] = self._part(operand, part, parameter.name)
        return self._entries[operand, number]

    def _part(self, operand: Value, part: StridedSlice, name: str) -> Node:
        """What is of a micro-batch; of later ones a copy of the first one's, of the same type."""
        assert self.loop is not None
        b = self._at(self.loop)
        first = self._first_part.get(operand)
        if first is None:
            found = self._first_part[operand] = b.emit(part, operand, name=name)
            return found
        found = copied_node(first, [operand], part)
        b.nodes.append(found)
        return found

    def _read(self, value: Node, number: int) -> Value:
        if (value, number) not in self._values:
            tag = self.messages.tag((value, self.stage, number))
            source = self._stage(self.chunks.made_in[value])
            self._values[value, number] = self._receive(value, source, tag, number)
        return self._values[value, number]

    def _result(self, node: Node) -> Value:
        """A result of the loop: a total, or what was kept of every micro-batch."""
        assert isinstance(node.op, TupleGetItem)
        if node.op.index < self.op.carried:
            return self._totals[node.op.index]
        parts = self._results[node.op.index]
        return self._at(node).emit(Stack(axis=0), *parts)


def _said(value: Value) -> str:
    """How a reason names a value."""
    if not isinstance(value, Node):
        return value.name
    return f"the result of {value.label}" if value.phase != "backward" else f"the gradient that {value.label} computes"
