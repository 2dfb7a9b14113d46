"""Finds the source of a wrong value: the first place that reads parts of a sum before they are added up."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ranks_listed
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative, reached
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.bases import Elementwise
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.tensor.reshape import Cast, ReductionOp
from mspc.verify.scale.compared import written
from mspc.verify.scale.rank_kinds import STRUCTURE, RankKind, alike
from mspc.verify.scale.readers import Readers, adds_up, moves_or_adds
from mspc.verify.scale.relations import CLOSE, Identities, Relation, added, keyed, ranks_along, times


class ReadOnOne:
    """The values that updates read on one device, by the parameters that they write."""

    def __init__(self, one: Graph, identities: Identities) -> None:
        self._identities = identities
        self._readers = Readers(one)
        self._known = {node for _, node, _ in keyed(one)}
        self._updates = written(one)

    def another(self, name: str, value: Value, readers: Readers, relations: Relations) -> str:
        """Say that an operand of an update of the ranks comes from other values than that of one device, or "" if it
        does not or is unknown."""
        updates = (update for update, names in self._updates.items() if name in names)
        expected = {source for update in updates for source in self._sources(update)}
        for node in _nearest(value, readers, relations):
            found = {maker for maker, _ in self._identities.of(node)} if node in relations else set()
            if found and expected and found.isdisjoint(expected):
                return f"it reads a value that {node.label} gives for {name}, and one device reads another value"
        return ""

    def _sources(self, node: Node) -> Iterator[Node]:
        """Return the known values that a node reads, and those that they are moved or converted from."""
        for source in self._readers.sources(node, self._known, moved=True):
            yield source
            if source in self._known and (isinstance(source.op, Cast) or moves_or_adds(source.op)):
                yield from self._sources(source)


# Ranks that store the same tensors should run the same program; a single change in the program of a few is found.


FEW = 2
"""Number of nodes in a row that may be others: one that is in the place of one, or moved past it."""


@dataclass(frozen=True)
class Odd:
    """A difference between programs. kind, node: a node that only these ranks have, or only the others. ranks: those
    that differ. words: describes it. even: as many run the one as the other."""

    kind: RankKind
    node: Node
    ranks: tuple[int, ...]
    words: str
    even: bool = False

    def may_stop(self, failing: Sequence[RankKind], waiting: Sequence[RankKind]) -> bool:
        """Return whether it may be why kinds fail, or wait for others that never come."""
        op = self.node.op
        if isinstance(op, Collective) and op.communicates:
            return True
        kinds = [*failing, *(waiting if not self.even else ())]
        return any(not {*kind.ranks}.isdisjoint(self.ranks) for kind in kinds)


def odd_one(kinds: Sequence[RankKind]) -> Odd | None:
    """Return the first change, or None if all ranks that store the same run the same, or more of it differs."""
    for family in alike(kinds):
        *few, others = sorted(family, key=lambda each: len(each.ranks))
        for kind in few:
            found = _change(kind, others)
            if found is not None:
                return replace(found, even=len(kind.ranks) == len(others.ranks))
    return None


def _change(kind: RankKind, others: RankKind) -> Odd | None:
    changes: list[Odd] = []
    ours, theirs = list(kind.graph.graphs()), list(others.graph.graphs())
    if len(ours) != len(theirs):
        return None
    for mine, given in zip(ours, theirs, strict=True):
        ours_said, theirs_said = list(map(_said, mine.nodes)), list(map(_said, given.nodes))
        known: dict[Hashable, int] = {}
        pairs = zip(_computed(mine, ours_said, known), _computed(given, theirs_said, known), strict=False)
        begin = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(mine.nodes), len(given.nodes)))
        first, second = _between(ours_said, theirs_said, begin)
        moved = _moved([ours_said[i] for i in first], [theirs_said[i] for i in second])
        if moved is not None:
            changes.append(_does(kind, mine.nodes[first[moved]]))
            continue
        if len(first) > FEW or len(second) > FEW:
            return None
        if second and len(second) > len(first):
            node = given.nodes[second[0]]
            words = f"{node.label} is run by all like them but {ranks_listed(kind.ranks)}"
            changes.append(Odd(others, node, kind.ranks, words))
        elif first:
            changes.append(_does(kind, mine.nodes[first[0]]))
        else:
            changes += [_does(kind, node) for node in _read_otherwise(mine, given)]
    return changes[0] if len(changes) == 1 else None


def _does(kind: RankKind, node: Node) -> Odd:
    return Odd(kind, node, kind.ranks, f"{node.label} is run like this by {ranks_listed(kind.ranks)} alone")


def _between(first: Sequence[Hashable], second: Sequence[Hashable], begin: int) -> tuple[range, range]:
    """Strip the common beginning, of a given length, and end of two lists."""
    shorter = min(len(first), len(second))
    end = 0
    while end < shorter - begin and first[-1 - end] == second[-1 - end]:
        end += 1
    return range(begin, len(first) - end), range(begin, len(second) - end)


def _moved(first: Sequence[Hashable], second: Sequence[Hashable]) -> int | None:
    """Return the place in the first of two lists of the only element that is elsewhere in the second."""
    if len(first) != len(second) or len(first) < 2:
        return None
    if first[1:] == second[:-1] and first[0] == second[-1]:
        return 0
    return len(first) - 1 if first[:-1] == second[1:] and first[-1] == second[0] else None


def _said(node: Node) -> Hashable:
    return (node.op.name, node.type, node.scope, node.phase, node.name, tuple(map(str, node.frames)))


def _computed(graph: Graph, said: Sequence[Hashable], known: dict[Hashable, int]) -> list[int]:
    """Return a number for each node, equal for nodes that are said the same and computed from the same values: of nodes
    of one line, as of a loop, these tell which one others lack."""
    numbers: dict[Value, int] = {}
    for node, own in zip(graph.nodes, said, strict=True):
        read = [numbers.get(v, v.name if isinstance(v, Parameter) else v.type) for v in node.inputs]
        numbers[node] = known.setdefault((own, *read), len(known))
    return [numbers[node] for node in graph.nodes]


def _read_otherwise(mine: Graph, given: Graph) -> list[Node]:
    """Return the nodes that read other values, of two graphs with the same nodes."""
    places = [{value: place for place, value in enumerate(graph.values())} for graph in (mine, given)]

    def read(node: Node, of: dict[Value, int]) -> list[Hashable]:
        return [of.get(value, value.type) for value in node.inputs]

    pairs = zip(mine.nodes, given.nodes, strict=True)
    return [one for one, other in pairs if read(one, places[0]) != read(other, places[1])]


# A part of a sum that should have been added up explains a wrong value after it.


Array = Any


class AddedBefore:
    """The parts of sums that a wrong value reads. joint: the ranks in whose dimensions the known relations of values to
    one device's hold."""

    def __init__(
        self, wrong: Node, kind: RankKind, joint: RankKind, readers: Readers, relations: Relations
    ) -> None:
        self._wrong, self._kind, self._joint, self._readers, self._relations = wrong, kind, joint, readers, relations

    def may_be(self, part: Node) -> bool:
        """Return whether one sum of this part would do: all parts that are read come from it, and no later sum adds up
        values derived from it, which would then be a sum of equal numbers."""
        axes = {*self._relations[part].summed}
        return self._are_of(part, axes) and not self._is_added_later(part, axes)

    def is_forgotten(self, part: Node, reader: Node) -> bool:
        """Return whether ranks add a part up for nobody, which its reader should have read."""
        axes = {*self._relations[part].summed}
        direct = [each for each in self._readers.of(part) if isinstance(each, Node)]
        handed = [n for each in direct if isinstance(each.op, STRUCTURE) for n in self._readers.of(each)]
        return any(
            axes & added_along(each, self._kind, self._joint)
            for each in (*direct, *handed)
            if isinstance(each, Node) and adds_up(each) and each is not reader and not self._readers.is_read(each)
        )

    def _are_of(self, part: Node, axes: set[int]) -> bool:
        """Return whether all parts that the wrong value reads are made of this one."""
        explained: dict[Node, bool] = {part: True}

        @iterative
        def is_of(node: Node) -> Generator[Any, bool, bool]:
            if node not in explained:
                explained[node] = True  # during the search: a value carried by a loop comes from its earlier value
                # A sum is a part of one if all its terms are.
                added = isinstance(node.op, Add | AddN)
                read = [self._parts_of(value, axes) for value in node.inputs] if added else [self._read(node, axes)]
                for each in read:
                    explained[node] = bool(each)
                    for other in each:
                        explained[node] = explained[node] and (yield (other,))
                    if not explained[node]:
                        break
            return explained[node]

        return all(map(is_of, self._read(self._wrong, axes)))

    def _parts_of(self, value: Value, axes: set[int]) -> list[Node]:
        """Return the parts of sums that a value is, or is made of."""
        if isinstance(value, Node) and (value in self._relations or adds_up(value)):
            return self._summed([value], axes)
        return self._read(value, axes)

    def _read(self, value: Value, axes: set[int]) -> list[Node]:
        """Return the parts of sums that a value is made of."""
        return self._summed(self._readers.sources(value, self._relations, linear=True), axes)

    def _summed(self, nodes: Sequence[Node], axes: set[int]) -> list[Node]:
        return [node for node in nodes if node in self._relations and axes & {*self._relations[node].summed}]

    def _is_added_later(self, part: Node, axes: set[int]) -> bool:
        def readers(value: Value) -> list[Value]:
            return [reader for reader in self._readers.of(value) if reader is not self._wrong]

        def onward(value: Value) -> list[Value]:
            return readers(value) if not adds_up(value) and self._stays_part(value, axes) else []

        sums = [each for each in reached(readers(part), onward) if isinstance(each, Node) and adds_up(each)]
        return any(self._readers.is_read(n) and axes & added_along(n, self._kind, self._joint) for n in sums)

    def _stays_part(self, reader: Value, axes: set[int]) -> bool:
        """Return whether a result computed from a part is one. Unknown nodes count only if they hand tensors on."""
        if not isinstance(reader, Node):
            return True
        if reader in self._relations:
            return bool(axes & {*self._relations[reader].summed})
        return isinstance(reader.op, STRUCTURE) or bool(reader.regions)


def added_along(node: Node, kind: RankKind, joint: RankKind) -> set[int]:
    """Return the dimensions of the mesh of `joint` along which a node of a kind adds up."""
    found: set[int] = set()
    for op in kind.ops_of(node.op):
        places = [joint.place[rank] for rank in op.members if rank in joint.place]  # type: ignore[attr-defined]  # a collective's
        if places:
            coordinates = np.array(np.unravel_index(places, joint.mesh))
            found |= {axis for axis, own in enumerate(coordinates) if own.min() < own.max()}
    return found


def sum_over_others(
    node: Node, kind: RankKind, operands: Sequence[Array], results: Sequence[Array], relations: Relations
) -> str:
    """Say which error a sum over other ranks than have its parts makes, or ""."""
    axes = added_along(node, kind, kind)
    for value, read, made in zip(node.inputs, operands, results, strict=True):
        parts = relations.get(value) if isinstance(value, Node) else None
        if parts is None or not parts.summed or axes == {*parts.summed}:
            continue
        if not np.allclose(added(read, kind, parts.summed), made, CLOSE, 0):
            op: Any = node.op
            theirs = ranks_listed(ranks_along(kind, parts.summed))
            return f"it adds up over {ranks_listed(op.members)}, and {value.label} is a part of a sum over {theirs}"
    return ""


ADDED_UP = "it would be right were these added up before"
Relations = Mapping[Node, Relation]
"""Known relations of values to one device's."""


@dataclass(frozen=True)
class FirstWrong:
    """The first value that differs from one device's, or its source. reads: describes its operands. equals: describes a
    change that would make it right, "" if none is known. ranks: those with a wrong one. is_of_parts: it would be right
    if the parts of sums that it reads were added up before. factor: the factor by which it is too large, if known."""

    kind: RankKind
    node: Node
    ranks: tuple[int, ...]
    reads: tuple[str, ...]
    equals: str
    is_of_parts: bool = False
    factor: float | None = None


def blamed(wrong: FirstWrong, joint: RankKind, readers: Readers, relations: Relations) -> FirstWrong:
    """Find the place that reads parts of a sum too early. joint: the ranks in whose dimensions values are known as
    parts.

    Parts of a sum may pass through linear operators and be added up after them. So the first operator is blamed that
    reads parts of a kind that the program elsewhere adds up before, as between a matmul and a reshape, else the first
    that reads them as no others are read.
    """
    path = _parts(wrong.node, readers, relations)
    if not wrong.is_of_parts and path and _is_of_wholes(path[0], readers, relations):
        behind = f"{wrong.node.label} makes the first value that is none of one device's"
        return replace(wrong, node=path[0], reads=(behind,), equals="it is right on some ranks alone")
    if not wrong.is_of_parts or not path:
        return _in_another_order(wrong, joint, readers, relations) or wrong
    repaired = replace(wrong, reads=(*wrong.reads, ADDED_UP))
    usual = _usual_readers(readers, relations, {*path})
    added = AddedBefore(wrong.node, wrong.kind, joint, readers, relations)
    places = list(zip(path, [*path[1:], wrong.node], strict=True))
    for part, reader in places:
        if added.is_forgotten(part, reader):
            return repaired if reader is wrong.node else _at(wrong, reader, relations)
    if all(relations[part].equal for part in path) and added.may_be(path[0]):
        # Equal numbers are no parts that something has made: a factor is wrong there.
        return _at(wrong, path[0], relations)
    possible = [(part, reader) for part, reader in places if added.may_be(part)]
    like_others = readers.places_of_sums()
    for part, reader in possible:
        if (reader.phase, part.op.name, reader.op.name) in like_others:
            return repaired if reader is wrong.node else _at(wrong, reader, relations)
    for part, reader in possible:
        if _is_met(part, readers, relations):
            return _at(wrong, part, relations)
        sources = [s for s in readers.sources(reader, relations, linear=True) if s in relations and relations[s].summed]
        pairs = {("", reader.op.name), *((source.op.name, reader.op.name) for source in sources)}
        if pairs.isdisjoint(usual):
            return repaired if reader is wrong.node else _at(wrong, reader, relations)
    return repaired


def misplaced(wrong: FirstWrong, readers: Readers, relations: Relations, one: ReadOnOne) -> FirstWrong | None:
    """Find an update that reads slices in another order than those that it overwrites, or than they are gathered in, or
    another value than on one device; None if there is none."""
    for group in operand_groups(wrong.node):
        held = next((readers.stored(value) for value, changes in group if changes), None)
        for value, changes in group:
            if changes or held is None or value.shape[-len(held.shape) :] != held.shape:
                continue
            if another := one.another(held.name, value, readers, relations):
                return replace(wrong, reads=(), equals=another)
            gathered = _gathered(value, readers, relations)
            if gathered is not None and (said := gathered_otherwise(gathered, wrong.kind)):
                return replace(wrong, node=gathered, reads=(), equals=said)
            if gathered is None:
                expected, read = _held_order(held, wrong.kind), value
            else:
                expected, read = _gathered_order(gathered, wrong.kind, readers, relations), gathered.inputs[0]
            node = _first_in_order(read, expected, readers, relations, wrong.kind)
            if node is not None:
                where = held.name if gathered is None else f"what {gathered.label} puts together for {held.name}"
                return replace(wrong, node=node, reads=(), equals=_order(relations[node].places, expected, where))
    return None


def _held_order(held: Parameter, kind: RankKind) -> dict[int, int]:
    """Return the slice of a parameter that every rank has."""
    layout = held.layout
    if not isinstance(layout, Layout) or not any(layout.dims):
        return {}
    return {rank: int(np.ravel_multi_index(layout.slice_index(rank), layout.strategy)) for rank in kind.ranks}


def _gathered(value: Value, readers: Readers, relations: Relations) -> Node | None:
    """Return the node that puts slices together for a value of which nothing is known."""
    if not isinstance(value, Node) or value in relations:
        return None
    near = (value, *readers.sources(value, relations, True))
    return next((node for node in near if isinstance(node.op, AllGather) and node not in relations), None)


def gathered_otherwise(node: Node, kind: RankKind) -> str:
    """Say that a node gathers slices in another order than that of its ranks, or ""."""
    ops: Sequence[Any] = kind.ops_of(node.op) if isinstance(node.op, AllGather) else ()
    is_right = all([*op.members] == sorted(op.members) for op in ops)
    return "" if is_right else "it puts slices together in another order than that of its ranks"


def _gathered_order(node: Node, kind: RankKind, readers: Readers, relations: Relations) -> dict[int, int]:
    """Return the slice that every rank should have so that they are put together in their order."""
    near = _nearest(node.inputs[0], readers, relations)
    places = next((relations[n].places for n in near if n in relations and relations[n].places), {})
    expected: dict[int, int] = {}
    for op in kind.ops_of(node.op):
        assert isinstance(op, AllGather)
        if all(rank in places for rank in op.members):
            expected |= zip(op.members, sorted(places[rank] for rank in op.members), strict=True)
    return expected


def _nearest(value: Value, readers: Readers, relations: Relations) -> list[Node]:
    """Return the value itself if its relation is known, else the nearest nodes before it whose relations are known."""
    return [value] if isinstance(value, Node) and value in relations else readers.sources(value, relations, moved=True)


def operand_groups(node: Node) -> list[list[tuple[Value, bool]]]:
    """Return the operands of every update that a node makes, each with whether that overwrites it."""
    op: Any = node.op
    width = getattr(op, "width", 0) or max(len(node.inputs), 1)
    operands = [(value, i in op.mutates) for i, value in enumerate(node.inputs)]
    return [operands[start : start + width] for start in range(0, len(operands), width)]


def _first_in_order(
    value: Value, expected: Mapping[int, int], readers: Readers, relations: Relations, kind: RankKind
) -> Node | None:
    """Return the first node on the way to a value from which on its slices are in another order than expected."""
    near = _nearest(value, readers, relations)
    found = next((node for node in near if node in relations and _differ(relations[node].places, expected)), None)
    seen: set[Node] = set()
    source = found
    while source is not None:
        found = source
        seen.add(found)
        places, turned = relations[found].places, turned_axes(relations[found].places, kind)
        before = [node for node in readers.known_before(found, relations) if node not in seen]
        source = next((node for node in before if relations[node].places == places), None)
        if source is None and turned:
            source = next((node for node in before if turned_axes(relations[node].places, kind) & turned), None)
    return found


def turned_axes(places: Mapping[int, int], kind: RankKind) -> set[int]:
    """Return the dimensions of the ranks' mesh along which slices lie in no rising order."""
    if any(rank not in places for rank in kind.ranks):
        return set()
    numbers = np.array([places[rank] for rank in kind.ranks]).reshape(kind.mesh)
    return {axis for axis in range(numbers.ndim) if (np.diff(numbers, axis=axis) < 0).any()}


def _differ(places: Mapping[int, int], expected: Mapping[int, int]) -> bool:
    ranks = expected.keys() & places.keys()
    return any(places[r] != expected[r] for r in ranks) and {places[r] for r in ranks} == {expected[r] for r in ranks}


def _order(places: Mapping[int, int], expected: Mapping[int, int], name: str) -> str:
    rank = next(rank for rank in expected if places[rank] != expected[rank])
    return (
        f"its slices lie in another order on the ranks than those of {name}: rank {rank} has slice {places[rank]}, and "
        f"of {name} slice {expected[rank]}"
    )


def _in_another_order(wrong: FirstWrong, kind: RankKind, readers: Readers, relations: Relations) -> FirstWrong | None:
    """Find an operator whose operands have slices in different orders on the ranks. kind: the ranks in whose dimensions
    these are."""
    near = [node for node in readers.sources(wrong.node, relations) if node in relations and relations[node].places]
    straight = [node for node in near if not turned_axes(relations[node].places, kind)]
    beside = (readers.stored(value) for value in wrong.node.inputs if isinstance(wrong.node.op, Elementwise))
    for held in (each for each in beside if each is not None and each.shape == wrong.node.shape):
        expected = _held_order(held, kind)
        node = _first_in_order(wrong.node, expected, readers, relations, kind)
        if node is not None:
            return replace(wrong, node=node, reads=(), equals=_order(relations[node].places, expected, held.name))
    for value in near:
        if value not in straight:
            other = next((o for o in straight if _differ(relations[value].places, relations[o].places)), None)
            if other is not None:
                node = _first_in_order(value, relations[other].places, readers, relations, kind) or value
                said = _order(relations[node].places, relations[other].places, f"what {other.label} gives")
                return replace(wrong, node=node, reads=(), equals=said)
    return None


def _at(wrong: FirstWrong, node: Node, relations: Relations) -> FirstWrong:
    found = relations[node]
    words = f"the right value times {times(1 / found.ranks, wrong.kind)}" if found.equal else found.words
    behind = (f"{wrong.node.label} makes the first value of it that is none", *wrong.reads, ADDED_UP)
    return replace(wrong, node=node, ranks=wrong.kind.ranks, reads=behind, equals=f"it is {words}")


def parts_read(node: Node, readers: Readers, relations: Relations) -> dict[int, tuple[int, ...]]:
    """Return the dimensions along which operands have to be added up, by the numbers of the operands."""
    found: dict[int, tuple[int, ...]] = {}
    for number, value in enumerate(node.inputs):
        if isinstance(value, Node) and not adds_up(value):
            source = value if value in relations else _source(value, readers, relations, ())
            if source is not None and relations[source].summed:
                found[number] = relations[source].summed
    return found


def _parts(node: Node, readers: Readers, relations: Relations) -> list[Node]:
    """Return the nodes whose values are parts of sums, each computed from the one before, up to an operand of
    `node`."""
    path: list[Node] = []
    value: Node | None = node
    while value is not None:
        value = _source(value, readers, relations, path)
        if value is not None:
            path.insert(0, value)
    return path


def _is_of_wholes(part: Node, readers: Readers, relations: Relations) -> bool:
    """Return whether a value that seems to be a part of a sum is computed element by element from values that are none:
    ranks with a wrong one add nothing to the sum, as one of zeros."""
    if not isinstance(part.op, Elementwise) or not relations[part].alone:
        return False
    return not any(source in relations and relations[source].summed for source in readers.sources(part, relations))


def _source(node: Node, readers: Readers, relations: Relations, path: Collection[Node]) -> Node | None:
    """Return the last node on the way to a value that is a part of a sum, or None."""
    for source in readers.sources(node, relations, linear=True):
        if source in relations and relations[source].summed and source not in path:
            # A result linear in parts of a sum is a part of one over these ranks, too.
            if node not in relations or set(relations[source].summed) <= set(relations[node].summed):
                return source
    return None


def _is_met(node: Node, readers: Readers, relations: Relations) -> bool:
    """Return whether a node reads a sum over ranks, element by element, together with a part of that sum."""
    if not isinstance(node.op, Elementwise | AddN | FusedElementwise) and not moves_or_adds(node.op):
        return False
    if isinstance(node.op, FusedElementwise) and any(isinstance(step.op, ReductionOp) for step in steps_of(node.op)):
        return False  # it makes parts of its own
    for value in node.inputs:
        while isinstance(value, Node) and isinstance(value.op, STRUCTURE):
            value = value.inputs[0]
        if adds_up(value):
            sources = (source for source in readers.sources(value, relations, True) if source in relations)
            if any(set(relations[node].summed) <= set(relations[source].summed) for source in sources):
                return True
    return False


def _usual_readers(readers: Readers, relations: Relations, aside: Collection[Node]) -> set[tuple[str, str]]:
    """Return the operators by which other parts of sums than those of a wrong value are read: (of the part, of the
    reader)."""
    found = readers.added_later()
    for node, own in relations.items():
        if own.summed and node not in aside:
            for source in readers.sources(node, relations):
                if source in relations and relations[source].summed:
                    found.add((source.op.name, node.op.name))
    return found


# A sum over ranks may take a part several times, as a second sum of a sum does.


@dataclass(frozen=True)
class Repeated:
    """A sum that takes every part several times. times: how often. words: describes it."""

    node: Node
    times: int
    words: str


class SumsTaken:
    """Known relations of all tensors, also of sums over ranks; and sums of values that are none of their parts."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Value, int], Relation] = {}
        self._repeated: dict[Node, Repeated] = {}

    def tell(self, node: Node, number: int, relation: Relation) -> None:
        """Note that a tensor in a node's result is this."""
        self._tensors[node, number] = relation

    def note(self, node: Node, kind: RankKind) -> None:
        """Note that a node adds up over ranks."""
        axes = added_along(node, kind, kind)
        for number, value in enumerate(node.inputs):
            known = self._tensors.get(tensor_of(value))
            if known is None:
                continue
            more = axes - {*known.summed}
            if more:
                times = math.prod(kind.mesh[axis] for axis in more)
                self._repeated[node] = Repeated(node, times, _words(node, value, known, kind))
            else:
                left = tuple(axis for axis in known.summed if axis not in axes)
                ranks = math.prod(kind.mesh[axis] for axis in left)
                self._tensors[node, number] = Relation(left, known.how, ranks)

    def repeated(self, node: Node, factor: float, readers: Readers, relations: Relations) -> Repeated | None:
        """Return the first sum that makes a value, or its divisor, too large by this factor; sums before whole values
        are skipped."""
        def sources(value: Any) -> list[Value]:
            is_whole = value is not node and value in relations and not relations[value].summed
            return [] if is_whole else readers.read_by(value)

        before = (self._repeated.get(each) for each in reached([node], sources) if isinstance(each, Node))
        factors = (round(factor), round(1 / factor))
        found = [each for each in before if each is not None and each.node is not node and each.times in factors]
        return found[-1] if found else None


def _words(node: Node, value: Value, known: Relation, kind: RankKind) -> str:
    members = ranks_listed(node.op.members)  # type: ignore[union-attr]  # a collective's
    label = value.label if isinstance(value, Node) else value.name
    if not known.summed:
        return f"it adds up over {members}, and {label} is no part of a sum"
    theirs = ranks_listed(ranks_along(kind, known.summed))
    return f"it adds up over {members}, and {label} is a part of a sum over {theirs}"


def tensor_of(value: Value) -> tuple[Value, int]:
    """Return the value whose result a value is a tensor of, and the number of the tensor."""
    if isinstance(value, Node) and isinstance(value.op, TupleGetItem):
        return value.inputs[0], value.op.index
    return value, 0
