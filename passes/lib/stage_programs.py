"""The program of one stage: the actions of its schedule as nodes, with messages between stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import (
    MICRO_BATCH,
    STAGE,
    WORK,
    Builder,
    Constant,
    Graph,
    Node,
    OpLike,
    Parameter,
    Value,
    copied_node,
    copied_parameter,
)
from mspc.ir.iterative import iterative, reached
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.regions import Call, Scan, body_of, emit_regions
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems
from mspc.ops.tensor.moving import Stack
from mspc.ops.tensor.slicing import part_of
from mspc.passes.lib.schedules import FORWARD, KINDS
from mspc.passes.lib.stage_chunks import ChunkGraph, Key, chunk_graphs
from mspc.passes.lib.stage_placement import StagePlacement, chosen_schedule, has_weights_apart, kinds_of

# Calls of a stage's program hand each other tuples: of parameters that all calls of a graph read, of values that a
# graph stores for others on each micro-batch, and of totals that it continues on the next one. A tuple is one operand,
# so that the program grows by micro-batches alone, not by micro-batches times tensors. A single tensor stays an
# operand, as do constants, parameters that a graph overwrites, and stacks.


FEWEST = 2
"""Tensors that are worth a tuple."""


@dataclass
class CallTuples:
    """The operands of one call in the loop over micro-batches, in this order.

    single: those that come by themselves. whole: parameters that are the same on all micro-batches. totals: those whose
    new values the call makes. read: values that another call makes, with that call; the tuples are those that it has
    `kept`. apart: results that are taken out by themselves on every micro-batch.
    """

    single: list[Value] = field(default_factory=list[Value])
    whole: list[Parameter] = field(default_factory=list[Parameter])
    totals: list[Parameter] = field(default_factory=list[Parameter])
    read: list[tuple[Node, list[Node]]] = field(default_factory=list["tuple[Node, list[Node]]"])
    new_totals: list[Node] = field(default_factory=list[Node])
    kept: list[list[Node]] = field(default_factory=list["list[Node]"])
    apart: list[Node] = field(default_factory=list[Node])


def call_tuples(calls: Sequence[Node], op: Scan, body: Graph, operands: Sequence[Value]) -> dict[Node, CallTuples]:
    """For every call, whose graph's parameters are put into the order of its operands. calls: in the loop `op`, of
    which `body` is the graph. operands: of its node. If several of them run one graph its parameters stay as they
    are."""
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
    """Return the calls that read a value."""
    found: dict[Value, list[Node]] = {}
    for call in calls:
        for value, count in Counter(call.inputs).items():
            if count == 1:
                found.setdefault(value, []).append(call)
    return found


def _put_in_order(call: Node, own: CallTuples) -> None:
    together: list[Value] = [*own.whole, *own.totals, *(value for _, values in own.read for value in values)]
    among = set(together)
    own.single = [value for value in call.inputs if value not in among]
    (graph,) = call.regions
    inside: dict[Value, Parameter] = dict(zip(call.inputs, graph.parameters, strict=True))
    singles = [p for value, p in zip(call.inputs, graph.parameters, strict=True) if value not in among]
    graph.parameters = singles + [inside[value] for value in together]


class OrderedWork:
    """Writes the nodes that replace a loop. results: the new values of the loop's results."""

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
        """The values that replace those of the body, by micro-batch."""
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
        """Return the nodes of all work, by the schedule that the header of the graph asks for."""
        schedule = chosen_schedule(self.graph.attrs, self.op.turns)
        weights_apart = has_weights_apart(self.graph.attrs)
        for action in schedule.entries[int(self.graph.attrs[STAGE])]:
            for kind in kinds_of(action.kind, weights_apart):
                call = self._calls.get((kind, action.chunk))
                if call is not None:
                    self._run(call, action.micro_batch)
        for place, result in self._following[None].carried:
            self._totals[place] = self._value(result, self.op.turns - 1)
        return self._nodes

    def result(self, node: Node) -> list[Node]:
        """Return the value that replaces a result of the loop: a total, or the parts of a stacked one joined."""
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
        """Take the results of a call out of its tuple, those that calls pass on together as tuples."""
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
            op = value.op
            if isinstance(op, SendToStage | ReceiveFromStage):
                op = replace(op, sr_tag=op.sr_tag + number, micro_batch=number)
            self._values[value, number] = self._copied(value, inputs, op)
        return self._values[value, number]

    def _part(self, parameter: Parameter, number: int) -> Node:
        """Return the part of a scanned operand for a micro-batch."""
        operand = self.loop.inputs[self._places[parameter]]
        part = replace(part_of(operand.shape, 0, number, number + 1), shrink_axis_mask=1)
        first = self._first.get(parameter)
        if first is not None:
            return self._copied(first, [operand], part)
        found = self._first[parameter] = self._like(self.loop).emit(part, operand, name=parameter.name)
        return found

    def _copied(self, node: Node, operands: Sequence[Value], op: OpLike | None = None) -> Node:
        made = copied_node(node, operands, op)
        self._nodes.append(made)
        return made


@dataclass
class _Following:
    """The nodes that follow a call. sent: messages. carried: results that the loop carries, with their numbers;
    together: those that it carries in a tuple."""

    sent: list[Node] = field(default_factory=list[Node])
    carried: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])
    together: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])


def _following(
    body: Graph, calls: Sequence[Node], tuples: Mapping[Node, CallTuples], op: Scan
) -> dict[Node | None, _Following]:
    """Return the nodes that follow each call, and under None those that follow none."""
    found: dict[Node | None, _Following] = {call: _Following() for call in (None, *calls)}
    # The last call that each value is computed from.
    behind: dict[Value, Node] = {}
    place = {node: number for number, node in enumerate(body.nodes)}
    for node in body.nodes:
        made = [behind[value] for value in node.inputs if value in behind]
        if WORK in node.attrs:
            behind[node] = node
        elif made:
            behind[node] = max(made, key=lambda call: place[call])
    together = {value for own in tuples.values() for value in own.new_totals}
    for node in body.nodes:
        if isinstance(node.op, SendToStage):
            found[behind.get(node, calls[0])].sent.append(node)
    for place, result in enumerate(body.results[: op.carried]):
        if result is not body.parameters[place]:
            own = found[behind.get(result)]
            (own.together if result in together else own.carried).append((place, result))
    return found


# A result of the network, as the loss, is made by the last forward of one stage, and all ranks have it. It is placed
# after the loop over micro-batches: sent there, the others, which look at losses before their updates, would wait for
# gradients that the stage computes meanwhile. Results that need the last work, as a norm of gradients, stay, and so do
# large ones: their receiver comes to them after its own work, and a communicator may let the sender wait for it.


SMALL = 1 << 11
"""Bytes of a message that leaves before its receiver has come to it, by any communicator."""


def sent_when_known(graph: Graph) -> list[Node]:
    """Return the nodes of a stage in another order: results and their makers right after the work that they come
    from."""
    nodes = graph.nodes
    last = max((number for number, node in enumerate(nodes) if WORK in node.attrs), default=-1)
    places = {node: number for number, node in enumerate(nodes)}
    updates = updated_parameters(graph)
    written = {parameter for parameters in updates.values() for parameter in parameters}
    fixed = {
        node for number, node in enumerate(nodes)
        if isinstance(node.op, ReceiveFromStage) or number in updates or not written.isdisjoint(node.inputs)
    }  # fmt: skip
    moved: dict[Node, int] = {}
    for node in nodes[last + 1 :]:
        if not isinstance(node.op, SendToStage) or node.inputs[0].type.nbytes > SMALL:
            continue
        made = _made_behind(node, places, last)
        behind = max((places[v] for each in made for v in _operands(each) if places[v] <= last), default=-1)
        if not fixed.isdisjoint(made) or behind < 0:
            continue
        behind = _before_next(nodes, behind)
        if behind < last:
            for each in made:  # nodes that several messages need go to the first of them
                moved[each] = min(behind, moved.get(each, behind))
    return _placed(nodes, moved)


def _operands(node: Node) -> list[Node]:
    return [value for value in node.inputs if isinstance(value, Node)]


def _made_behind(node: Node, places: dict[Node, int], last: int) -> set[Node]:
    """Return a node and everything after place `last` that it needs."""
    return {*reached([node], lambda each: (value for value in _operands(each) if places[value] > last))}


def _before_next(nodes: Sequence[Node], place: int) -> int:
    """Return the last place after the messages that a call sends: others wait for these first."""
    while place + 1 < len(nodes):
        node = nodes[place + 1]
        if not (node.op.is_view or isinstance(node.op, SendToStage) or node.inputs[:1] == [nodes[place]]):
            break
        place += 1
    return place


def _placed(nodes: Sequence[Node], moved: dict[Node, int]) -> list[Node]:
    following: dict[int, list[Node]] = {}
    for node in nodes:
        if node in moved:
            following.setdefault(moved[node], []).append(node)
    found: list[Node] = []
    for place, node in enumerate(nodes):
        if node not in moved:
            found.append(node)
        found += following.get(place, ())
    return found


CHUNK = "chunk"
"""Attribute of the calls of a stage's program beside WORK: of which chunk the work is."""


@dataclass
class Messages:
    """Numbers the messages between stages, alike on all of them. ranks: of one stage."""

    placement: StagePlacement
    ranks: int
    _numbers: dict[object, int] = field(default_factory=dict[object, int])
    _next: int = 0

    def tag(self, key: object, count: int = 1) -> int:
        """Return the first tag of so many messages in a row; all stages ask in the same order."""
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += count
        return self._numbers[key]

    def distance(self, source: int, target: int) -> int:
        """By how many ranks the stages are apart."""
        return (target - source) * self.ranks


class StageProgram:
    """Writes the program of one stage. of: the values of the program by those of the graph of all stages."""

    def __init__(self, graph: Graph, loop: Node | None, stage: int, messages: Messages) -> None:
        self.loop, self.stage, self.messages = loop, stage, messages
        self.of: dict[Value, Value] = {}
        self._builder = Builder(Graph(""))
        self._made_loop: Node | None = None
        self._places: dict[int, int] = {}
        """Results of this stage's loop among those of the loop."""
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
        """Return the stages that read each operand of the loop."""
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
        return [value for value in self.body.results[self.op.carried :] if isinstance(value, Parameter)]

    def _made_on(self, place: int) -> int | None:
        """Return the stage that makes a result of the loop, or None if all have it."""
        result = self.body.results[place]
        return self._stage(self.chunks.made_in[result]) if result in self.chunks.made_in else None

    # Values of no micro-batch

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
        """Send a value to another stage, or receive it, if this stage is one of the two."""
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
        """Emit the loop with the stage's work on one micro-batch, a call for each of its graphs."""
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
        """Emit the receives of a call, the call, and the sends of its results."""
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
    return f"the result of {value.label}" if value.phase != "backward" else f"the gradient that {value.label} computes"


def work_of(node: Node) -> tuple[str, int, int]:
    """Return (kind, chunk, micro-batch) of a node that works on a micro-batch. Raise MspcError if it does not say so: a
    file that was changed by hand may hold anything."""
    kind, chunk, number = (node.attrs.get(key) for key in (WORK, CHUNK, MICRO_BATCH))
    if kind not in KINDS or not all(isinstance(n, int) and n >= 0 for n in (chunk, number)):
        told = f"{WORK}: {kind}, {CHUNK}: {chunk}, {MICRO_BATCH}: {number}"
        raise MspcError(f"{node.label}: no work on a micro-batch is {told}", frames=node.frames)
    return kind, int(str(chunk)), int(str(number))
