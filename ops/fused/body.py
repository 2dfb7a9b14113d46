"""Lines of fused operators. Each line is one operator as text, which is parsed without evaluating anything.

`Mul(x0, t1)` multiplies operand 0 of the fused operator by the result of line 1. Attributes follow the operands in the
syntax of the graph text: `Cast(t0, dst_type=Float16)`, `ReduceSum(t1, keep_dims=false, axis=(0))`. A line is
elementwise, reshapes its operand, moves elements of its operands to other positions, or reduces some axes.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import key_text, value_text
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.index_map import Coordinate, IndexMap, along, flattened, reshaped
from mspc.ops.math.arithmetic import Select
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import REGISTRY, NotDifferentiable, Op
from mspc.ops.tensor.reshape import ReductionOp

_LINE = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*\Z", re.DOTALL)
_OPERAND = re.compile(r"\s*([xt])(0|[1-9]\d{0,5})\s*(?:,|\Z)")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]|[^"()\[\]{},]+')


class RankOp(Op, abstract=True):
    """An operator of a rank's own graph, which a pass makes after all gradients are taken."""

    bprop = NotDifferentiable("operators are fused after all gradients are taken")

    def rule(self, *types: TensorType) -> Any:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")


@dataclass(frozen=True, slots=True)
class BodyLine:
    """One line: the operator, and for each operand ("x", operand of the fused operator) or ("t", earlier line)."""

    op: Op
    operands: tuple[tuple[str, int], ...]

    @property
    def reduces(self) -> bool:
        """Whether the line is a reduction."""
        return closes(self.op)

    @property
    def reshapes(self) -> bool:
        """Whether the line has the elements of its operand in their order."""
        return reshapes(self.op)


def fusible(op: object) -> bool:
    """Whether every element of the operator's result is computed from only the operands' elements at the same place,
    broadcast by the general rule, by an expression of C++."""
    return isinstance(op, Elementwise) and bool(op.cuda) and op.broadcasts


def by_element(op: object) -> bool:
    """Whether the operator is `fusible`, or is so on operands in other shapes."""
    return fusible(op) or (isinstance(op, Op) and type(op).as_broadcast is not Op.as_broadcast)


def form_of(op: Op, types: Sequence[TensorType]) -> tuple[Op, Sequence[tuple[int, ...]]]:
    """Return the operator that computes the elements of a line, and the shapes of its operands, aligned by their last
    dimensions."""
    form = op.as_broadcast(*types)
    return form if form is not None else (op, [type.shape for type in types])


def reshapes(op: object) -> bool:
    """Whether the operator gives the elements of its one operand, in their order, another shape."""
    return isinstance(op, Op) and op.reshapes


def closes(op: object) -> bool:
    """Whether the operator is a reduction that may be a line."""
    return isinstance(op, ReductionOp) and op.closes_chains


def moves_elements(op: object) -> bool:
    """Return True if the operator has one result and declares the source of each of its elements."""
    return isinstance(op, Op) and type(op).index_map is not Op.index_map


def divides(op: object) -> bool:
    """Whether the operator has several results, each of which a separate operator can make."""
    return isinstance(op, Op) and type(op).single_result is not Op.single_result


def along_rows(op: object) -> bool:
    """Whether the operator computes every element from those of its row, by lines that its class declares."""
    return isinstance(op, Op) and bool(op.row_lines)


def row_axes(op: Op, types: Sequence[TensorType]) -> tuple[int, ...] | None:
    """Return the axes of operand 0 that the operator reduces, for operands of these types; None for an elementwise
    line."""
    if isinstance(op, ReductionOp):
        return op.axes(types[0].rank) or tuple(range(types[0].rank))
    return op.row_axes(*types) if along_rows(op) else None


def line_of(op: Op, operands: Sequence[tuple[str, int]]) -> str:
    """Return the text of a line. Raise TypeError if an attribute has a value that has no text."""
    parts = [f"{kind}{index}" for kind, index in operands]
    parts += [f"{key_text(key)}={value_text(value)}" for key, value in op.attributes().items()]
    return f"{op.name}({', '.join(parts)})"


@functools.lru_cache(maxsize=65536)
def read_line(line: str) -> BodyLine:
    """Return the operator and the operands of a line. Raise MspcError if the line is malformed, or its operator is
    unknown or cannot have these attributes."""
    match = _LINE.match(line)
    if match is None:
        _fail(line, "it is not of the form Name(x0, t0, key=value)")
    name, rest = match.groups()
    operands: list[tuple[str, int]] = []
    at = 0
    while (operand := _OPERAND.match(rest, at)) is not None:
        operands.append((operand[1], int(operand[2])))
        at = operand.end()
    pairs = [_pair(line, text) for text in _split(rest[at:])]
    if pairs and operands and rest[:at].rstrip()[-1:] != ",":
        _fail(line, f"unexpected {rest[at:]!r}")
    return BodyLine(_operator(line, name, pairs), tuple(operands))


@functools.lru_cache(maxsize=4096)
def member_of_line(line: str, kind: type[Op], lacks: str, group: str = "") -> Any:
    """Return the operator of a line without operands, a member of a group. Raise MspcError if it names operands, or is
    not of this kind: then it `lacks` something. group: begins the message."""
    step = read_line(line)
    if step.operands:
        raise MspcError(f"{group}{line!r} names operands; write {step.op.name}(key=value) alone")
    if not isinstance(step.op, kind):
        raise MspcError(f"{group}{step.op.name} {lacks}")
    return step.op


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and strings."""
    if not text.strip():
        return []
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _pair(line: str, text: str) -> tuple[str, str]:
    match = _KEY.match(text)
    if match is None:
        _fail(line, f"{text.strip()!r} is neither x0, x1, ... nor t0, t1, ... nor key=value")
    return match[1], text[match.end() :].strip()


def _operator(line: str, name: str, pairs: list[tuple[str, str]]) -> Op:
    from mspc.ir.text.fragments import read_attributes
    from mspc.ir.text.node_reader import OperatorReader  # only a text that is read needs them
    from mspc.ir.text.source_text import Malformed, SourceText

    if name not in REGISTRY:
        _fail(line, f"there is no operator {name}")
    try:
        attributes = read_attributes(f"{{{', '.join([f'{key}: {value}' for key, value in pairs])}}}")
        op = OperatorReader(SourceText(line, "line"), REGISTRY).operator(name, attributes, 0)
    except (Malformed, MspcError) as error:
        _fail(line, error.message, error.notes if isinstance(error, MspcError) else ())
    return cast(Op, op)


def _fail(line: str, message: str, notes: Sequence[str] = ()) -> NoReturn:
    raise MspcError(f"in the line {line!r} of a fused operator: {message}", notes=notes) from None


@functools.lru_cache(maxsize=65536)
def read_body(body: tuple[str, ...], returns: tuple[int, ...], unread: int = 0) -> tuple[BodyLine, ...]:
    """Return the lines of a fused operator, checked against each other. unread: number of first operands that need no
    reader. Raise MspcError if a line is malformed, reads a missing operand or is not needed, or `returns` names no
    lines."""
    if not body:
        raise MspcError("a fused operator has no lines")
    steps = tuple(map(read_line, body))
    needed: set[tuple[str, int]] = {("t", index) for index in returns}
    for number, (line, step) in enumerate(zip(body, steps, strict=True)):
        if not any(may_be(step.op) for may_be in (by_element, along_rows, reshapes, closes, moves_elements)):
            _fail(line, f"{step.op.name} does not work element by element")
        if not step.operands and (fusible(step.op) or not by_element(step.op)):
            _fail(line, "it reads nothing")
        for kind, index in step.operands:
            if kind == "t" and index >= number:
                _fail(line, f"t{index} is not the result of an earlier line")
        if (step.reduces or step.reshapes) and len(step.operands) != 1:
            _fail(line, f"{step.op.name} reads one tensor")
        needed.update(step.operands)
    if not returns or len(set(returns)) != len(returns) or not all(0 <= index < len(body) for index in returns):
        raise MspcError(f"a fused operator of {len(body)} lines cannot return {returns}")
    for number, line in enumerate(body):
        if ("t", number) not in needed:
            _fail(line, "its result is neither read nor returned")
    for index in range(unread, operand_count(steps)):
        if ("x", index) not in needed:
            raise MspcError(f"no line of the fused operator reads x{index}")
    return steps


def operand_count(steps: Sequence[BodyLine]) -> int:
    """Return how many operands the lines read."""
    return 1 + max((index for step in steps for kind, index in step.operands if kind == "x"), default=-1)


def types_of_lines(steps: Sequence[BodyLine], operand_types: Sequence[TensorType]) -> list[TensorType]:
    """Return the type of every line's result. Raise MspcError if the operands do not fit."""
    found: list[TensorType] = []
    for step in steps:
        types = tuple((operand_types if kind == "x" else found)[index] for kind, index in step.operands)
        found.append(_result_type(step.op, types))
    return found


@functools.lru_cache(maxsize=4096)
def _result_type(op: Op, types: tuple[TensorType, ...]) -> TensorType:
    """Return the type of a line's result; cached, because kernels are grown line by line."""
    return cast(TensorType, op.infer(*types))


def expanded(
    steps: Sequence[BodyLine], returns: Sequence[int], operand_types: Sequence[TensorType]
) -> tuple[list[BodyLine], list[int]]:
    """Return (lines, returns) with operators along rows replaced by the lines that they declare."""
    if not any(along_rows(step.op) for step in steps):
        return list(steps), list(returns)
    found = types_of_lines(steps, operand_types)
    made: list[BodyLine] = []
    place: list[int] = []
    for step in steps:
        sources = [("x", index) if kind == "x" else ("t", place[index]) for kind, index in step.operands]
        if not along_rows(step.op):
            made.append(BodyLine(step.op, tuple(sources)))
        first = len(made)
        for text in step.op.row_lines:
            axes = step.op.row_axes(*[(operand_types if k == "x" else found)[i] for k, i in step.operands])
            line = read_line(text.replace("AXES", f"keep_dims=true, axis=({', '.join(map(str, axes))})"))
            read = [sources[index] if kind == "x" else ("t", first + index) for kind, index in line.operands]
            made.append(BodyLine(line.op, tuple(read)))
        place.append(len(made) - 1)
    return made, [place[index] for index in returns]


# Lines that move elements (slices, joins, transposes and their like) as reads of operands at other places.
#
# An element of `Concat(t0, x1)` is an element of t0 or of x1 at another place, and an element of t0 is computed from
# operands at that place. Thus lines before one that moves elements become lines on moved operands, and a join becomes a
# selection by place: the remaining lines work element by element on operands of the result's shape.


Shape = tuple[int, ...]
Source = tuple[str, int]
Where = tuple[tuple[Coordinate, int, int], ...]
COPY = "{0}"
"""The expression of an operator whose elements are its operand's."""
NUMBERED = ("{i}", "{s}")
"""Parts of an expression that depend on the position."""
SECTOR = 32
"""Minimum number of bytes per memory transfer."""
CACHED = 1 << 16
"""Maximum bytes of an operand that stays in a cache in any order of reads."""
NOWHERE = ((Coordinate(), 1, 1),)
"""Conditions that hold nowhere."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An operand of lines of shape `shape`: one element per position along dimensions `dims`, which have the same
    elements in the same order. operand: its source, read at element index `at`; -1 for the truth of the conditions, as
    `dtype`. where: begin <= coordinate < end for every (coordinate, begin, end); elsewhere 0 is read."""

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
        """All places to which it refers."""
        return (self.at, *(place for place, _, _ in self.where))

    def cuts(self) -> set[int]:
        """Return the element counts at which dimensions start that cannot be merged with later ones."""
        found = set[int]()
        held = [d for d, n in enumerate(self.dims) if n != 1]
        steps = [dict(place.terms) for place in self.places]
        for outer, inner in itertools.pairwise(held):
            if any(of.get(outer, 0) != of.get(inner, 0) * self.dims[inner] for of in steps):
                found.add(math.prod(self.dims[inner:]))
        return found

    def steps(self, place: Coordinate, dims: Shape) -> Shape:
        """Return the steps of one of its places along the dimensions of a space that has its cuts."""
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
        """Return (bytes of the elements that are read of an operand of this type, the factor of bytes that memory
        transfers for them)."""
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
    """Return (lines, returns, reads after the operands) without lines that move elements. Raise MspcError if a line
    before one that moves elements is no computation of single elements, or its places are no sums of steps."""
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
    """Return the lines whose elements are only read at their own positions."""
    found = set(returns)
    for number in reversed(range(len(steps))):
        if number in found and not moves_elements(steps[number].op):
            found.update(index for kind, index in steps[number].operands if kind == "t")
    return sorted(found)


class _Resolver:
    """The new lines, and their reads after the operands."""

    def __init__(self, steps: Sequence[BodyLine], given: Sequence[TensorType], found: Sequence[TensorType]) -> None:
        self.steps, self.given, self.found = steps, given, found
        self.lines: list[BodyLine] = []
        self.reads: dict[Moved, Source] = {}
        self._lines: dict[BodyLine, Source] = {}

    def line(self, step: BodyLine) -> Source:
        """Return the place of a line's result; equal lines are added once."""
        if step not in self._lines:
            self.lines.append(step)
            self._lines[step] = ("t", len(self.lines) - 1)
        return self._lines[step]

    def moved(self, number: int) -> Source:
        """Return the result of a line that moves elements, each at its own place."""
        view = _View(self, self.found[number].shape, self.map_of(number).dims)
        return view.of(number, [along(d) for d in range(len(view.dims))], ())

    def read(self, moved: Moved) -> Source:
        """Return the operand, numbered after the others, for a read."""
        return self.reads.setdefault(moved, ("x", len(self.given) + len(self.reads)))

    def map_of(self, number: int) -> IndexMap:
        """Return the places of a line that moves elements."""
        found = self.steps[number].op.index_map(*self.types(number))
        if found is None:
            self.refuse(number)
        return found

    def types(self, number: int) -> list[TensorType]:
        """Return the types of a line's operands."""
        return [(self.given if kind == "x" else self.found)[i] for kind, i in self.steps[number].operands]

    def refuse(self, number: int) -> NoReturn:
        raise MspcError(f"the places of the elements of {self.steps[number].op.name} are no sums of steps")


class _View:
    """Lines indexed by the positions of one result: it has shape `shape`, and positions are along `dims`."""

    def __init__(self, resolver: _Resolver, shape: Shape, dims: Shape) -> None:
        self.resolver, self.shape, self.dims = resolver, shape, dims

    def of(self, number: int, places: Sequence[Coordinate], where: Where) -> Source:
        """Return the element of a line's result at these places, one for each of its dimensions (of its index map, if
        it moves elements), for places that meet the conditions."""
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
            raise MspcError(f"{step.op.name} is before a line that moves elements, and computes no single ones")
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
        """Return the element of a line that moves elements, from the first of its pieces that has the place."""
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
