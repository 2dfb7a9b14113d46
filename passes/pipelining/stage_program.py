"""Writes the nodes of one stage's program: a loop over micro-batches with its work on one of them, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from mspc.ir.builder import Builder
from mspc.ir.copies import copied_node, copied_parameter
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import MICRO_BATCH, WORK, Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage
from mspc.ops.control.loops import Scan, body_of
from mspc.ops.control.regions import Call, emit_regions
from mspc.ops.control.structural import TupleGetItem
from mspc.passes.pipelining.chosen_schedule import has_weights_apart
from mspc.passes.pipelining.chunk_graphs import ChunkGraph, Key, chunk_graphs
from mspc.passes.pipelining.placement import Placement
from mspc.passes.pipelining.schedules.action import FORWARD, KINDS

CHUNK = "chunk"
"""Attribute of the calls of a stage's program beside WORK: of which chunk the work is."""


@dataclass
class Messages:
    """Numbers the messages between stages, alike on all of them. ranks: of one stage."""

    placement: Placement
    ranks: int
    _numbers: dict[object, int] = field(default_factory=dict[object, int])
    _next: int = 0

    def tag(self, key: object, count: int = 1) -> int:
        """The first tag of so many messages in a row; all stages ask in the same order."""
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += count
        return self._numbers[key]

    def distance(self, source: int, target: int) -> int:
        """By how many ranks the stages are apart."""
        return (target - source) * self.ranks


class StageProgram:
    """The program of one stage as it is written. of: what stands in it for values of the graph of all stages."""

    def __init__(self, graph: Graph, loop: Node | None, stage: int, messages: Messages) -> None:
        self.loop, self.stage, self.messages = loop, stage, messages
        self.of: dict[Value, Value] = {}
        self._builder = Builder(Graph(""))
        self._made_loop: Node | None = None
        self._places: dict[int, int] = {}
        """Of the results of the loop those of this stage's loop."""
        self._readers: dict[Value, set[int]] = {}
        """The stages that read a value of a micro-batch which another graph makes."""
        if loop is not None:
            assert isinstance(loop.op, Scan)
            self.op = loop.op
            self.body = body_of(loop)
            self.places = {parameter: i for i, parameter in enumerate(self.body.parameters)}
            self.chunks = chunk_graphs(self.body, has_weights_apart(graph.attrs))
            for chunk in self.chunks.graphs.values():
                for value in chunk.read:
                    source, target = self._stage(self.chunks.made_in[value]), self._stage(chunk.key)
                    self._readers.setdefault(value, set()).add(target)
                    if source != target:
                        messages.tag((value, target), self.op.turns)

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
            stage = self._made_on(number)
            for each in range(self.messages.placement.stages) if stage is None else [stage]:
                found.setdefault(self.loop.inputs[number], set()).add(each)
        for parameter in self._handed_through():
            found.setdefault(self.loop.inputs[self.places[parameter]], set()).update(
                range(self.messages.placement.stages)
            )
        return found

    def _handed_through(self) -> list[Parameter]:
        """Operands that are results as they are; all stages have them."""
        return [value for value in self.body.results[self.op.carried :] if isinstance(value, Parameter)]

    def _made_on(self, place: int) -> int | None:
        """The stage that makes a result of the loop; None where all have it."""
        result = self.body.results[place]
        return self._stage(self.chunks.made_in[result]) if result in self.chunks.made_in else None

    # What is of no micro-batch

    def begin(self, made: Graph) -> None:
        """Write into a graph from now on."""
        self._builder = Builder(made)

    def add(self, node: Node, operands: Sequence[Value]) -> None:
        """Compute a node here."""
        if self.loop is not None and node.inputs[:1] == [self.loop]:
            assert isinstance(node.op, TupleGetItem)
            assert self._made_loop is not None
            made = copied_node(node, [self._made_loop], TupleGetItem(self._places[node.op.index]))
        else:
            made = copied_node(node, [v if isinstance(v, Constant) else self.of[v] for v in operands])
        self._builder.nodes.append(made)
        self.of[node] = made

    def hand_on(self, node: Node, source: int, target: int) -> None:
        """Send a value to another stage, or receive it, where this stage is one of the two."""
        tag = self.messages.tag((node, target))
        if self.stage == source:
            self._send(self._builder, node, self.of[node], target, tag)
        elif self.stage == target:
            self.of[node] = self._receive(self._builder, node, source, tag)

    def _send(self, b: Builder, value: Node, mine: Value, target: int, tag: int) -> None:
        _like(b, value)
        made = b.emit(SendToStage(target, self.messages.distance(self.stage, target), tag), mine)
        made.attrs["reason"] = f"{_said(value)} is read by stage {target}"

    def _receive(self, b: Builder, value: Node, source: int, tag: int) -> Node:
        _like(b, value)
        kind = value.tensor_type
        made = b.emit(ReceiveFromStage(source, self.messages.distance(source, self.stage), tag, kind.shape, kind.dtype))
        made.name = value.name
        made.attrs["reason"] = f"{_said(value)} is computed by stage {source}"
        return made

    # Micro-batches

    def run_micro_batches(self) -> None:
        """The loop with the stage's work on one micro-batch, a call for each of its graphs."""
        assert self.loop is not None
        loop, op = self.loop, self.op
        mine = [self.chunks.graphs[key] for key in sorted(self.chunks.graphs, key=_as_values_flow)
                if self._stage(key) == self.stage]  # fmt: skip
        given = {parameter for chunk in mine for parameter in chunk.given}.union(self._handed_through())
        kept = [place for place in range(len(self.body.results)) if self._made_on(place) in (self.stage, None)]
        self._places = {place: number for number, place in enumerate(kept)}
        carried = {place for place in kept if place < op.carried}
        body = Graph(self.body.name)
        body.returns_tuple = True
        inside: dict[Value, Value] = {}
        operands: list[Value] = []
        scanned = 0
        for place, parameter in enumerate(self.body.parameters):
            if place in carried or (parameter in given and place >= op.carried):
                inside[parameter] = copy = copied_parameter(parameter)
                body.parameters.append(copy)
                operand = loop.inputs[place]
                operands.append(operand if isinstance(operand, Constant) else self.of[operand])
                scanned += place in op.scanned_operands
        b = Builder(body)
        for chunk in mine:
            self._call(b, chunk, inside)
        results = [self.body.results[place] for place in kept]
        body.results = [value if isinstance(value, Constant) else inside[value] for value in results]
        own = Scan(carried=len(carried), scanned=scanned, stacked=len(kept) - len(carried), reverse=op.reverse,
                   turns=op.turns, micro_batches=True)  # fmt: skip
        _like(self._builder, loop)
        self._made_loop = emit_regions(self._builder, own, operands, (body,))

    def _call(self, b: Builder, chunk: ChunkGraph, inside: dict[Value, Value]) -> None:
        """What a graph reads of other stages, its call, and what it makes, which is sent to stages that read it."""
        assert self.loop is not None
        for value in chunk.read:
            if value not in inside:
                source = self._stage(self.chunks.made_in[value])
                inside[value] = self._receive(b, value, source, self.messages.tag((value, self.stage)))
        _like(b, self.loop).phase = "forward" if chunk.key.kind == FORWARD else "backward"
        made = emit_regions(b, Call(), [inside[value] for value in (*chunk.given, *chunk.read)], (chunk.graph,))
        made.attrs |= {WORK: chunk.key.kind, CHUNK: chunk.key.chunk}
        b.scope, b.frames = "", ()  # the call has them
        for index, value in enumerate(chunk.results):
            inside[value] = b.emit(TupleGetItem(index), made, name=value.name)
        for value in chunk.results:
            for target in sorted(self._readers.get(value, set()) - {self.stage}):
                self._send(b, value, inside[value], target, self.messages.tag((value, target)))


def _as_values_flow(key: Key) -> tuple[bool, int, int]:
    is_backward = key.kind != FORWARD
    return is_backward, -key.chunk if is_backward else key.chunk, [*KINDS].index(key.kind)


def _like(b: Builder, value: Node) -> Builder:
    b.like(value).phase = value.phase
    return b


def _said(value: Node) -> str:
    """How a reason names a value."""
    return f"the result of {value.label}" if value.phase != "backward" else f"the gradient that {value.label} computes"


def work_of(node: Node) -> tuple[str, int, int]:
    """(kind, chunk, micro-batch) of a node that works on a micro-batch. Raises MspcError where it does not say so: a
    file that was changed by hand may hold anything."""
    kind, chunk, number = (node.attrs.get(key) for key in (WORK, CHUNK, MICRO_BATCH))
    if kind not in KINDS or not all(isinstance(n, int) and n >= 0 for n in (chunk, number)):
        told = f"{WORK}: {kind}, {CHUNK}: {chunk}, {MICRO_BATCH}: {number}"
        raise MspcError(f"{node.label}: no work on a micro-batch is {told}", frames=node.frames)
    return kind, int(str(chunk)), int(str(number))
