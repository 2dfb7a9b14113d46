"""Random single changes of programs that ranks execute: one edit, made on all ranks of a kind or on one rank.

An edit is drawn on one rank's graph and says what to do at a place in graphs of the same nodes, in terms of what each
rank has there. Every node has a number (`PLACE`) that edits keep; a node that is put in has the next free ones.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.graph import Graph, Node, Value, copied_node
from tests.graphs import MspcError, Op, TensorType
from tests.operators import AllGather, AllReduce, Concat, ReduceScatter, StridedSlice
from tests.verify.scale.changes_of_nodes import (
    PLACE,
    Change,
    Drawn,
    Rank,
    Unusable,
    meets,
    operands_exchanged,
    other_axis,
    other_constant,
    other_offset,
    other_operand,
    other_setting,
    swapped,
    with_op,
)


def numbered(graph: Graph) -> None:
    """Give all nodes of a graph and its regions their numbers."""
    for number, node in enumerate(graph.all_nodes()):
        node.attrs[PLACE] = number


def rank_of(rank: int, graph: Graph) -> Rank:
    """A rank's graph and the graphs in it."""
    return Rank(rank, list(graph.graphs()))


def draw(rank: Rank, generator: random.Random, kinds: Sequence[str] = ()) -> Change:
    """A change of one of some kinds, of all that change programs of mspc if none are given, drawn on this rank's graph.
    Raises Unusable."""
    what = generator.choice(kinds or [kind for kind in KINDS if kind != STALE])
    collectives = what in OF_COLLECTIVES
    places = [
        (g, n)
        for g, graph in enumerate(rank.graphs)
        for n, node in enumerate(graph.nodes)
        if isinstance(node.op, Op) and (not collectives or meets(node))
    ]
    if not places:
        raise Unusable
    place = generator.choice(places)
    said, edit = KINDS[what](rank, place, generator)
    return Change(what, f"{rank.at(place).label}: {said}", edit)


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
    if node in graph.results and not made and isinstance(value, Node):
        found.append(value)  # so that who reads the graph's results is found
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
    return [(g, n) for g, graph in enumerate(rank.graphs) for n, node in enumerate(graph.nodes) if meets(node)]


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


STALE = "stale gradient"


def _stale(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    """The readers of a gradient read an earlier form of it, or a state of its type. `place` is not used."""
    graph = rank.graphs[0]
    number = generator.randrange(1, len(graph.results)) if len(graph.results) > 1 else 0
    gradient = graph.results[number]
    before = [gradient]
    seen = {gradient}
    for value in before:
        new = [each for each in (value.inputs if isinstance(value, Node) else ()) if each not in seen]
        seen.update(new)
        before += new
    states = [each for each in graph.parameters if each.kind != "input"]
    known = {value: at for at, value in enumerate((*graph.parameters, *graph.nodes))}
    others = [
        known[each] for each in (*before, *states)
        if each is not gradient and each in known and each.type == gradient.type
    ]  # fmt: skip
    if not isinstance(gradient, Node) or not others:
        raise Unusable
    at = generator.choice(others)
    label = [*graph.parameters, *graph.nodes][at].name

    def edit(own: Rank) -> Sequence[Node]:
        graph = own.graphs[0]
        gradient, value = graph.results[number], [*graph.parameters, *graph.nodes][at]
        assert isinstance(gradient, Node)
        first = graph.nodes.index(gradient)
        found = [node for node in graph.nodes[first:] if gradient in node.inputs]
        for reader in found:
            reader.inputs[:] = [value if v is gradient else v for v in reader.inputs]
        graph.results = [value if v is gradient else v for v in graph.results]
        return [gradient, *found, *([value] if isinstance(value, Node) else [])]

    return f"gradient {number} is {label!r}", edit


# Groups, and the order of collectives


def _group(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op: Any = rank.at(place).op
    others = [p for p in _groups(rank) if rank.at(p).op.members not in ((), op.members)]  # type: ignore[attr-defined]
    if not others or not op.members:
        raise Unusable
    like = generator.choice(others)

    def edit(own: Rank) -> Sequence[Node]:
        given: Any = own.at(place).op
        return with_op(own.at(place), given.with_ranks(own.at(like).op.members))  # type: ignore[attr-defined]

    return f"ranks {op.members} become {rank.at(like).op.members}", edit  # type: ignore[attr-defined]


def _exchanged(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    op: Any = rank.at(place).op
    if len(op.members) < 2:
        raise Unusable
    i, j = generator.sample(range(len(op.members)), 2)

    def edit(own: Rank) -> Sequence[Node]:
        given: Any = own.at(place).op
        return with_op(own.at(place), given.with_ranks(swapped(given.members, i, j)))

    return f"slices {i} and {j} of {op.members} exchanged", edit


def _order(rank: Rank, place: tuple[int, int], generator: random.Random) -> Drawn:
    graph = rank.graphs[place[0]]
    later = [n for n, node in enumerate(graph.nodes) if n > place[1] and meets(node)]
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
    "axis": other_axis,
    "offset": other_offset,
    "setting": other_setting,
    "constant": other_constant,
    "operands exchanged": operands_exchanged,
    "operand": other_operand,
    "left out": _left_out,
    "collective left out": _missing,
    "collective added": _added,
    "collective doubled": _doubled,
    "collective of another kind": other_setting,
    "collective along another axis": other_axis,
    "group": _group,
    "slices exchanged": _exchanged,
    "order": _order,
    "message": other_offset,
    STALE: _stale,
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
