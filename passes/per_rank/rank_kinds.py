"""Finds ranks of one kind, whose graphs differ in nothing that a pass looks at: the passes run once for all of them.

The passes get the graph of one rank in which stand-ins (`ir.varying`) take the place of what a rank's parts hold:
groups, offsets, constants. A rank is of the kind if its parts are made alike (the same operators with values of the
same classes) and its values answer all questions of the passes as those of the first rank did. Then the passes would
have done the same to it, and its graph is theirs with its own values in the place of the stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from mspc.ir.graph import Constant, Node, OpLike, Value
from mspc.ir.varying import Looks, Slot, Varying, VaryingConstant, constant_bytes
from mspc.passes.per_rank.rank_parts import GraphPositions, RankElement

RANK = Slot(-1, 0, "rank")
"""The slot of the rank's own number."""
_NONE: frozenset[str] = frozenset()
_HIDDEN = (tuple, int, str)
"""Classes of values that get stand-ins."""


def neighbours(ranks: int) -> list[int]:
    """Some of so many ranks, of which two are neighbours along every axis of every mesh."""
    return [0, *(1 << k for k in range(max(0, ranks - 1).bit_length()))]


class VaryingParts:
    """Where ranks differ: the numbers of the parts that depend on the rank, and the fields of operators that do.

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
        """What is equal for ranks that can be of one kind: how their parts are made."""
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
    """What ranks of one kind have in common: the parts of one of them, `rank`, with stand-ins where ranks differ."""

    def __init__(self, rank: int, parts: Sequence[RankElement], differences: VaryingParts) -> None:
        self.looks = Looks()
        self.rank = Varying(RANK, rank, self.looks)
        self.parts = list(parts)
        for number in differences.parts:
            self.parts[number] = _hidden(parts[number], number, differences, self.looks)

    def holds_for(self, rank: int, parts: Sequence[RankElement]) -> bool:
        """Whether a rank whose parts are made like those of the first is of this kind."""
        return self.looks.hold_for(lambda slot: _value_at(slot, rank, parts))


def own_op(op: OpLike, rank: int, parts: Sequence[RankElement]) -> OpLike:
    """The operator with a rank's own values in the place of stand-ins."""
    found = _stand_ins(op)
    if not found:
        return op
    return replace(op, **{name: _value_at(value.slot, rank, parts) for name, value in found.items()})  # type: ignore[type-var]  # every operator with stand-ins is a dataclass


def own_constant(value: Value, parts: Sequence[RankElement]) -> Value:
    """The rank's own constant for a stand-in; any other value as it is, and all where there are no parts."""
    if not isinstance(value, VaryingConstant) or not parts:
        return value
    constant = parts[value.slot.place].constant
    assert constant is not None
    return constant


def varies(node: Node) -> bool:
    """Whether stand-ins are among what the node holds."""
    return bool(_stand_ins(node.op)) or any(isinstance(value, VaryingConstant) for value in node.inputs)


def _stand_ins(op: OpLike) -> dict[str, Varying]:
    values = vars(op)
    if Varying not in map(type, values.values()):  # as of nearly all
        return {}
    return {name: value for name, value in values.items() if type(value) is Varying}


# Stand-ins for a rank's parts


def _hidden(part: RankElement, place: int, differences: VaryingParts, looks: Looks) -> RankElement:
    if part.constant is not None:
        return replace(part, constant=VaryingConstant(Slot(place, 0, "constant"), part.constant, looks))

    def hidden(op: Any, at: int) -> Any:
        values = {name: getattr(op, name) for name in differences.fields.get((place, type(op)), ())}
        stand_ins = {
            name: Varying(Slot(place, at, name), value, looks)
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


def _value_at(slot: Slot, rank: int, parts: Sequence[RankElement]) -> Any:
    if slot is RANK:
        return rank
    part = parts[slot.place]
    if part.constant is not None:
        return constant_bytes(part.constant)
    value = getattr(part.op if part.op is not None else part.nodes[slot.number].op, slot.field)
    return tuple(sorted(value)) if slot.ascending else value


# What parts made alike share


def _frame(op: OpLike, differing: frozenset[str]) -> Hashable:
    """The class of an operator and its fields; of values that get stand-ins their class alone."""
    kind: type[Any] = type(op)
    fixed, others = _sides(kind, differing)
    values: list[Any] = [getattr(op, name) for name in others]
    classes: list[Any] = [type(value) if type(value) in _HIDDEN else value for value in values]
    return kind, fixed(op), tuple(classes)


@cache
def _sides(kind: type[Any], differing: frozenset[str]) -> tuple[Callable[[OpLike], Any], tuple[str, ...]]:
    """(what gives the fields that do not differ, the names of those that do)."""
    fixed = [name for name in _names(kind) if name not in differing]
    return attrgetter(*fixed) if fixed else _nothing, tuple(name for name in _names(kind) if name in differing)


def _nothing(op: OpLike) -> None:
    """The fields of an operator of which all differ."""


def _fixed(read: int | Constant) -> Hashable:
    return read if isinstance(read, int) else (read.type, constant_bytes(read))
