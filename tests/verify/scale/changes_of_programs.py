"""Random single changes of programs that ranks execute: one edit, made on all ranks of a kind or on one rank.

An edit is drawn on one rank's graph and says what to do at a place in graphs of the same nodes, in terms of what each
rank has there. Every node has a number (`PLACE`) that edits keep; a node that is put in has the next free ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mspc.ir.copies import copied_node
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import StridedSlice

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


def numbered(graph: Graph) -> None:
    """Give all nodes of a graph and its regions their numbers."""
    for number, node in enumerate(node for each in graph.graphs() for node in each.nodes):
        node.attrs[PLACE] = number


def rank_of(rank: int, graph: Graph) -> Rank:
    """A rank's graph and the graphs in it."""
    return Rank(rank, list(graph.graphs()))


def draw(rank: Rank, generator: random.Random) -> Change:
    """A change, drawn on this rank's graph. Raises Unusable."""
    what = generator.choice(list(KINDS))
    collectives = what in OF_COLLECTIVES
    places = [
        (g, n)
        for g, graph in enumerate(rank.graphs)
        for n, node in enumerate(graph.nodes)
        if isinstance(node.op, Op) and (not collectives or _meets(node))
    ]
    if not places:
        raise Unusable
    place = generator.choice(places)
    said, edit = KINDS[what](rank, place, generator)
    return Change(what, f"{rank.at(place).label}: {said}", edit)


def _meets(node: Node) -> bool:
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
        return _with_op(node, replace(node.op, **{name: other(getattr(node.op, name))}))  # type: ignore[type-var]

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
            return lambda v: _swapped(v, at, to)
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


def _swapped(values: Any, one: int, other: int) -> Any:
    made = list(values)
    made[one], made[other] = made[other], made[one]
    return tuple(made) if isinstance(values, tuple) else made


def _axis(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    return _field(rank, place, generator, AXES.__contains__)


def _offset(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
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
        return _with_op(node, replace(given, begin=begins, end=ends))

    return "a slice from elsewhere", edit


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _setting(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    return _field(rank, place, generator, lambda name: name not in AXES | PLACES and "rank" not in name)


def _with_op(node: Node, op: Any) -> Sequence[Node]:
    if op == node.op:
        raise Unusable
    if not node.regions and op.infer(*(v.type for v in node.inputs)) != node.type:
        raise Unusable
    node.op = op
    return [node]


# Operands


def _constant(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
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


def _swap(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    node = rank.at(place)
    count = len(node.inputs)
    pairs = [(i, j) for i in range(count) for j in range(i) if node.inputs[i].type == node.inputs[j].type]
    if not pairs or node.regions:
        raise Unusable
    i, j = generator.choice(pairs)

    def edit(own: Rank) -> Sequence[Node]:
        node = own.at(place)
        node.inputs[:] = _swapped(node.inputs, i, j)
        return [node]

    return f"operands {i} and {j} exchanged", edit


def _operand(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
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


# Nodes left out, and put in


def readers(graph: Graph, value: Value) -> list[Node]:
    """The nodes of a graph that read a value."""
    return [node for node in graph.nodes if value in node.inputs]


def _left_out(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    node = rank.at(place)
    inputs = [i for i, v in enumerate(node.inputs) if v.type == node.type]
    if not inputs:
        return _left_out_of_tuples(rank, place)
    at = generator.choice(inputs)

    def edit(own: Rank) -> Sequence[Node]:
        return _instead(own.graphs[place[0]], own.at(place), own.at(place).inputs[at])

    return f"left out for operand {at}", edit


def _left_out_of_tuples(rank: Rank, place: tuple[int, int]) -> Drawn:
    if not rank.at(place).op.mutates or readers(rank.graphs[place[0]], rank.at(place)) or rank.at(place).regions:
        raise Unusable

    def edit(own: Rank) -> Sequence[Node]:
        graph, node = own.graphs[place[0]], own.at(place)
        if node in graph.results:
            raise Unusable
        graph.nodes.remove(node)
        return [node]

    return "left out", edit


def _instead(graph: Graph, node: Node, value: Value, made: Sequence[Node] = ()) -> Sequence[Node]:
    """Let readers of a node read a value, made by some nodes, instead of it."""
    if value.type != node.type:
        raise Unusable
    found = readers(graph, node)
    at = graph.nodes.index(node)
    graph.nodes[at : at + 1] = made
    for reader in graph.nodes:
        reader.inputs[:] = [value if v is node else v for v in reader.inputs]
    graph.results = [value if v is node else v for v in graph.results]
    if not made:
        return [node, *found]
    return [*made, *found]


def _missing(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op = rank.at(place).op
    if not isinstance(op, ReduceScatter | AllGather):
        return _left_out(rank, place, generator)

    def edit(own: Rank) -> Sequence[Node]:
        graph, node = own.graphs[place[0]], own.at(place)
        (x,), given = node.inputs, node.op
        assert isinstance(given, ReduceScatter | AllGather)
        if isinstance(given, AllGather):
            made = _made_by(Concat(given.axis), [x] * len(given.members), node)
        else:
            part, index = node.shape[given.axis], given.members.index(own.rank)
            begin = [0] * len(x.shape)
            end = list(x.shape)
            begin[given.axis], end[given.axis] = index * part, (index + 1) * part
            cut = StridedSlice(begin=tuple(begin), end=tuple(end), strides=(1,) * len(begin))
            made = _made_by(cut, [x], node)
        return _instead(graph, node, made, [made])

    return "its own slice instead of it" if isinstance(op, ReduceScatter) else "its own operand instead of all", edit


def _made_by(op: Op, inputs: Sequence[Value], like: Node) -> Node:
    """A node of this operator, which stands where `like` does."""
    made = copied_node(like, inputs, op)
    made.type = op.infer(*(v.type for v in inputs))  # type: ignore[misc]
    made.layout = made.in_layouts = made.in_strategy = made.out_strategy = None
    return made


def _groups(rank: Rank) -> list[tuple[int, int]]:
    return [(g, n) for g, graph in enumerate(rank.graphs) for n, node in enumerate(graph.nodes) if _meets(node)]


def _added(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    node = rank.at(place)
    groups = [p for p in _groups(rank) if rank.at(p).op.members]  # type: ignore[attr-defined]
    if not groups or not isinstance(node.type, TensorType) or not node.type.dtype.is_float:
        raise Unusable
    like, how = generator.choice(groups), generator.choice(("sum", "sum", "max"))

    def edit(own: Rank) -> Sequence[Node]:
        node, graph = own.at(place), own.graphs[place[0]]
        return _behind(graph, node, AllReduce(how).with_ranks(own.at(like).op.members))  # type: ignore[attr-defined]

    return f"AllReduce of {how} behind it", edit


def _doubled(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    if len(rank.at(place).inputs) != 1 or rank.at(place).type != rank.at(place).inputs[0].type:
        raise Unusable
    return "twice", lambda own: _behind(own.graphs[place[0]], own.at(place), own.at(place).op)


def _behind(graph: Graph, node: Node, op: Any) -> Sequence[Node]:
    """Put a node behind another, which its readers read."""
    made = copied_node(node, [node], op)
    made.instance = ""
    made.frames = ()
    made.attrs = {PLACE: -1}
    if op.infer(node.type) != node.type:
        raise Unusable
    found = readers(graph, node)
    for reader in found:
        reader.inputs[:] = [made if v is node else v for v in reader.inputs]
    graph.results = [made if v is node else v for v in graph.results]
    graph.nodes.insert(graph.nodes.index(node) + 1, made)
    return [made, *found]


# Groups, and the order of collectives


def _group(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op: Any = rank.at(place).op
    others = [p for p in _groups(rank) if rank.at(p).op.members not in ((), op.members)]  # type: ignore[attr-defined]
    if not others or not op.members:
        raise Unusable
    like = generator.choice(others)

    def edit(own: Rank) -> Sequence[Node]:
        given: Any = own.at(place).op
        return _with_op(own.at(place), given.with_ranks(own.at(like).op.members))  # type: ignore[attr-defined]

    return f"ranks {op.members} become {rank.at(like).op.members}", edit  # type: ignore[attr-defined]


def _exchanged(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op: Any = rank.at(place).op
    if len(op.members) < 2:
        raise Unusable
    i, j = generator.sample(range(len(op.members)), 2)

    def edit(own: Rank) -> Sequence[Node]:
        given: Any = own.at(place).op
        return _with_op(own.at(place), given.with_ranks(_swapped(given.members, i, j)))

    return f"slices {i} and {j} of {op.members} exchanged", edit


def _order(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    graph = rank.graphs[place[0]]
    later = [n for n, node in enumerate(graph.nodes) if n > place[1] and _meets(node)]
    for n in later[: generator.randrange(1, 4)][::-1]:
        if all(graph.nodes.index(v) < place[1] for v in graph.nodes[n].inputs if isinstance(v, Node)):
            break
    else:
        raise Unusable

    def edit(own: Rank) -> Sequence[Node]:
        nodes = own.graphs[place[0]].nodes
        one, other = nodes[place[1]], nodes[n]
        nodes.insert(place[1], nodes.pop(n))
        return [one, other]

    return f"{graph.nodes[n].label} ahead of it", edit


KINDS: dict[str, Callable[[Rank, tuple[int, int], random.Random], Drawn]] = {
    "axis": _axis,
    "offset": _offset,
    "setting": _setting,
    "constant": _constant,
    "operands exchanged": _swap,
    "operand": _operand,
    "left out": _left_out,
    "collective left out": _missing,
    "collective added": _added,
    "collective doubled": _doubled,
    "collective of another kind": _setting,
    "collective along another axis": _axis,
    "group": _group,
    "slices exchanged": _exchanged,
    "order": _order,
    "message": _offset,
}
OF_COLLECTIVES = {
    "collective left out", "collective doubled", "collective of another kind", "collective along another axis", "group",
    "slices exchanged", "order", "message",
}  # fmt: skip


def made(change: Change, ranks: Sequence[Rank]) -> list[Node]:
    """Make a change on these ranks; the nodes changed on the first one. Raises Unusable."""
    found: list[Node] = []
    for rank in ranks:
        try:
            nodes = change.edit(rank)
        except (MspcError, ValueError, TypeError, IndexError, AttributeError, AssertionError, OverflowError) as error:
            raise Unusable from error
        found = found or list(nodes)
    return found
