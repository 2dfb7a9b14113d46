"""Kinds of ranks: ranks whose graphs are equal but for groups, offsets and constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from mspc.ir.graph import (
    PADDING,
    Builder,
    Constant,
    Graph,
    Node,
    OpLike,
    Parameter,
    Value,
    element_layouts,
    element_types,
    operand_types,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ir.varying import Looks, RankField, Varying, VaryingConstant, constant_bytes
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op, RankPlacement

# The passes get the graph of one rank in which stand-ins (`ir.varying`) replace the rank's groups, offsets and
# constants. Another rank is of the kind if its parts are made alike (the same operators with values of the same
# classes) and its values answer all questions of the passes as those of the first rank did. Then the passes would have
# done the same to it, and its graph is theirs with its own values instead of the stand-ins.


RANK = RankField(-1, 0, "rank")
"""The slot of the rank's own number."""
_NONE: frozenset[str] = frozenset()
_HIDDEN = (tuple, int, str)
"""Classes of values that get stand-ins."""


def neighbours(ranks: int) -> list[int]:
    """Some of so many ranks, of which two are neighbours along every axis of every mesh."""
    return [0, *(1 << k for k in range(max(0, ranks - 1).bit_length()))]


class VaryingParts:
    """If ranks differ: the numbers of the parts that depend on the rank, and the fields of operators that do.

    Some ranks are compared, two neighbours along every axis of every mesh among them. A field that differs between
    others only gets no stand-in, and so these others are ranks of several kinds.
    """

    def __init__(self, places: GraphPositions, ranks: int) -> None:
        self.parts = places.differing()
        probes = [places.on(rank) for rank in neighbours(ranks)]
        found: dict[tuple[int, type], set[str]] = {}
        for number in self.parts:
            seen: dict[tuple[int, type], OpLike] = {}
            for parts in probes:
                for at, op in _operators(parts[number]):
                    first = seen.setdefault((at, type(op)), op)
                    names = found.setdefault((number, type(op)), set())
                    names.update(n for n in _names(type(op)) if getattr(op, n) != getattr(first, n))
        self.fields = {at: frozenset(names) for at, names in found.items()}

    def made_alike(self, parts: Sequence[RankElement]) -> Hashable:
        """Return a key that is equal for ranks that can be of one kind: how their parts are made."""
        return tuple([self._frame(parts[number], number) for number in self.parts])

    def _frame(self, part: RankElement, place: int) -> Hashable:
        if part.op is not None:
            return _frame(part.op, self.fields.get((place, type(part.op)), _NONE))
        if part.constant is not None:
            return part.constant.type
        operators = [_frame(made.op, self.fields.get((place, type(made.op)), _NONE)) for made in part.nodes]
        wires = [(tuple(map(_fixed, made.inputs)), made.type, made.name, made.instance) for made in part.nodes]
        return tuple(operators), tuple(wires), _fixed(part.result)


def _operators(part: RankElement) -> list[tuple[int, OpLike]]:
    if part.op is not None:
        return [(0, part.op)]
    return [(at, made.op) for at, made in enumerate(part.nodes)]


class RankKindParts:
    """The common parts of the ranks of one kind: those of one of them, `rank`, with stand-ins if ranks differ."""

    def __init__(self, rank: int, parts: Sequence[RankElement], differences: VaryingParts) -> None:
        self.looks = Looks()
        self.rank = Varying(RANK, rank, self.looks)
        self.parts = list(parts)
        for number in differences.parts:
            self.parts[number] = _hidden(parts[number], number, differences, self.looks)

    def holds_for(self, rank: int, parts: Sequence[RankElement]) -> bool:
        """Return whether a rank whose parts are made like those of the first is of this kind."""
        return self.looks.hold_for(lambda slot: _value_at(slot, rank, parts))


def own_op(op: OpLike, rank: int, parts: Sequence[RankElement]) -> OpLike:
    """Return the operator with a rank's own values in the place of stand-ins."""
    found = _stand_ins(op)
    if not found:
        return op
    return replace(op, **{name: _value_at(value.slot, rank, parts) for name, value in found.items()})  # type: ignore[type-var]  # every operator with stand-ins is a dataclass


def own_constant(value: Value, parts: Sequence[RankElement]) -> Value:
    """Return the rank's own constant for a stand-in; any other value as it is, and all if there are no parts."""
    if not isinstance(value, VaryingConstant) or not parts:
        return value
    constant = parts[value.slot.place].constant
    assert constant is not None
    return constant


def varies(node: Node) -> bool:
    """Return whether the node holds stand-ins."""
    return bool(_stand_ins(node.op)) or any(isinstance(value, VaryingConstant) for value in node.inputs)


def _stand_ins(op: OpLike) -> dict[str, Varying]:
    values = vars(op)
    if Varying not in map(type, values.values()):  # as of nearly all
        return {}
    return {name: value for name, value in values.items() if type(value) is Varying}


def _hidden(part: RankElement, place: int, differences: VaryingParts, looks: Looks) -> RankElement:
    if part.constant is not None:
        return replace(part, constant=VaryingConstant(RankField(place, 0, "constant"), part.constant, looks))

    def hidden(op: Any, at: int) -> Any:
        values = {name: getattr(op, name) for name in differences.fields.get((place, type(op)), ())}
        stand_ins = {
            name: Varying(RankField(place, at, name), value, looks)
            for name, value in values.items()
            if type(value) in _HIDDEN
        }
        return replace(op, **stand_ins) if stand_ins else op  # type: ignore[type-var]  # operators are dataclasses

    if part.op is not None:
        return replace(part, op=hidden(part.op, 0))
    return replace(part, nodes=tuple(replace(made, op=hidden(made.op, at)) for at, made in enumerate(part.nodes)))


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _value_at(slot: RankField, rank: int, parts: Sequence[RankElement]) -> Any:
    if slot is RANK:
        return rank
    part = parts[slot.place]
    if part.constant is not None:
        return constant_bytes(part.constant)
    value = getattr(part.op if part.op is not None else part.nodes[slot.number].op, slot.field)
    return tuple(sorted(value)) if slot.ascending else value


def _frame(op: OpLike, differing: frozenset[str]) -> Hashable:
    """Return the class of an operator and its fields; of values that get stand-ins their class alone."""
    kind: type[Any] = type(op)
    fixed, others = _field_split(kind, differing)
    values: list[Any] = [getattr(op, name) for name in others]
    classes: list[Any] = [type(value) if type(value) in _HIDDEN else value for value in values]
    return kind, fixed(op), tuple(classes)


@cache
def _field_split(kind: type[Any], differing: frozenset[str]) -> tuple[Callable[[OpLike], Any], tuple[str, ...]]:
    """Return (the function that returns the fields that do not differ, the names of those that do)."""
    fixed = [name for name in _names(kind) if name not in differing]
    return attrgetter(*fixed) if fixed else _nothing, tuple(name for name in _names(kind) if name in differing)


def _nothing(op: OpLike) -> None:
    """Return no fields: all of them differ."""


def _fixed(read: int | Constant) -> Hashable:
    return read if isinstance(read, int) else (read.type, constant_bytes(read))


# A place is an operator that gives its own form on a rank (`localize`, `expand`), or a sharded constant. Equal
# operators on equal types and layouts are one place, so that many equal layers cost as much as one. Everything else in
# a rank's graph follows from types and layouts, which all ranks share.


@dataclass(frozen=True, slots=True)
class Made:
    """A node that an operator becomes on a rank.

    inputs: for each the number of an earlier one, or from -1 downwards an operand; a constant is itself.
    reason: of a collective that is part of the operator. shared: (operand, key) of a node that operators share which
    ask the same of that operand, on all ranks alike.
    """

    op: OpLike
    inputs: tuple[int | Constant, ...]
    type: Type
    name: str = ""
    instance: str = ""
    reason: str = ""
    shared: tuple[int | Constant, object] | None = None


@dataclass(frozen=True, slots=True)
class RankElement:
    """A place on a rank: one operator, a constant, or several nodes, of which `result` is the number of the one with
    the result (as the inputs of `Made`)."""

    op: Op | None = None
    constant: Constant | None = None
    nodes: tuple[Made, ...] = ()
    result: int | Constant = 0


def _moved_part(part: RankElement, by: int) -> RankElement:
    """Return the part on a rank that is `by` further on, in another stage."""

    def op(given: Any) -> Any:
        return given.moved(by) if isinstance(given, Collective) and given.communicates else given

    nodes = tuple(replace(made, op=op(made.op)) for made in part.nodes)
    return replace(part, op=op(part.op), nodes=nodes)


class _Asked(RankPlacement):
    """A placement that tells whether anybody has read the rank."""

    _rank: int
    asked: bool

    @property
    def rank(self) -> int:  # type: ignore[override]  # a question instead of a field
        object.__setattr__(self, "asked", True)
        return self._rank

    @rank.setter
    def rank(self, rank: int) -> None:
        object.__setattr__(self, "asked", False)
        object.__setattr__(self, "_rank", rank)


@dataclass(frozen=True, slots=True)
class OperatorPlace:
    """An operator that gives its own form on a rank; types are global, `operands` are the rank's."""

    op: Op
    in_types: tuple[TensorType, ...]
    in_layouts: tuple[Layout, ...]
    out_types: tuple[TensorType, ...]
    out_layouts: tuple[Layout, ...]
    operands: tuple[Type, ...]

    def depends(self) -> bool:
        """Return whether the part depends on the rank; a part that cannot be asked on one rank does."""
        placement = _Asked(0, self.in_types, self.in_layouts, self.out_types, self.out_layouts)
        self._at(placement)
        return placement.asked

    def on(self, rank: int) -> RankElement:
        """Return the part on a rank."""
        return self._at(RankPlacement(rank, self.in_types, self.in_layouts, self.out_types, self.out_layouts))

    def _at(self, placement: RankPlacement) -> RankElement:
        if type(self.op).expand is not Op.expand:
            builder = Builder(Graph(""))
            inputs = [Value(type) for type in self.operands]
            result = self.op.expand(builder, placement, inputs)
            if result is not None:
                return _expanded(builder.nodes, inputs, result)
        return RankElement(op=self.op.localize(placement))


def _expanded(nodes: Sequence[Node], inputs: Sequence[Value], result: Value) -> RankElement:
    numbers: dict[Value, int | Constant] = {value: -1 - i for i, value in enumerate(inputs)}
    made: list[Made] = []
    for number, node in enumerate(nodes):
        read = tuple(v if isinstance(v, Constant) else numbers[v] for v in node.inputs)
        operand, key = node.attrs.get("shared", (None, None))
        shared = None if operand is None else (numbers[operand], key)
        reason = str(node.attrs.get("reason", ""))
        made.append(Made(node.op, read, node.type, node.name, node.instance, reason, shared))
        numbers[node] = number
    return RankElement(nodes=tuple(made), result=result if isinstance(result, Constant) else numbers[result])


@dataclass(frozen=True, slots=True, eq=False)
class ConstantPlace:
    """A sharded constant."""

    constant: Constant
    layout: Layout

    def depends(self) -> bool:
        """True: it is sharded."""
        return True

    def on(self, rank: int) -> RankElement:
        """Return the part on a rank."""
        constant = self.constant
        here = self.layout.slices_for(rank, constant.shape)
        return RankElement(constant=Constant(constant.value[here], constant.tensor_type.dtype))


class GraphPositions:
    """The places of a graph. of_node: the place of a node's operator. of_operand: that of a constant operand."""

    def __init__(self, graph: Graph) -> None:
        self.all: list[OperatorPlace | ConstantPlace] = []
        self.of_node: dict[Node, int] = {}
        self.of_operand: dict[tuple[Node, int], int] = {}
        self._known: dict[object, int] = {}
        self._ranks = ranks = int(graph.attrs.get("ranks", 1))
        for node in graph.nodes:
            for index, value in enumerate(node.inputs):
                if isinstance(value, Constant):
                    self._constant(node, index, value)
            op = node.op
            if isinstance(op, Op) and (type(op).localize is not Op.localize or type(op).expand is not Op.expand):
                self.of_node[node] = self._number(place := _place(node, op, ranks), place)
        self._same: list[RankElement | None] | None = None

    def _constant(self, node: Node, index: int, value: Constant) -> None:
        layout = node.in_layouts[index] if node.in_layouts is not None else None
        if layout is not None and any(layout.dims):
            key = (value.type, value.value.tobytes(), layout)
            self.of_operand[node, index] = self._number(key, ConstantPlace(value, layout))

    def _number(self, key: object, place: OperatorPlace | ConstantPlace) -> int:
        number = self._known.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(place)
        return number

    def differing(self) -> list[int]:
        """Return the numbers of the places whose parts depend on the rank."""
        if self._same is None:
            self._same = [None if place.depends() else place.on(0) for place in self.all]
        return [number for number, part in enumerate(self._same) if part is None]

    def on(self, rank: int) -> list[RankElement]:
        """Return the parts of all places on a rank."""
        place_in_stage = rank % self._ranks
        same = self._same or [None] * len(self.all)
        parts = [part or place.on(place_in_stage) for part, place in zip(same, self.all, strict=True)]
        return [_moved_part(part, rank - place_in_stage) for part in parts] if rank != place_in_stage else parts


def _place(node: Node, op: Op, ranks: int) -> OperatorPlace:
    numbers = range(len(node.inputs))
    layouts = tuple(layout for i in numbers for layout in _in_layouts(node, i, ranks))
    operands = tuple(operand_type(node, i) for i in numbers) if type(op).expand is not Op.expand else ()
    return OperatorPlace(op, operand_types(node), layouts, element_types(node.type), _layouts(node, ranks), operands)


def operand_type(node: Node, index: int) -> Type:
    """Return the type of an operand on a rank."""
    value = node.inputs[index]
    if not isinstance(value, Constant):
        return local_type(value.type, value)
    layout = node.in_layouts[index] if node.in_layouts is not None else None
    return value.type if layout is None else value.tensor_type.with_shape(layout.local_shape(value.shape))


def _in_layouts(node: Node, index: int, ranks: int) -> tuple[Layout, ...]:
    value = node.inputs[index]
    if isinstance(value, Constant):
        layout = node.in_layouts[index] if node.in_layouts is not None else None
        return (layout or Layout.replicated(ranks, len(value.shape)),)
    return _layouts(value, ranks)


def is_own(value: Value) -> bool:
    """Return whether a value's type is one rank's already: the graph of all ranks is then each rank's own, and the
    layout says of which global tensor the rank feeds a slice."""
    return isinstance(value, Parameter) and value.global_type is not None and PADDING not in value.attrs


def _layouts(value: Value, ranks: int) -> tuple[Layout, ...]:
    """Return the layouts of a value's tensors; without sharding every rank has complete tensors of its own."""
    found = () if is_own(value) else element_layouts(value.layout)
    return found or tuple(Layout.replicated(ranks, len(t.shape)) for t in element_types(value.type))


def local_type(type: Type, value: Value) -> Type:
    """Return the type of one rank's slice; a value without a layout has it already."""
    if value.layout is None or is_own(value):
        return type
    if isinstance(type, TensorType) and isinstance(value.layout, Layout):
        return type.with_shape(value.layout.local_shape(type.shape))
    if isinstance(type, TupleType) and isinstance(value.layout, tuple):
        pairs = zip(type.elements, value.layout, strict=True)
        return TupleType(tuple(t.with_shape(layout.local_shape(t.shape)) for t, layout in pairs))
    return type
