"""Changes of one node of what a rank executes: of a field of its operator, and of its operands."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mspc.ops.tensor.slicing import StridedSlice
from tests.graphs import Collective, Constant, Graph, Node

PLACE = "planted"
"""The attribute of a node that numbers it."""
REDUCTIONS = ("sum", "max", "min", "prod")
NAMES = {"group", "kept", "fused", "cnode"}
"""Fields that only name something."""
AXES = {"axis", "axes", "dim", "dims", "perm", "split_dim", "concat_dim", "begin_norm_axis"}
PLACES = {"begin", "end", "offset", "begins", "first", "start", "limit", "first_query", "distance", "sr_tag"}


class Unusable(Exception):
    """The change cannot be made here, or the graph would be none."""


@dataclass(frozen=True)
class Rank:
    """A rank's graph, and its groups: the ranks of every collective, by its place."""

    rank: int
    graphs: list[Graph]

    def at(self, place: tuple[int, int]) -> Node:
        """The node at a place: number of the graph, and of the node in it."""
        return self.graphs[place[0]].nodes[place[1]]


Edit = Callable[[Rank], Sequence[Node]]
"""Makes a change in a rank's graph. The nodes that it has changed, or that read what is left out. Raises Unusable."""


@dataclass(frozen=True)
class Change:
    """what: its kind. label: of the node, and what is done there."""

    what: str
    label: str
    edit: Edit


def meets(node: Node) -> bool:
    return isinstance(node.op, Collective) and node.op.communicates


Drawn = tuple[str, Edit]


# Fields of operators


def _field(rank: Rank, place: tuple[int, int], generator: random.Random, among: Callable[[str], bool]) -> Drawn:
    op: Any = rank.at(place).op
    names = [f.name for f in fields(op) if f.name not in NAMES and among(f.name)]
    if not names:
        raise Unusable
    name = generator.choice(names)
    other = _other(getattr(op, name), generator)

    def edit(own: Rank) -> Sequence[Node]:
        node = own.at(place)
        return with_op(node, replace(node.op, **{name: other(getattr(node.op, name))}))  # type: ignore[type-var]

    return f"{name} {getattr(op, name)} becomes {other(getattr(op, name))}", edit


def _other(value: Any, generator: random.Random) -> Callable[[Any], Any]:
    """Another value of a field, made of the one that is there."""
    if isinstance(value, bool):
        return lambda v: not v
    if isinstance(value, int):
        by = generator.choice((1, -1, 2, -2))
        return lambda v: v + by
    if isinstance(value, float):
        times = generator.choice((0.5, 2.0, -1.0, 1.25))
        return lambda v: v * times
    if isinstance(value, str):
        if value in REDUCTIONS:
            other = generator.choice([r for r in REDUCTIONS if r != value])
            return lambda v: other
        return _other_text(value, generator)
    if isinstance(value, tuple) and value:
        at = generator.randrange(len(value))
        if len(value) > 1 and generator.random() < 0.5:
            to = generator.randrange(len(value))
            return lambda v: swapped(v, at, to)
        inner = _other(value[at], generator)
        return lambda v: (*v[:at], inner(v[at]), *v[at + 1 :])
    raise Unusable


def _other_text(line: str, generator: random.Random) -> Callable[[Any], Any]:
    """A line of a fused operator with another number, with two operands exchanged, or of another operator."""
    numbers = list(re.finditer(r"(?<==)-?\d+(\.\d+)?(e-?\d+)?(?=[,)])", line))
    if numbers and generator.random() < 0.5:
        found = generator.choice(numbers)
        times = generator.choice((0.5, 2.0, -1.0))
        number = float(found[0]) * times if set(found[0]) & set(".e") else int(found[0]) + 1
        return lambda v: v[: found.start()] + repr(number) + v[found.end() :]
    if generator.random() < 0.5:
        return lambda v: re.sub(r"\(([xt]\d+), ([xt]\d+)", r"(\2, \1", v)
    operators = ("Add", "Mul", "Sub", "Maximum")
    other = generator.choice(operators)
    return lambda v: re.sub(rf"^({'|'.join(operators)})\(", f"{other}(", v)


def swapped(values: Any, one: int, other: int) -> Any:
    made = list(values)
    made[one], made[other] = made[other], made[one]
    return tuple(made) if isinstance(values, tuple) else made


def other_axis(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    return _field(rank, place, generator, AXES.__contains__)


def other_offset(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op: Any = rank.at(place).op
    if not (isinstance(op, StridedSlice) and op.begin):
        return _field(rank, place, generator, PLACES.__contains__)
    at = generator.randrange(len(op.begin))
    sign = generator.choice((1, -1))

    def edit(own: Rank) -> Sequence[Node]:
        node = own.at(place)
        given: Any = node.op
        begin, end = given.begin[at], given.end[at]
        by = sign * (end - begin)
        if begin + by < 0 or end + by > node.inputs[0].shape[at]:
            by = -by
        if begin + by < 0:
            raise Unusable
        begins, ends = _put(given.begin, at, begin + by), _put(given.end, at, end + by)
        return with_op(node, replace(given, begin=begins, end=ends))

    return "a slice from elsewhere", edit


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def other_setting(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    return _field(rank, place, generator, lambda name: name not in AXES | PLACES and "rank" not in name)


def with_op(node: Node, op: Any) -> Sequence[Node]:
    if op == node.op:
        raise Unusable
    if not node.regions and op.infer(*(v.type for v in node.inputs)) != node.type:
        raise Unusable
    node.op = op
    return [node]


# Operands


def other_constant(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    inputs = [i for i, v in enumerate(rank.at(place).inputs) if isinstance(v, Constant) and v.value.size]
    if not inputs:
        raise Unusable
    at, times = generator.choice(inputs), generator.choice((0.5, 2.0, -1.0, 8.0, 1.125))

    def edit(own: Rank) -> Sequence[Node]:
        node = own.at(place)
        old: Any = node.inputs[at]
        changed = (old.value * times if old.value.dtype.kind == "f" else old.value + 1).astype(old.value.dtype)
        if np.array_equal(changed, old.value):
            raise Unusable
        node.inputs[at] = Constant(changed, old.type.dtype)
        return [node]

    return f"constant {at} times {times}", edit


def operands_exchanged(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    node = rank.at(place)
    count = len(node.inputs)
    pairs = [(i, j) for i in range(count) for j in range(i) if node.inputs[i].type == node.inputs[j].type]
    if not pairs or node.regions:
        raise Unusable
    i, j = generator.choice(pairs)

    def edit(own: Rank) -> Sequence[Node]:
        node = own.at(place)
        node.inputs[:] = swapped(node.inputs, i, j)
        return [node]

    return f"operands {i} and {j} exchanged", edit


def other_operand(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    node = rank.at(place)
    graph = rank.graphs[place[0]]
    if not node.inputs:
        raise Unusable
    at = generator.randrange(len(node.inputs))
    values = [*graph.parameters, *graph.nodes[: place[1]]]
    others = [i for i, v in enumerate(values) if v.type == node.inputs[at].type and v is not node.inputs[at]]
    if not others or isinstance(node.inputs[at], Constant):
        raise Unusable
    other = generator.choice(others)

    def edit(own: Rank) -> Sequence[Node]:
        graph, node = own.graphs[place[0]], own.at(place)
        node.inputs[at] = [*graph.parameters, *graph.nodes][other]
        return [node]

    return f"operand {at} is {values[other].name!r}", edit
