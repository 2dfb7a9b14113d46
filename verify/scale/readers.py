"""Finds who reads a value: across calls and loops, and past nodes that say nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllReduce, ReduceScatter
from mspc.ops.control.regions import Loop, MakeStack
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReductionOp
from mspc.ops.tensor.moving import Transpose
from mspc.verify.scale.kinds import STRUCTURE


class Readers:
    """The readers of all values of a program."""

    def __init__(self, graph: Graph) -> None:
        self._stored: set[Value] = {*graph.parameters}
        self._handed_out: set[Value] = {*graph.results}
        self._of: dict[Value, list[Value]] = {}
        for each in graph.graphs():
            for node in each.nodes:
                if node.regions:
                    self._regions(node)
                else:
                    for value in node.inputs:
                        self._of.setdefault(value, []).append(node)
        for each in graph.graphs():
            for node in each.nodes:
                for region in node.regions:
                    self._results(node, region)
                if isinstance(node.op, Loop):
                    self._carried(node, node.op)
        self._places: dict[Value, int] = {node: place for place, node in enumerate(graph.nodes)}
        self._sources: dict[Value, list[Value]] = {}
        for value, found in self._of.items():
            for reader in found:
                self._sources.setdefault(reader, []).append(value)

    def _regions(self, node: Node) -> None:
        op: Any = node.op
        types = [value.type for value in node.inputs]
        for number, region in enumerate(node.regions):
            for value, places in zip(node.inputs, op.places(number, types), strict=True):
                inside = [region.parameters[place] for place in places if place < len(region.parameters)]
                self._of.setdefault(value, []).extend(inside)

    def _results(self, node: Node, region: Graph) -> None:
        readers = self._of.get(node, [])
        items = [n for n in readers if isinstance(n, Node) and isinstance(n.op, TupleGetItem)]
        for place, value in enumerate(region.results):
            found = [n for n in readers if n not in items or (isinstance(n, Node) and n.op.index == place)]  # type: ignore[attr-defined]  # of TupleGetItem alone
            self._of.setdefault(value, []).extend(found)

    def _carried(self, node: Node, op: Loop) -> None:
        """What a turn hands to the next one."""
        body = node.regions[-1]
        for place, index in enumerate(op.carried_operands):
            inside = op.inside(len(node.regions) - 1, index)
            if inside is not None:
                self._of.setdefault(body.results[place], []).append(body.parameters[inside])

    def of(self, value: Value) -> list[Value]:
        """Nodes that read a value, and parameters of graphs that stand for it."""
        return self._of.get(value, [])

    def next(self, value: Value, known: Collection[Node]) -> Iterator[Node]:
        """The nodes that read a value, and past those that are not known their readers."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            for reader in self.of(waiting.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                if isinstance(reader, Node):
                    yield reader
                if reader not in known:
                    waiting.append(reader)

    def read_by(self, value: Value) -> list[Value]:
        """What a node reads, and what parameters of graphs stand for."""
        return self._sources.get(value, [])

    def known_before(self, value: Value, known: Collection[Node]) -> Iterator[Node]:
        """The nodes of some that a value is made of, past all others."""
        seen: set[Value] = set()
        waiting = [value]
        for each in waiting:
            for source in self.read_by(each):
                if source in seen:
                    continue
                seen.add(source)
                if isinstance(source, Node) and source in known:
                    yield source
                else:
                    waiting.append(source)

    def is_read(self, value: Value) -> bool:
        """Whether anything reads a value, or the program hands it out."""
        return value in self._handed_out or bool(self._of.get(value))

    def behind(self, value: Value) -> set[Value]:
        """All that is computed of a value in one step, also by way of what is overwritten and read behind that."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            maker = waiting.pop()
            found = list(self.of(maker))
            if isinstance(maker, Node):
                place = self._places.get(maker, -1)
                changed = (maker.inputs[i] for i in maker.op.mutates)
                found += (r for operand in changed for r in self.of(operand) if self._places.get(r, place) >= place)
            waiting += (reader for reader in found if reader not in seen)
            seen.update(found)
        return seen

    def stored(self, value: Value) -> Parameter | None:
        """The parameter of the program that a value is, or the first of a stack of such."""
        while value not in self._stored:
            found = self._sources.get(value, [])
            if not found or (isinstance(value, Node) and not isinstance(value.op, MakeStack)):
                return None
            value = found[0]
        assert isinstance(value, Parameter)
        return value

    def added_later(self) -> set[tuple[str, str]]:
        """By which operators other values are read whose results ranks add up: (operator, that of the reader), of those
        that only move or add; and ("", that of the reader) of others that are no products and no sums of their own."""
        found: set[tuple[str, str]] = set()
        for value, readers in self._of.items():
            if isinstance(value, Node) and any(map(adds_up, readers)):
                for each in (value, *value.inputs) if moves_or_adds(value.op) else (value,):
                    if isinstance(each, Node):
                        found |= _read_by(each)
        return found

    def places_of_sums(self) -> set[tuple[str, str, str]]:
        """Between which operators ranks add up: (phase, operator of what is added up, that of a reader of the sum)."""
        found: set[tuple[str, str, str]] = set()
        for value, readers in self._of.items():
            for node in readers:
                if isinstance(value, Node) and isinstance(node, Node) and adds_up(node):
                    places = [place for place, operand in enumerate(node.inputs) if operand is value]
                    for reader in self._readers_of_sums(node, places):
                        found.add((reader.phase, value.op.name, reader.op.name))
        return found

    def _readers_of_sums(self, node: Node, places: Collection[int]) -> Iterator[Node]:
        """The nodes that read some of a node's results."""
        for reader in self.of(node):
            if isinstance(reader, Node) and isinstance(reader.op, TupleGetItem):
                if reader.op.index in places:
                    yield from (each for each in self.of(reader) if isinstance(each, Node))
            elif isinstance(reader, Node):
                yield reader

    def sources(
        self, node: Value, known: Collection[Node], moved: bool = False, linear: bool = False
    ) -> list[Node]:
        """The nodes whose values a node reads, and past those that are not known what these read, but for what ranks
        add up. moved: past sums, too, and else only past nodes that hand tensors on; linear: past these and nodes of
        which a part of a sum makes a part of one."""
        found: dict[Node, None] = {}
        waiting: list[Value] = [node]
        seen: set[Value] = set()
        while waiting:
            reader = waiting.pop()
            for source in self._sources.get(reader, []):
                if source in seen and not adds_up(source):
                    continue
                seen.add(source)
                if isinstance(source, Node):
                    found[source] = None
                if source in known:
                    continue
                if isinstance(source, Node) and (moved or linear) and not _hands_on(source):
                    if moved or not _is_linear(source.op):
                        continue
                if not adds_up(source):
                    waiting.append(source)
                elif moved and isinstance(source, Node) and isinstance(source.op, AllReduce):
                    operand = source.inputs[_index_of(reader, source)]
                    if isinstance(operand, Node):
                        found[operand] = None
                    if operand not in known and operand not in seen:
                        seen.add(operand)
                        waiting.append(operand)
        return list(found)


def moves_or_adds(op: Any) -> bool:
    """Whether an operator gives the elements of its operands, or their sums."""
    return isinstance(op, AddN | Add | Transpose) or (isinstance(op, Op) and op.reshapes)


def _is_linear(op: Any) -> bool:
    return moves_or_adds(op) or isinstance(op, MatMul | BatchMatMul | FusedMatMul)


def _read_by(node: Node) -> set[tuple[str, str]]:
    if moves_or_adds(node.op):
        return {(read.op.name, node.op.name) for read in node.inputs if isinstance(read, Node)}
    makes_sums = isinstance(node.op, MatMul | BatchMatMul | FusedMatMul | ReductionOp | FusedElementwise)
    return set() if makes_sums else {("", node.op.name)}


def _hands_on(node: Node) -> bool:
    op = node.op
    return isinstance(op, STRUCTURE) or bool(node.regions) or (isinstance(op, Collective) and op.communicates)


def _index_of(reader: Value, source: Node) -> int:
    """Which result of a node another one reads."""
    takes = isinstance(reader, Node) and isinstance(reader.op, TupleGetItem) and reader.inputs[0] is source
    return reader.op.index if takes else 0  # type: ignore[union-attr]  # a TupleGetItem


def adds_up(value: Value) -> bool:
    """Whether a value is what ranks have added up."""
    return isinstance(value, Node) and isinstance(value.op, AllReduce | ReduceScatter)
