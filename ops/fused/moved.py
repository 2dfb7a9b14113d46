"""Lines that move elements (slices, joins, transposes and their like) as reads of operands at other places.

An element of `Concat(t0, x1)` is one of t0 or of x1 at another place, and one of t0 is computed from operands at that
place in turn. So lines ahead of one that moves elements become lines on operands as they are seen from there, and a
join becomes a selection by the place alone: what is left works element by element on operands of the result's shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NoReturn

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.fused.body import BodyLine, form_of, fusible, moves_elements
from mspc.ops.index_map import Coordinate, IndexMap, along, flattened, reshaped
from mspc.ops.math.arithmetic import Select
from mspc.ops.math.elementwise import Identity

Shape = tuple[int, ...]
Source = tuple[str, int]
Where = tuple[tuple[Coordinate, int, int], ...]
COPY = "{0}"
"""The expression of an operator whose elements are its operand's."""
NUMBERED = ("{i}", "{s}")
"""What an expression reads that is another at another place."""
SECTOR = 32
"""Bytes that memory gives at least."""
CACHED = 1 << 16
"""Bytes of an operand that stays in a cache, whatever the order in which it is read."""
NOWHERE = ((Coordinate(), 1, 1),)
"""Conditions that hold at no place."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What lines of shape `shape` read behind their operands: an element for every place along dimensions `dims`, which
    have the same elements in the same order.

    operand: the operand that it is of, whose element it is at place `at`, counted in elements; -1: it says whether the
    conditions hold, as a number of `dtype`. where: for every (place, begin, end) the place is at `begin` or behind it,
    and before `end`; elsewhere the operand has no such element, and 0 is read.
    """

    operand: int
    dtype: DType
    shape: Shape
    dims: Shape
    at: Coordinate = Coordinate()
    where: Where = ()

    @property
    def type(self) -> TensorType:
        """The type of it as an operand."""
        return TensorType(self.dtype, self.shape)

    @property
    def places(self) -> tuple[Coordinate, ...]:
        """All places that it speaks of."""
        return (self.at, *(place for place, _, _ in self.where))

    def cuts(self) -> set[int]:
        """Behind how many elements dimensions begin that are not passed like one with those behind them."""
        found = set[int]()
        held = [d for d, n in enumerate(self.dims) if n != 1]
        steps = [dict(place.terms) for place in self.places]
        for outer, inner in itertools.pairwise(held):
            if any(of.get(outer, 0) != of.get(inner, 0) * self.dims[inner] for of in steps):
                found.add(math.prod(self.dims[inner:]))
        return found

    def steps(self, place: Coordinate, dims: Shape) -> Shape:
        """The steps of one of its places along the dimensions of a space that has its cuts."""
        own = dict(place.terms)
        found: list[int] = []
        for d in range(len(dims)):
            behind, own_behind = math.prod(dims[d + 1 :]), 1
            step = 0
            for e in reversed(range(len(self.dims))):
                if own_behind <= behind < own_behind * self.dims[e]:
                    step = own.get(e, 0) * behind // own_behind  # without a cut between them, they are one
                own_behind *= self.dims[e]
            found.append(step)
        return tuple(found)

    def loaded(self, type: TensorType) -> tuple[float, float]:
        """(bytes of the elements that are read of an operand of this type, how many times as many memory gives)."""
        steps, itemsize = dict(self.at.terms), type.dtype.itemsize
        held = {d: n for d, n in enumerate(self.dims) if n != 1}
        for place, begin, end in self.where:
            if len(place.terms) == 1 and abs(place.terms[0][1]) == 1:
                d = place.terms[0][0]
                held[d] = min(held[d], end - begin)
        nbytes = math.prod(n for d, n in held.items() if d in steps) * itemsize
        if type.nbytes <= CACHED or not held or max(held) not in steps:
            return nbytes, 1.0
        run = 1
        for d in reversed(held):
            if abs(steps.get(d, 0)) != run:
                break
            run *= held[d]
        step = abs(steps[max(held)])
        return nbytes, max(1.0, SECTOR / (run * itemsize)) if step == 1 else min(step, max(1.0, SECTOR / itemsize))


def resolved(
    steps: Sequence[BodyLine], returns: Sequence[int], given: Sequence[TensorType], found: Sequence[TensorType]
) -> tuple[list[BodyLine], list[int], list[Moved]]:
    """(lines, returns, what is read behind the operands) without lines that move elements.

    Raises:
        MspcError: a line ahead of one that moves elements is no computation of single elements, or its places cannot be
            said as sums of steps.
    """
    resolver = _Resolver(steps, given, found)
    place: dict[int, Source] = {}
    for number in _read_in_place(steps, returns):
        step = steps[number]
        if moves_elements(step.op):
            place[number] = resolver.moved(number)
            continue
        operands = [(kind, index) if kind == "x" else place[index] for kind, index in step.operands]
        place[number] = resolver.line(BodyLine(step.op, tuple(operands)))
    ends: list[int] = []
    for number in returns:
        kind, index = place[number]
        ends.append(index if kind == "t" else resolver.line(BodyLine(Identity(), ((kind, index),)))[1])
    return resolver.lines, ends, list(resolver.reads)


def _read_in_place(steps: Sequence[BodyLine], returns: Sequence[int]) -> list[int]:
    """The lines of which every element is needed at its own place."""
    found = set(returns)
    for number in reversed(range(len(steps))):
        if number in found and not moves_elements(steps[number].op):
            found.update(index for kind, index in steps[number].operands if kind == "t")
    return sorted(found)


class _Resolver:
    """The lines as they are made, and what they read behind the operands."""

    def __init__(
        self, steps: Sequence[BodyLine], given: Sequence[TensorType], found: Sequence[TensorType]
    ) -> None:
        self.steps, self.given, self.found = steps, given, found
        self.lines: list[BodyLine] = []
        self.reads: dict[Moved, Source] = {}
        self._lines: dict[BodyLine, Source] = {}

    def line(self, step: BodyLine) -> Source:
        """The place of a line's result, with equal lines once."""
        if step not in self._lines:
            self.lines.append(step)
            self._lines[step] = ("t", len(self.lines) - 1)
        return self._lines[step]

    def moved(self, number: int) -> Source:
        """What a line that moves elements gives, each at its own place."""
        view = _View(self, self.found[number].shape, self.map_of(number).dims)
        return view.of(number, [along(d) for d in range(len(view.dims))], ())

    def read(self, moved: Moved) -> Source:
        """The operand behind the others that stands for a read."""
        return self.reads.setdefault(moved, ("x", len(self.given) + len(self.reads)))

    def map_of(self, number: int) -> IndexMap:
        """The places of a line that moves elements."""
        found = self.steps[number].op.index_map(*self.types(number))
        if found is None:
            self.refuse(number)
        return found

    def types(self, number: int) -> list[TensorType]:
        """The types of a line's operands."""
        return [(self.given if kind == "x" else self.found)[i] for kind, i in self.steps[number].operands]

    def refuse(self, number: int) -> NoReturn:
        raise MspcError(f"the places of the elements of {self.steps[number].op.name} are no sums of steps")


class _View:
    """Lines as they are seen from the places of one result: it has shape `shape`, and places are along `dims`."""

    def __init__(self, resolver: _Resolver, shape: Shape, dims: Shape) -> None:
        self.resolver, self.shape, self.dims = resolver, shape, dims

    def of(self, number: int, places: Sequence[Coordinate], where: Where) -> Source:
        """The element of a line's result at these places, one for each of its dimensions (of its index map, where it
        moves elements), for places where the conditions hold."""
        step, types = self.resolver.steps[number], self.resolver.types(number)
        own = self.resolver.found[number]
        if moves_elements(step.op):
            return self._selected(number, places, where)
        if step.reshapes:
            inner = reshaped(places, own.shape, types[0].shape, self.dims)
            if inner is None:
                self.resolver.refuse(number)
            return self._operand(step.operands[0], types[0], inner, where)
        op, shapes = form_of(step.op, types)
        copies = op.cuda == COPY and own.dtype == types[0].dtype and shapes[0] == types[0].shape
        if not (copies or fusible(step.op)) or any(name in step.op.cuda for name in NUMBERED):
            raise MspcError(f"{step.op.name} stands ahead of a line that moves elements, and computes no single ones")
        read: list[Source] = []
        for operand, type, shape in zip(step.operands, types, shapes, strict=True):
            lead = own.rank - len(shape)
            inner = [places[lead + d] if n == own.shape[lead + d] else Coordinate() for d, n in enumerate(shape)]
            read.append(self._operand(operand, type, inner, where))
        return read[0] if copies else self.resolver.line(BodyLine(step.op, tuple(read)))

    def _operand(self, operand: Source, type: TensorType, places: Sequence[Coordinate], where: Where) -> Source:
        kind, index = operand
        if kind == "x":
            at = flattened(places, type.shape)
            return self.resolver.read(Moved(index, type.dtype, self.shape, self.dims, at, where))
        if not moves_elements(self.resolver.steps[index].op):
            return self.of(index, places, where)
        inner = reshaped(places, type.shape, self.resolver.map_of(index).dims, self.dims)
        if inner is None:
            self.resolver.refuse(index)
        return self.of(index, inner, where)

    def _selected(self, number: int, places: Sequence[Coordinate], where: Where) -> Source:
        """The element of a line that moves elements: of the first of its pieces that has the place."""
        step, types = self.resolver.steps[number], self.resolver.types(number)
        map = self.resolver.map_of(number)
        made: list[tuple[Where, Source]] = []
        for piece in map.pieces:
            asked = [(places[d], begin, end) for d, begin, end in piece.where]
            left = tuple(each for each in asked if not each[0].always_in(*each[1:], self.dims))
            if any(each[0].never_in(*each[1:], self.dims) for each in left):
                continue
            source = [place.of(places) for place in piece.source]
            inside = (*where, *(each for each in left if each not in where))
            made.append((left, self._operand(step.operands[piece.operand], types[piece.operand], source, inside)))
            if not left:
                break
        dtype = self.resolver.found[number].dtype
        if made and (map.covers or not made[-1][0]):
            value = made.pop()[1]
        elif len(made) == 1 and made[0][1][0] == "x":
            return made[0][1]  # it is 0 elsewhere
        else:
            value = self.resolver.read(Moved(-1, dtype, self.shape, self.dims, where=NOWHERE))
        for left, source in reversed(made):
            holds = self.resolver.read(Moved(-1, BOOL, self.shape, self.dims, where=left))
            value = self.resolver.line(BodyLine(Select(), (holds, source, value)))
        return value
