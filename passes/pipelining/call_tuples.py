"""What the calls of a stage's program hand to each other as tuples: parameters that all calls of a graph read, values
that a graph keeps for others on each micro-batch, and totals that it goes on with on the next one.

A tuple is one operand, so that the program grows by micro-batches alone, not by micro-batches times tensors. One tensor
alone stays an operand, as do constants, which graphs take in, parameters that a graph overwrites, and stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from mspc.ir.builder import Builder
from mspc.ir.copies import copied_node
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.control.loops import Scan
from mspc.ops.control.regions import overwritten_parameters
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems
from mspc.passes.pipelining.chunk_graphs import ChunkGraph, Chunks, Key

FEWEST = 2
"""Tensors that are worth a tuple."""


@dataclass
class CallTuples:
    """Of one chunk's graph.

    whole: parameters that all calls read. totals: those of totals, whose new values the graph makes. read: values of
    other graphs of the stage, with these. Each of them is one operand, behind those that come by themselves, which are
    `single_given` and `single_read`. new_totals: results, those that `totals` become. kept: results that other graphs
    read so. apart: those that are taken out by themselves on every micro-batch.
    """

    whole: list[Parameter] = field(default_factory=list[Parameter])
    totals: list[Parameter] = field(default_factory=list[Parameter])
    read: list[tuple[Key, list[Node]]] = field(default_factory=list["tuple[Key, list[Node]]"])
    single_given: list[Parameter] = field(default_factory=list[Parameter])
    single_read: list[Node] = field(default_factory=list[Node])
    new_totals: list[Value] = field(default_factory=list[Value])
    kept: list[list[Node]] = field(default_factory=list["list[Node]"])
    apart: set[Value] = field(default_factory=set[Value])


def call_tuples(
    chunks: Chunks, stage_of: Mapping[Key, int], op: Scan, body: Graph, operands: Sequence[Value]
) -> dict[Key, CallTuples]:
    """For every graph, whose parameters are put into the order of its operands.

    Args:
        stage_of: the stages of graphs. op: the loop, of which `body` is the graph. operands: of its node.
    """
    graphs, made_in = chunks.graphs, chunks.made_in
    places = {parameter: i for i, parameter in enumerate(body.parameters)}
    written = _overwritten(graphs.values())
    found = {key: CallTuples() for key in graphs}
    readers: dict[Node, list[Key]] = {}
    for key, chunk in graphs.items():
        for value in chunk.read:
            if stage_of[made_in[value]] == stage_of[key] and not isinstance(value.type, StackType):
                readers.setdefault(value, []).append(key)
    for key, chunk in graphs.items():
        alike: dict[tuple[Key, ...], list[Node]] = {}
        for value in chunk.results:
            if value in readers:
                alike.setdefault(tuple(readers[value]), []).append(value)
        for keys, values in alike.items():
            if len(values) >= FEWEST:
                found[key].kept.append(values)
                for reader in keys:
                    found[reader].read.append((key, values))
    for key, chunk in graphs.items():
        own = found[key]
        made = set(chunk.results)
        for parameter in chunk.given:
            place = places[parameter]
            if isinstance(parameter.type, StackType) or parameter in written:
                continue
            if place < op.carried:
                if body.results[place] in made:
                    own.totals.append(parameter)
            elif place not in op.scanned_operands and not isinstance(operands[place], Constant):
                own.whole.append(parameter)
        own.whole = own.whole if len(own.whole) >= FEWEST else []
        own.totals = own.totals if len(own.totals) >= FEWEST else []
        _put_in_order(chunk, own)
        totals = {places[parameter] for parameter in own.totals}
        own.new_totals = [body.results[places[parameter]] for parameter in own.totals]
        own.apart.update(value for place, value in enumerate(body.results) if place not in totals)
    for own in found.values():
        for value in own.single_read:
            found[made_in[value]].apart.add(value)
    return found


def _overwritten(chunks: Collection[ChunkGraph]) -> set[Parameter]:
    """The parameters of the body that a graph overwrites."""
    return {chunk.given[number] for chunk in chunks for number in overwritten_parameters(chunk.graph)}


def _put_in_order(chunk: ChunkGraph, own: CallTuples) -> None:
    """Put a graph's parameters into the order of its operands."""
    together: set[Value] = {*own.whole, *own.totals, *(value for _, values in own.read for value in values)}
    own.single_given = [parameter for parameter in chunk.given if parameter not in together]
    own.single_read = [value for value in chunk.read if value not in together]
    values: list[Parameter | Node] = [*chunk.given, *chunk.read]
    inside = dict(zip(values, chunk.graph.parameters, strict=True))
    order: list[Parameter | Node] = [*own.single_given, *own.single_read, *own.whole, *own.totals]
    order += [value for _, values in own.read for value in values]
    chunk.graph.parameters = [inside[value] for value in order]


class Tuples:
    """The tuples in the program of a stage, as it is written. of: what is in them, by graphs. turns: how often each
    graph is called."""

    def __init__(self, of: Mapping[Key, CallTuples], turns: int) -> None:
        self.of, self.turns = of, turns
        self._runs: dict[Key, int] = {}
        self._whole: dict[Key, Value] = {}
        self._totals: dict[Key, Value] = {}
        """What the next call of a graph goes on with."""
        self._kept: dict[tuple[Key, Node, int], Value] = {}
        """Of a micro-batch, by the first value in it."""
        self._items: dict[tuple[Key, TupleGetItem | TupleGetItems], Node] = {}
        """What takes results out of the first call of a graph."""

    def operands(self, b: Builder, key: Key, number: int, given: Callable[[Parameter], Value]) -> list[Value]:
        """The tuples that a call is given on a micro-batch. given: what stands for parameters of the body."""
        own = self.of[key]
        found: list[Value] = []
        for parameters, known in ((own.whole, self._whole), (own.totals, self._totals)):
            if parameters:
                if key not in known:
                    known[key] = b.emit(MakeTuple(), *map(given, parameters))
                found.append(known[key])
        return found + [self._kept[maker, values[0], number] for maker, values in own.read]

    def take_apart(self, b: Builder, chunk: ChunkGraph, number: int, made: Node) -> dict[Value, Node]:
        """Take the results of a call out of its tuple: those that calls go on with together as tuples; the others are
        returned."""
        key, own = chunk.key, self.of[chunk.key]
        index: dict[Value, int] = {value: place for place, value in enumerate(chunk.results)}
        self._runs[key] = runs = self._runs.get(key, 0) + 1
        for values in own.kept:
            items = TupleGetItems(tuple(index[value] for value in values))
            self._kept[key, values[0], number] = self._taken(b, key, items, made)
        apart = own.apart
        if runs == self.turns:
            apart = apart | set(own.new_totals)
        elif own.new_totals:
            items = TupleGetItems(tuple(index[value] for value in own.new_totals))
            self._totals[key] = self._taken(b, key, items, made)
        return {
            value: self._taken(b, key, TupleGetItem(place), made, value.name)
            for value, place in index.items() if value in apart
        }  # fmt: skip

    def _taken(
        self, b: Builder, key: Key, op: TupleGetItem | TupleGetItems, made: Node, name: str = ""
    ) -> Node:  # fmt: skip
        """What a call of a graph hands on; of later calls a copy of the first one's, of the same type."""
        first = self._items.get((key, op))
        if first is None:
            found = self._items[key, op] = b.emit(op, made, name=name)
            return found
        found = copied_node(first, [made])
        b.nodes.append(found)
        return found
