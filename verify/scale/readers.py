"""Finds who reads a value: across calls and loops, and past nodes that say nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, Worklist
from mspc.ir.iterative import reached
from mspc.ir.types import TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.control.regions import Loop, MakeStack, While
from mspc.ops.control.structural import Depend, TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add, AddN, FloorMod, Less, LessEqual, Mul
from mspc.ops.math.matmul import MatrixProduct
from mspc.ops.math.scans import CumSum
from mspc.ops.op import Op
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import OneHot
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ReductionOp
from mspc.ops.tensor.selection import GatherD, GatherDGrad, TopK
from mspc.ops.tensor.slicing import StridedSlice
from mspc.verify.scale.operator_sizes import Dim
from mspc.verify.scale.rank_kinds import STRUCTURE


class Readers:
    """The readers of all values of a program."""

    def __init__(self, graph: Graph) -> None:
        self._stored: set[Value] = {*graph.parameters}
        self._handed_out: set[Value] = {*graph.results}
        self._of: dict[Value, list[Value]] = {}
        for node in graph.all_nodes():
            if node.regions:
                self._regions(node)
            else:
                for value in node.inputs:
                    self._of.setdefault(value, []).append(node)
        for node in graph.all_nodes():
            for region in node.regions:
                self._results(node, region)
            if isinstance(node.op, Loop):
                self._carried(node, node.op)
        self._places: dict[Value, int] = {}
        for place, node in enumerate(graph.nodes):
            inside = (value for region in node.regions for each in region.graphs() for value in each.values())
            self._places.update(dict.fromkeys((node, *inside), place))
        self._sources: dict[Value, list[Value]] = {}
        for value, found in self._of.items():
            for reader in found:
                self._sources.setdefault(reader, []).append(value)

    def _regions(self, node: Node) -> None:
        op: Any = node.op
        types = [value.type for value in node.inputs]
        decides = dict.fromkeys(node.inputs)
        for number, region in enumerate(node.regions):
            for value, places in zip(node.inputs, op.places(number, types), strict=True):
                inside = [region.parameters[place] for place in places if place < len(region.parameters)]
                self._of.setdefault(value, []).extend(inside)
                if inside:
                    decides.pop(value, None)
        for value in decides:  # no region reads it: it says which one runs, or how often
            self._of.setdefault(value, []).append(node)

    def _results(self, node: Node, region: Graph) -> None:
        if isinstance(node.op, While) and region is node.regions[0]:
            self._of.setdefault(region.results[0], []).append(node)
            return
        readers = self._of.get(node, [])
        items = [n for n in readers if isinstance(n, Node) and isinstance(n.op, TupleGetItem)]
        for place, value in enumerate(region.results):
            found = [n for n in readers if n not in items or (isinstance(n, Node) and n.op.index == place)]  # type: ignore[attr-defined]  # of TupleGetItem alone
            self._of.setdefault(value, []).extend(found)

    def _carried(self, node: Node, op: Loop) -> None:
        """Connect the values that one iteration hands to the next, and to the condition before it."""
        results = node.regions[-1].results
        for place, index in enumerate(op.carried_operands):
            for number, region in enumerate(node.regions):
                inside = op.inside(number, index)
                if inside is not None:
                    self._of.setdefault(results[place], []).append(region.parameters[inside])

    def of(self, value: Value) -> list[Value]:
        """Return the nodes that read a value, and the parameters of graphs that are bound to it."""
        return self._of.get(value, [])

    def next(self, value: Value, known: Collection[Node]) -> Iterator[Node]:
        """Yield the nodes that read a value, and past those that are not known their readers."""
        found = reached(self.of(value), lambda reader: () if reader in known else self.of(reader))
        return (reader for reader in found if isinstance(reader, Node))

    def read_by(self, value: Value) -> list[Value]:
        """Return the operands of a node, and the values that parameters of graphs stand for."""
        return self._sources.get(value, [])

    def known_before(self, value: Value, known: Collection[Node]) -> Iterator[Node]:
        """Yield the known nodes that a value is computed from, without those before other known nodes."""
        found = reached(self.read_by(value), lambda source: () if source in known else self.read_by(source))
        return (source for source in found if isinstance(source, Node) and source in known)

    def before(self, value: Value, known: Collection[Node] = ()) -> dict[Value, None]:
        """Return all values that a value is computed from, up to the known nodes."""

        def unknown(of: Value) -> list[Value]:
            return [source for source in self.read_by(of) if source not in known]

        return dict.fromkeys(reached(unknown(value), unknown))

    def unknown_before(self, value: Value, known: Collection[Node]) -> list[Node]:
        """Return the nodes between the known ones and a value that is computed from them, in run order."""
        nodes = [node for node in self.before(value, known) if isinstance(node, Node) and node is not value]
        return sorted(nodes, key=lambda node: self._places.get(node, -1))

    def is_read(self, value: Value) -> bool:
        """Return whether anything reads a value, or the program hands it out."""
        return value in self._handed_out or bool(self._of.get(value))

    def behind(self, value: Value) -> set[Value]:
        """Return all values computed from a value in one step, also through memory that is overwritten and read
        afterwards."""

        def made_of(maker: Value) -> list[Value]:
            found = list(self.of(maker))
            if isinstance(maker, Node):
                place = self._places.get(maker, -1)
                changed = (maker.inputs[i] for i in maker.op.mutates)
                found += (r for operand in changed for r in self.of(operand) if self._places.get(r, place) >= place)
            return found

        return {*reached(made_of(value), made_of)}

    def stored(self, value: Value) -> Parameter | None:
        """Return the parameter of the program that a value is, or the first of a stack of such."""
        while value not in self._stored:
            found = self._sources.get(value, [])
            if not found or (isinstance(value, Node) and not isinstance(value.op, MakeStack)):
                return None
            value = found[0]
        assert isinstance(value, Parameter)
        return value

    def added_later(self) -> set[tuple[str, str]]:
        """Return the operators by which other values are read whose results ranks add up: (operator, that of the
        reader), of those that only move or add; and ("", that of the reader) of others that are no products and no sums
        of their own."""
        found: set[tuple[str, str]] = set()
        for value, readers in self._of.items():
            if isinstance(value, Node) and any(map(adds_up, readers)):
                for each in (value, *value.inputs) if moves_or_adds(value.op) else (value,):
                    if isinstance(each, Node):
                        found |= _read_by(each)
        return found

    def places_of_sums(self) -> set[tuple[str, str, str]]:
        """Return the operators between which ranks add up: (phase, operator of the terms, of a reader of the sum)."""
        found: set[tuple[str, str, str]] = set()
        for value, readers in self._of.items():
            for node in readers:
                if isinstance(value, Node) and isinstance(node, Node) and adds_up(node):
                    places = [place for place, operand in enumerate(node.inputs) if operand is value]
                    for reader in self._readers_of_sums(node, places):
                        found.add((reader.phase, value.op.name, reader.op.name))
        return found

    def _readers_of_sums(self, node: Node, places: Collection[int]) -> Iterator[Node]:
        for reader in self.of(node):
            if isinstance(reader, Node) and isinstance(reader.op, TupleGetItem):
                if reader.op.index in places:
                    yield from (each for each in self.of(reader) if isinstance(each, Node))
            elif isinstance(reader, Node):
                yield reader

    def sources(self, node: Value, known: Collection[Node], moved: bool = False, linear: bool = False) -> list[Node]:
        """Return the nodes whose values a node reads, and past unknown ones their operands, except sums over ranks.
        moved: past sums, too, and else only past nodes that hand tensors on; linear: past these and nodes linear in
        parts of a sum."""
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
                    if moved or not (moves_or_adds(source.op) or isinstance(source.op, PRODUCTS)):
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


PRODUCTS = (FusedMatMul, MatrixProduct)


def moves_or_adds(op: Any) -> bool:
    """Return whether an operator gives the elements of its operands, or their sums."""
    return isinstance(op, AddN | Add | Transpose) or (isinstance(op, Op) and op.reshapes)


def _read_by(node: Node) -> set[tuple[str, str]]:
    if moves_or_adds(node.op):
        return {(read.op.name, node.op.name) for read in node.inputs if isinstance(read, Node)}
    makes_sums = isinstance(node.op, (*PRODUCTS, ReductionOp, FusedElementwise))
    return set() if makes_sums else {("", node.op.name)}


def _hands_on(node: Node) -> bool:
    op = node.op
    return isinstance(op, STRUCTURE) or bool(node.regions) or (isinstance(op, Collective) and op.communicates)


def _index_of(reader: Value, source: Node) -> int:
    """Return the index of the result of a node that another one reads."""
    takes = isinstance(reader, Node) and isinstance(reader.op, TupleGetItem) and reader.inputs[0] is source
    return reader.op.index if takes else 0  # type: ignore[union-attr]  # a TupleGetItem


def adds_up(value: Value) -> bool:
    """Return whether a value is a sum over ranks."""
    return isinstance(value, Node) and isinstance(value.op, AllReduce | ReduceScatter)


# Follows which of some were chosen: numbers that name places along the dimension of which the best were taken.
#
# That dimension may become smaller only together with all that the numbers name. A reader that is not known may name
# anything by them, so that the dimension keeps its size, and so does all else that the numbers name.


HANDED_ON = (AllGather, AlltoAll, BroadcastTo, Cast, Concat, Depend, Split, StridedSlice, Transpose)
SORTS = ("Sort", "SortExt", "ArgSort")
"""Operators of which the last result is an order of rows, and the first the numbers themselves."""


def named_by(node: Node, readers: Readers) -> tuple[list[tuple[Node, Dim]], bool]:
    """(The dimensions that a node names places along, a TopK by its second result, each of a node; whether these are
    all)."""
    found: list[tuple[Node, Dim]] = []
    values = Worklist([each for each in readers.of(node) if _takes(each, 1)] if isinstance(node.op, TopK) else [node])
    are_all = all(isinstance(each, Node) and isinstance(each.op, TupleGetItem) for each in readers.of(node))
    for value in values:
        for reader in readers.of(value):
            if not isinstance(reader, Node):
                are_all = False
                continue
            op: Any = reader.op
            if isinstance(op, OneHot) and value is reader.inputs[0]:
                found.append((reader, Dim(True, 0, op.axis % len(reader.shape))))
            elif isinstance(op, GatherD) and value is reader.inputs[-1]:
                found.append((reader, Dim(False, 0, op.dim % len(reader.inputs[0].shape))))
            elif isinstance(op, GatherDGrad) and value in reader.inputs[:-1]:
                found.append((reader, Dim(True, 0, op.dim % len(reader.shape))))
            elif op.name in SORTS:
                values.add(each for each in readers.of(reader) if _takes(each, 0))
            elif all(isinstance(own, HANDED_ON) or own.reshapes for own in lines_of(op)):
                values.add([reader])
            else:
                are_all = False
    return found, are_all


def turns_places(node: Node) -> bool:
    """Return whether a node makes places that turn through whole numbers."""
    return isinstance(node.op, FloorMod) and is_whole(node)


def is_range(value: Value) -> bool:
    """Return whether a value is 0, 1, 2, ... row by row."""
    while isinstance(value, Node) and (isinstance(value.op, Cast) or (isinstance(value.op, Op) and value.op.reshapes)):
        value = value.inputs[0]
    op = value.op if isinstance(value, Node) else None
    return isinstance(op, Range) and (op.start, op.delta, op.first) == (0, 1, 0)


def lines_of(op: Any) -> list[Any]:
    """Return the operators of the lines of a fused operator; any other alone."""
    return [step.op for step in steps_of(op)] if isinstance(op, FusedElementwise) else [op]


def _takes(value: Value, index: int) -> bool:
    return isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.op.index == index


# Places in tables that are computed with numbers of a script stay the same if tables become smaller.


HANDS_ON = (Elementwise, FusedElementwise, BroadcastTo, Concat, Transpose, StridedSlice, AllGather)
"""Operators that map places to places."""


def has_multiples(places: Value) -> bool:
    """Return whether places are made of multiples by a number of the script: as the first place of an expert is its
    number times its room. Results of a sort or a top-k have none."""

    def operands(value: Value) -> Sequence[Value]:
        if isinstance(value, Node) and (isinstance(value.op, HANDS_ON) or value.op.reshapes):
            return value.inputs
        return ()

    mapped = (value for value in reached([places], operands) if operands(value))
    return any(_is_large(factor) for value in mapped for factor in _factors(value))


def _factors(node: Any) -> Iterator[Value]:
    if isinstance(node.op, Mul):
        yield from node.inputs
    if isinstance(node.op, FusedElementwise):
        for step in steps_of(node.op):
            if isinstance(step.op, Mul):
                yield from (node.inputs[index] for kind, index in step.operands if kind == "x")


def _is_large(value: Value) -> bool:
    return isinstance(value, Constant) and value.value.size == 1 and bool(np.abs(value.value).max() > 1)


def counted_for(node: Node) -> list[Value]:
    """Return the whole numbers that are compared if places are compared with running totals, as `repeat_interleave`
    and a search in sorted ends do, and all whole numbers that the totals are computed from; else an empty list.

    The number of places is the last total, which no rule of an operator says.
    """
    if not any(isinstance(op, Less | LessEqual) for op in lines_of(node.op)):
        return []

    def operands(value: Value) -> list[Value]:
        return [*filter(is_whole, value.inputs)] if isinstance(value, Node) else []

    found = [*reached(operands(node), operands)]
    are_totals = any(isinstance(value, Node) and isinstance(value.op, CumSum) for value in found)
    return found if are_totals else []


def is_whole(value: Value) -> bool:
    """Return whether a value is a tensor of whole numbers."""
    return isinstance(value.type, TensorType) and not value.type.dtype.is_float and value.type.dtype.name != "Bool"
