"""Kinds of ranks: ranks whose programs differ only in ranks, groups and offsets, with the values of these of each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mspc.compiler.rank_graphs import RankGraphs, copied
from mspc.ir.graph import Constant, Graph, Node, OpLike, Parameter, Value, copied_region
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.varying import VaryingConstant
from mspc.ops.collective.base import Collective
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem, TupleGetItems
from mspc.passes.lib.ranks import own_constant, own_op

Array = Any


STRUCTURE = (TupleGetItem, TupleGetItems, MakeTuple, Depend, MakeStack)
"""Operators that hand tensors on as they are."""
SAME_ON_ALL = (SendToStage, ReceiveFromStage, *STRUCTURE)
"""Operators that are the same on all ranks of a kind."""


@dataclass
class Meetings:
    """Meetings, by the identities of all ranks' operators, which the kind keeps. groups: those of all ranks, and
    whether all are of the kind. axes: the dimensions of the mesh along which they are, or None."""

    groups: dict[tuple[int, ...], tuple[list[tuple[int, ...]], bool]] = field(
        default_factory=dict[tuple[int, ...], "tuple[list[tuple[int, ...]], bool]"]
    )
    axes: dict[tuple[int, ...], tuple[int, ...] | None] = field(
        default_factory=dict[tuple[int, ...], "tuple[int, ...] | None"]
    )


@dataclass
class RankKind:
    """A kind of ranks.

    ranks: ascending. graph: their program, with the attributes of the first rank if ranks differ. ops: by the identity
    of an operator in the graph, those of all ranks in their order, if they differ. constants: the same of constants.
    mesh: sizes of the dimensions of the ranks, row-major.
    """

    ranks: tuple[int, ...]
    graph: Graph
    ops: dict[int, tuple[OpLike, ...]] = field(default_factory=dict[int, "tuple[OpLike, ...]"])
    constants: dict[int, tuple[Constant, ...]] = field(default_factory=dict[int, "tuple[Constant, ...]"])
    mesh: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """How many dimensions the ranks lie in."""
        return len(self.mesh)

    @cached_property
    def place(self) -> dict[int, int]:
        """The place of every rank among those of the kind."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def meetings(self) -> Meetings:
        return Meetings()

    def ops_of(self, op: OpLike) -> Sequence[OpLike]:
        """Return the operator as every rank has it; one if all have the same."""
        return self.ops.get(id(op)) or (op,)

    def runs_any(self, nodes: Sequence[Node]) -> bool:
        """Return whether it runs any of some nodes."""
        return bool(nodes) and any(not {*nodes}.isdisjoint(each.nodes) for each in self.graph.graphs())

    def find_mesh(self) -> None:
        """Choose the dimensions in which groups and slices of the ranks lie, as far as they have any in common."""
        self.mesh = _mesh(self)


def met_by(kind: RankKind, node: Node, kinds: Sequence[RankKind]) -> Iterator[tuple[RankKind, Node]]:
    """Return the nodes of other kinds whose operands may be part of the result of a node of this one."""
    given: Any = node.op
    ops: Sequence[Any] = kind.ops_of(given) if isinstance(given, Collective) else ()
    members = {rank for op in ops for rank in op.members}
    if not isinstance(given, ReceiveFromStage) and members <= {*kind.ranks}:
        return

    def meets(op: Any) -> bool:
        if isinstance(given, ReceiveFromStage):
            return isinstance(op, SendToStage) and op.sr_tag == given.sr_tag
        return type(op) is type(given) and not members.isdisjoint(op.members)

    for other in kinds:
        if other is not kind:
            yield from ((other, each) for graph in other.graph.graphs() for each in graph.nodes if meets(each.op))


def told_apart(ops: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """(those of some operators that differ, for each of them all the number of its own). Most ranks share one object
    with others, whose fields need not be looked at again."""
    identities = list(map(id, ops))
    known: dict[Any, int] = {}
    number_of = {key: known.setdefault(op, len(known)) for key, op in dict(zip(identities, ops, strict=True)).items()}
    return list(known), list(map(number_of.__getitem__, identities))


def kinds_of(graphs: RankGraphs, ranks: Iterable[int]) -> list[RankKind]:
    """Return the kinds of a compiled program's ranks, by their first ranks. Raise MspcError if a rank's graph cannot be
    made."""
    of: dict[tuple[int, object], _Members] = {}
    last = graphs.passes[-1]
    for rank in ranks:
        stages = graphs.of(rank, ())
        graph = stages.of_kind[last].graph
        key = (id(graph), rank if rank not in graphs.kind_of else None)
        if key not in of:
            of[key] = _Members(graph, rank, stages.parts)
        of[key].add(rank, stages.parts)
    return merged([members.kind() for members in of.values()])


class _Members:
    """The ranks of a kind, one after the other: each rank's own values are taken, and the rest is dropped."""

    def __init__(self, graph: Graph, first: int, parts: Sequence[Any]) -> None:
        self._graph, self._made = graph, copied(graph, first, parts)
        self._ranks: list[int] = []
        self._ops: dict[int, tuple[OpLike, list[OpLike]]] = {}
        self._known: dict[OpLike, OpLike] = {}
        """Ranks and nodes that have equal operators share one."""
        self._constants: dict[int, tuple[Value, list[Constant]]] = {}
        for each, own in zip(graph.graphs(), self._made.graphs(), strict=True):
            for node, made in zip(each.nodes, own.nodes, strict=True):
                if made.op is not node.op:
                    self._ops.setdefault(id(made.op), (node.op, []))
                self._note(node.inputs, made.inputs)
            self._note(each.results, own.results)

    def _note(self, values: Sequence[Value], made: Sequence[Value]) -> None:
        for value, own in zip(values, made, strict=True):
            if isinstance(value, VaryingConstant):
                self._constants.setdefault(id(own), (value, []))

    def add(self, rank: int, parts: Sequence[Any]) -> None:
        self._ranks.append(rank)
        for op, own in self._ops.values():
            made = own_op(op, rank, parts)
            own.append(own[-1] if own and own[-1] == made else self._known.setdefault(made, made))
        for value, constants in self._constants.values():
            constant = own_constant(value, parts)
            assert isinstance(constant, Constant)
            constants.append(constant)

    def kind(self) -> RankKind:
        """Return the kind of all ranks."""
        return RankKind(
            tuple(self._ranks),
            self._made,
            {key: tuple(own) for key, (_, own) in self._ops.items()},
            {key: tuple(own) for key, (_, own) in self._constants.items()},
        )


# Kinds that are one


def merged(kinds: Sequence[RankKind]) -> list[RankKind]:
    """Return the kinds, those whose programs have the same operators on the same values made one; each in its mesh."""
    alike: dict[Hashable, list[RankKind]] = {}
    for kind in kinds:
        alike.setdefault(_structure(kind.graph), []).append(kind)
    found = [_one(group) for group in alike.values()]
    for kind in found:
        kind.find_mesh()
    return found


def _structure(graph: Graph) -> Hashable:
    """Return a key that programs share if they differ only in attributes of operators and in constants."""
    graphs = {each: number for number, each in enumerate(graph.graphs())}
    found: list[Hashable] = []
    for each in graphs:
        numbers: dict[Value, int] = {}
        for value in each.values():
            numbers[value] = len(numbers)
        found.append(tuple((p.name, p.kind, p.type, p.layout) for p in each.parameters))
        for node in each.nodes:
            read = tuple(numbers.get(v, v.type) for v in node.inputs)
            # Ranks that send under other tags wait for others, and others than those whose loops turn as often, or that
            # take other entries of tuples, go other ways: they are not of one kind.
            alike = bool(node.regions) or isinstance(node.op, SAME_ON_ALL)
            what = node.op if alike else type(node.op)
            found.append((what, read, node.type, tuple(graphs[r] for r in node.regions)))
        found.append(tuple(numbers.get(v, v.type) for v in each.results))
    return tuple(found)


def _one(kinds: Sequence[RankKind]) -> RankKind:
    if len(kinds) == 1:
        return kinds[0]
    first = kinds[0]
    ranks = sorted((rank, number, place) for number, kind in enumerate(kinds) for place, rank in enumerate(kind.ranks))
    made = RankKind(tuple(rank for rank, _, _ in ranks), first.graph)

    def ordered(own: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        return tuple(own[number][place if len(own[number]) > 1 else 0] for _, number, place in ranks)

    for graphs in zip(*(kind.graph.graphs() for kind in kinds), strict=True):
        for nodes in zip(*(each.nodes for each in graphs), strict=True):
            own = [kind.ops_of(node.op) for kind, node in zip(kinds, nodes, strict=True)]
            if any(len(ops) > 1 or ops[0] != own[0][0] for ops in own):
                nodes[0].op = replace(nodes[0].op)  # type: ignore[type-var]  # operators are dataclasses; one of its own
                made.ops[id(nodes[0].op)] = ordered(own)
            _merge_constants(made, kinds, [node.inputs for node in nodes], ordered)
        _merge_constants(made, kinds, [each.results for each in graphs], ordered)
    return made


def _merge_constants(
    made: RankKind, kinds: Sequence[RankKind], values: Sequence[list[Value]], ordered: Callable[..., Any]
) -> None:
    for place, same in enumerate(zip(*values, strict=True)):
        own = [kind.constants.get(id(v), (v,)) for kind, v in zip(kinds, same, strict=True) if isinstance(v, Constant)]
        if own and any(len(c) > 1 or not np.array_equal(c[0].value, own[0][0].value) for c in own):
            first = own[0][0]  # others may read the same constant, of which all ranks have the same
            values[0][place] = mine = Constant(first.value, first.tensor_type.dtype)
            made.constants[id(mine)] = ordered(own)


# The mesh


def _mesh(kind: RankKind) -> tuple[int, ...]:
    count = len(kind.ranks)
    if kind.ranks != tuple(range(kind.ranks[0], kind.ranks[0] + count)):
        return (count,)
    cuts = {1, count}
    for node in kind.graph.all_nodes():
        op = kind.ops_of(node.op)[0]
        members = op.members if isinstance(op, Collective) else ()
        if len(members) > 1 and set(members) <= kind.place.keys():
            cuts |= _cuts([kind.place[rank] for rank in members])
    for parameter in kind.graph.parameters:
        cuts |= _layout_cuts(parameter, count)
    ordered = sorted(cuts)
    pairs = list(itertools.pairwise(ordered))
    if any(high % low for low, high in pairs):
        return (count,)
    return tuple(high // low for low, high in reversed(pairs)) or (1,)


def _layout_cuts(parameter: Parameter, count: int) -> set[int]:
    layout = parameter.layout
    if not isinstance(layout, Layout) or layout.ranks != count:
        return set()
    cuts, stride = set[int](), 1
    for size in reversed(layout.mesh):
        stride *= size
        cuts.add(stride)
    return cuts


def _cuts(places: Sequence[int]) -> set[int]:
    """Return the strides of the members of a group, and their ends; {} if they are along no dimensions."""
    cuts: set[int] = set()
    rest = sorted(places)
    while len(rest) > 1:
        stride = rest[1] - rest[0]
        run = 1
        while run < len(rest) and rest[run] == rest[0] + run * stride:
            run += 1
        starts = rest[::run]
        if len(rest) % run or any(
            rest[i * run + j] != start + j * stride for i, start in enumerate(starts) for j in range(run)
        ):
            return set()
        cuts |= {stride, stride * run}
        rest = starts
    return cuts


def axes_of_groups(kind: RankKind, groups: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the dimensions of the mesh along which the groups of all ranks are, in their order; None if they are not,
    or a group's order is another than that of its ranks. groups: of every rank, or one for all."""
    numbers = np.arange(len(kind.ranks)).reshape(kind.mesh)
    known: dict[int, tuple[int, Sequence[int]]] = {}
    which = [known.setdefault(id(group), (len(known), group))[0] for group in groups]  # most ranks share theirs
    distinct = [[kind.place.get(rank, -1) for rank in group] for _, group in known.values()]
    if len({len(group) for group in distinct}) > 1:
        return None
    first = np.array(np.unravel_index([max(p, 0) for p in distinct[0]], kind.mesh))
    axes = tuple(axis for axis in range(kind.depth) if len(set(first[axis].tolist())) > 1)
    size = int(np.prod([kind.mesh[axis] for axis in axes])) if axes else 1
    if len(distinct[0]) != size:
        return None
    rest = [axis for axis in range(kind.depth) if axis not in axes]
    rows = numbers.transpose(*rest, *axes).reshape(-1, size)
    row_of = np.empty(len(kind.ranks), np.int64)
    row_of[rows] = np.arange(len(rows))[:, None]
    given = np.array(distinct)
    found = row_of[given[:, 0]]
    same = np.array_equal(rows[found], given) and np.array_equal(np.broadcast_to(found[which], row_of.shape), row_of)
    return axes if same else None


# Kinds of ranks are divided: a kind runs node by node with all of its ranks, and some may have to go on alone.
#
# Ranks may have equal programs except for their partners, and one of them may wait for a message that another sends
# only later. If nothing goes on any more, a kind some of whose ranks could is divided, and the step begins again. So is
# one whose ranks go different ways because of their data.


MAX_PARTS = 64
"""Into more parts a kind is not divided: something is wrong there."""


class Divided(Exception):
    """Ranks of a kind do not go on together. parts: their numbers."""

    def __init__(self, kind: RankKind, parts: Sequence[Sequence[int]]) -> None:
        super().__init__(f"ranks {list(map(list, parts))} do not go on together")
        self.kind, self.parts = kind, parts


def by_key(kind: RankKind, keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the ranks of a kind in parts of one key. keys: of every rank in its order."""
    found: dict[Hashable, list[int]] = {}
    for rank, key in zip(kind.ranks, keys, strict=True):
        found.setdefault(key, []).append(rank)
    return list(found.values())


def divided(kinds: Sequence[RankKind], error: Divided) -> list[RankKind]:
    """Return the kinds with the one that the error names in parts."""
    found: list[RankKind] = []
    for kind in kinds:
        found += [_part(kind, ranks) for ranks in error.parts] if kind is error.kind else [kind]
    return found


def _part(kind: RankKind, ranks: Sequence[int]) -> RankKind:
    """Return some ranks of a kind, with a graph of their own, because findings are stored by node."""
    made = RankKind(tuple(ranks), copied_region(kind.graph))
    places = [kind.place[rank] for rank in ranks]
    known: dict[int, Value] = {}

    def own(value: Value) -> Value:
        given = kind.constants.get(id(value))
        if given is None:
            return value
        if id(value) not in known:
            mine = tuple(given[place] for place in places)
            known[id(value)] = Constant(mine[0].value, mine[0].tensor_type.dtype)
            made.constants[id(known[id(value)])] = mine
        return known[id(value)]

    for graph in made.graph.graphs():
        for node in graph.nodes:
            ops = kind.ops.get(id(node.op))
            if ops is not None:
                mine = tuple(ops[place] for place in places)
                node.op = replace(mine[0])  # type: ignore[type-var]  # operators are dataclasses; one of its own
                made.ops[id(node.op)] = mine
            node.inputs = [own(value) for value in node.inputs]
        graph.results = [own(value) for value in graph.results]
    made.find_mesh()
    return made


# Arrays hold the values of all ranks of one kind: the leading dimensions are those of the kind's mesh, of size 1 if the
# ranks along them have equal values; after them come those of a rank's own tensor.


Shape = tuple[int, ...]


def common_lead(arrays: Iterable[Array], depth: int) -> Shape:
    """Broadcast the leading dimensions of arrays that have `depth` of them each."""
    return np.broadcast_shapes((1,) * depth, *(array.shape[:depth] for array in arrays))


def own_shape(array: Array, depth: int) -> Shape:
    """Return the shape of a rank's own tensor."""
    return array.shape[depth:]


def aligned(arrays: Sequence[Array], depth: int, least: int = 0) -> list[Array]:
    """Return the arrays with as many own dimensions each, at least so many, new ones of size 1 before the others."""
    rank = max([least, *(array.ndim - depth for array in arrays)])
    return [
        array.reshape(*array.shape[:depth], *(1,) * (rank + depth - array.ndim), *array.shape[depth:])
        for array in arrays
    ]


def widened(array: Array, lead: Shape) -> Array:
    """Return a view of the array whose leading dimensions are `lead`."""
    return np.broadcast_to(array, (*lead, *array.shape[len(lead) :]))


def parts_of(value: Any) -> tuple[Array, ...]:
    """Return the tensors of a value, which is one or a tuple of them."""
    return value if isinstance(value, tuple) else (value,)


def one_or_all(arrays: Sequence[Array]) -> Any:
    """Return the only tensor, or a tuple of several."""
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


def mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """Return the value with each of its tensors changed."""
    return tuple(mapped(part, change) for part in value) if isinstance(value, tuple | list) else change(value)


def block_by_block(
    run: Callable[..., Any], arrays: Sequence[Array], depth: int, along: Sequence[Array] | None = None
) -> Any:
    """Call `run` on the arrays at every place along the leading dimensions in which some of them (`along`, else all)
    differ, one place after the other, and stack the results."""
    axes = wide_axes(arrays if along is None else along, depth)
    if not axes:
        return run(*arrays)
    lead = common_lead(arrays, depth)
    sizes = [lead[axis] for axis in axes]
    found: list[Any] = []
    for places in itertools.product(*map(range, sizes)):
        own = list(arrays)
        for axis, place in zip(axes, places, strict=True):
            own = [_at(array, axis, place) for array in own]
        found.append(run(*own))
    return _joined(found, sizes, axes)


def _joined(blocks: list[Any], sizes: Sequence[int], axes: Sequence[int]) -> Any:
    if isinstance(blocks[0], tuple):
        return tuple(_joined(list(part), sizes, axes) for part in zip(*blocks, strict=True))
    for axis, size in zip(reversed(axes), reversed(sizes), strict=True):
        blocks = [np.concatenate(blocks[i : i + size], axis) for i in range(0, len(blocks), size)]
    return blocks[0]


def _at(array: Array, axis: int, place: int) -> Array:
    if array.shape[axis] == 1:
        return array
    return array[(slice(None),) * axis + (slice(place, place + 1),)]


def wide_axes(arrays: Iterable[Array], depth: int) -> list[int]:
    """Return the leading dimensions along which some array has different values."""
    lead = common_lead(arrays, depth)
    return [axis for axis, size in enumerate(lead) if size > 1]


def flat(array: Array, lead: Shape) -> Array:
    """Return the array with one leading dimension, of all ranks in their order."""
    own = array.shape[len(lead) :]
    return np.ascontiguousarray(widened(array, lead)).reshape(math.prod(lead), *own)


def on_mesh(rows: Array, mesh: Shape) -> Array:
    """Return the array with the leading dimensions of a mesh, narrowed. rows: of all ranks in their order."""
    return narrowed(rows.reshape(*mesh, *rows.shape[1:]), len(mesh))


def rows_by_rank(parts: Iterable[tuple[RankKind, Array]]) -> dict[int, Array]:
    """Return every rank's own tensor of the arrays of several kinds."""
    return {rank: row for kind, part in parts for rank, row in zip(kind.ranks, flat(part, kind.mesh), strict=True)}


def narrowed(array: Array, depth: int) -> Array:
    """Return the array with leading dimensions of size 1 if its values along them are equal, bit for bit."""
    for axis in range(depth):
        if array.shape[axis] > 1:
            first = array[(slice(None),) * axis + (slice(0, 1),)]
            if np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=array.dtype.kind in "fc"):
                array = np.ascontiguousarray(first)
    return array


# Ranks that store the same tensors are compared together though they are of several kinds.


@dataclass(frozen=True)
class Together:
    """A value of all ranks of a family. kind: the ranks and the dimensions in which they lie. nodes: that make it, by
    kind."""

    kind: RankKind
    value: Array
    nodes: tuple[tuple[RankKind, Node], ...]


def alike(kinds: Sequence[RankKind]) -> list[list[RankKind]]:
    """Return the kinds in families that store the same tensors."""
    found: dict[Hashable, list[RankKind]] = {}
    for kind in kinds:
        found.setdefault(tuple((p.name, p.type) for p in kind.graph.parameters), []).append(kind)
    return list(found.values())


class Families:
    """Puts values of several kinds together, once all of them have come."""

    def __init__(self, kinds: Sequence[RankKind]) -> None:
        groups = alike(kinds)
        self._members = {id(kind): group for group in groups for kind in group}
        self._joint: dict[int, RankKind] = {}
        for group in groups:
            joint = RankKind(tuple(sorted(r for kind in group for r in kind.ranks)), group[0].graph)
            joint.find_mesh()
            self._joint.update((id(kind), joint if len(group) > 1 else kind) for kind in group)
        self._names: dict[tuple[int, Node, int], Hashable] = {}
        self._count: dict[int, Counter[Hashable]] = {id(kind): Counter() for kind in kinds}
        self._waiting: dict[Hashable, dict[int, tuple[RankKind, Node, Array]]] = {}

    def joint(self, kind: RankKind) -> RankKind:
        """Return the ranks of the family and the dimensions in which they lie."""
        return self._joint[id(kind)]

    def note(self, kind: RankKind, key: Hashable, node: Node, number: int) -> None:
        """Say in the order of a program that a node's tensor of that number has a key."""
        count = self._count[id(kind)]
        count[key] += 1
        self._names[id(kind), node, number] = (key, count[key])

    def together(
        self, kind: RankKind, node: Node, number: int, value: Array, around: tuple[int, ...]
    ) -> Iterator[Together]:
        """Return the value of all ranks of the family, if this was the last part of it. Nothing if its kinds have
        unequal numbers of values of this key."""
        members = self._members[id(kind)]
        if len(members) == 1:
            yield Together(kind, value, ((kind, node),))
            return
        key, place = self._names[id(kind), node, number]  # type: ignore[misc]  # a pair
        if len({self._count[id(each)][key] for each in members}) > 1:
            return
        name = (id(members[0]), key, place, around)
        found = self._waiting.setdefault(name, {})
        found[id(kind)] = kind, node, value
        if len(found) < len(members):
            return
        del self._waiting[name]
        joint = self._joint[id(kind)]
        rows = rows_by_rank((each, array) for each, _, array in found.values())
        if len({row.shape for row in rows.values()}) == 1:
            made = on_mesh(np.stack([rows[rank] for rank in joint.ranks]), joint.mesh)
            yield Together(joint, made, tuple((each, own) for each, own, _ in found.values()))


# Slices of global arrays for all ranks of a kind at once.


class Slices:
    """The slices of global arrays on the ranks of a kind, by layout; results are cached for many arrays."""

    def __init__(self, kind: RankKind) -> None:
        self.kind = kind
        self._places: dict[Layout, tuple[Array, list[int]]] = {}

    def of(self, array: Array, layout: Layout | None, padded: Sequence[int] = ()) -> Array:
        """Return the slices, with leading dimensions of size 1 if they are the same. padded: the shape of a slice that
        ends in zeros where the array ends."""
        depth = self.kind.depth
        if padded:
            whole = padded if layout is None else [n * m for n, m in zip(padded, layout.strategy, strict=True)]
            array = np.pad(array, [(0, n - m) for n, m in zip(whole, array.shape, strict=True)])
        if layout is None or not any(layout.dims):
            return np.array(array).reshape((1,) * depth + np.shape(array))
        which, ranks = self._found(layout)
        parts = [array[layout.chunk_for(rank, array.shape)] for rank in ranks]
        return np.array(np.stack(parts)[which])

    def lead(self, layout: Layout | None) -> tuple[int, ...]:
        """Return the leading dimensions of the slices."""
        if layout is None or not any(layout.dims):
            return (1,) * self.kind.depth
        return self._found(layout)[0].shape

    def _found(self, layout: Layout) -> tuple[Array, list[int]]:
        """(for every place in the mesh, of size 1 if it does not matter, the number of its slice, a rank of each)."""
        if layout not in self._places:
            known: dict[tuple[int, ...], tuple[int, int]] = {}
            found = [known.setdefault(layout.slice_index(rank), (len(known), rank)) for rank in self.kind.ranks]
            which = narrowed(np.array([number for number, _ in found]).reshape(self.kind.mesh), self.kind.depth)
            self._places[layout] = which, [rank for _, rank in known.values()]
        return self._places[layout]
