"""Finds where a wrong value comes from: the place from which on parts of a sum are read that should be added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.bases import Elementwise
from mspc.ops.collective.collectives import AllGather
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.math.arithmetic import AddN
from mspc.ops.tensor.broadcast import ReductionOp
from mspc.verify.scale.added_before import AddedBefore
from mspc.verify.scale.kinds import STRUCTURE, RankKind
from mspc.verify.scale.read_on_one import ReadOnOne
from mspc.verify.scale.readers import Readers, adds_up, moves_or_adds
from mspc.verify.scale.relations import Relation, times

ADDED_UP = "it would be right were these added up before"
Told = Mapping[Node, Relation]
"""What is known of values that are one device's."""


@dataclass(frozen=True)
class FirstWrong:
    """The first value that is none of one device's, or the one that it comes of. reads: what its operands are, in
    words. equals: what it would be right as, in words, "" where nothing is known. ranks: those that have a wrong one.
    is_of_parts: it would be right were the parts of sums that it reads added up before. factor: by which it is too
    large, where that is known.
    """

    kind: RankKind
    node: Node
    ranks: tuple[int, ...]
    reads: tuple[str, ...]
    equals: str
    is_of_parts: bool = False
    factor: float | None = None


def blamed(wrong: FirstWrong, joint: RankKind, readers: Readers, told: Told) -> FirstWrong:
    """Where parts of a sum are read that should be added up before. joint: the ranks in whose dimensions values are
    told to be parts.

    A sum of parts may go through operators that are linear in it. Where it is right to be added up behind these, others
    are; so the first operator is told that reads parts where others of the program are added up, as between a product
    and a reshape, else the first one that reads them as no others are read.
    """
    path = _parts(wrong.node, readers, told) if wrong.is_of_parts else []
    if not path:
        return _in_another_order(wrong, joint, readers, told) or wrong
    repaired = replace(wrong, reads=(*wrong.reads, ADDED_UP))
    usual = _usual_readers(readers, told, {*path})
    added = AddedBefore(wrong.node, wrong.kind, joint, readers, told)
    places = list(zip(path, [*path[1:], wrong.node], strict=True))
    for part, reader in places:
        if added.is_forgotten(part, reader):
            return repaired if reader is wrong.node else _at(wrong, reader, told)
    if all(told[part].equal for part in path) and added.may_be(path[0]):
        return _at(wrong, path[0], told)  # equal numbers are no parts that something has made: a factor is wrong there
    possible = [(part, reader) for part, reader in places if added.may_be(part)]
    like_others = readers.places_of_sums()
    for part, reader in possible:
        if (reader.phase, part.op.name, reader.op.name) in like_others:
            return repaired if reader is wrong.node else _at(wrong, reader, told)
    for part, reader in possible:
        if _is_met(part, readers, told):
            return _at(wrong, part, told)
        sources = [s for s in readers.sources(reader, told, linear=True) if s in told and told[s].summed]
        pairs = {("", reader.op.name), *((source.op.name, reader.op.name) for source in sources)}
        if pairs.isdisjoint(usual):
            return repaired if reader is wrong.node else _at(wrong, reader, told)
    return repaired


def misplaced(wrong: FirstWrong, readers: Readers, told: Told, one: ReadOnOne) -> FirstWrong | None:
    """Where an update reads slices that lie in another order on the ranks than those that it overwrites, or than they
    are gathered in, or the update where it reads another value than that of one device; None where it reads none."""
    for group in operand_groups(wrong.node):
        held = next((readers.stored(value) for value, changes in group if changes), None)
        for value, changes in group:
            if changes or held is None or value.shape[-len(held.shape) :] != held.shape:
                continue
            if another := one.another(held.name, value, readers, told):
                return replace(wrong, reads=(), equals=another)
            gathered = _gathered(value, readers, told)
            if gathered is not None and _is_out_of_order(gathered, wrong.kind):
                said = "it puts slices together in another order than that of its ranks"
                return replace(wrong, node=gathered, reads=(), equals=said)
            if gathered is None:
                expected, read = _held_order(held, wrong.kind), value
            else:
                expected, read = _gathered_order(gathered, wrong.kind, readers, told), gathered.inputs[0]
            node = _first_in_order(read, expected, readers, told, wrong.kind)
            if node is not None:
                where = held.name if gathered is None else f"what {gathered.label} puts together for {held.name}"
                return replace(wrong, node=node, reads=(), equals=_order(told[node].places, expected, where))
    return None


def _held_order(held: Parameter, kind: RankKind) -> dict[int, int]:
    """Which slice of a parameter every rank has."""
    layout = held.layout
    if not isinstance(layout, Layout) or not any(layout.dims):
        return {}
    return {rank: int(np.ravel_multi_index(layout.slice_index(rank), layout.strategy)) for rank in kind.ranks}


def _gathered(value: Value, readers: Readers, told: Told) -> Node | None:
    """The node that puts slices together for a value of which nothing is known."""
    if not isinstance(value, Node) or value in told:
        return None
    near = (value, *readers.sources(value, told, True))
    return next((node for node in near if isinstance(node.op, AllGather) and node not in told), None)


def _is_out_of_order(node: Node, kind: RankKind) -> bool:
    groups = [op.members for op in kind.ops_of(node.op) if isinstance(op, AllGather)]
    return any(list(group) != sorted(group) for group in groups)


def _gathered_order(node: Node, kind: RankKind, readers: Readers, told: Told) -> dict[int, int]:
    """Which slice every rank should have so that they are put together in their order."""
    (read,) = node.inputs
    near = [read] if isinstance(read, Node) and read in told else readers.sources(read, told, True)
    places = next((told[n].places for n in near if n in told and told[n].places), {})
    expected: dict[int, int] = {}
    for op in kind.ops_of(node.op):
        assert isinstance(op, AllGather)
        if all(rank in places for rank in op.members):
            expected |= zip(op.members, sorted(places[rank] for rank in op.members), strict=True)
    return expected


def operand_groups(node: Node) -> list[list[tuple[Value, bool]]]:
    """The operands of every update that a node makes, each with whether that overwrites it."""
    op: Any = node.op
    width = getattr(op, "width", 0) or max(len(node.inputs), 1)
    operands = [(value, i in op.mutates) for i, value in enumerate(node.inputs)]
    return [operands[start : start + width] for start in range(0, len(operands), width)]


def _first_in_order(
    value: Value, expected: Mapping[int, int], readers: Readers, told: Told, kind: RankKind
) -> Node | None:
    """The first node from which on what a value is made of lies in another order than expected: the ranks have the same
    slices, or of others those that lie in no order either."""
    near = [value] if isinstance(value, Node) and value in told else readers.sources(value, told, True)
    found = next((node for node in near if node in told and _differ(told[node].places, expected)), None)
    seen: set[Node] = set()
    source = found
    while source is not None:
        found = source
        seen.add(found)
        places, turned = told[found].places, turned_axes(told[found].places, kind)
        before = [node for node in readers.known_before(found, told) if node not in seen]
        source = next((node for node in before if told[node].places == places), None)
        if source is None and turned:
            source = next((node for node in before if turned_axes(told[node].places, kind) & turned), None)
    return found


def turned_axes(places: Mapping[int, int], kind: RankKind) -> set[int]:
    """The dimensions of the ranks' mesh along which slices lie in no rising order."""
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


def _in_another_order(wrong: FirstWrong, kind: RankKind, readers: Readers, told: Told) -> FirstWrong | None:
    """Where an operator reads slices that lie on the ranks in another order than others that it reads. kind: the ranks
    in whose dimensions these lie."""
    near = [node for node in readers.sources(wrong.node, told) if node in told and told[node].places]
    straight = [node for node in near if not turned_axes(told[node].places, kind)]
    for value in near:
        if value not in straight:
            other = next((o for o in straight if _differ(told[value].places, told[o].places)), None)
            if other is not None:
                node = _first_in_order(value, told[other].places, readers, told, kind) or value
                said = _order(told[node].places, told[other].places, f"what {other.label} gives")
                return replace(wrong, node=node, reads=(), equals=said)
    return None


def _at(wrong: FirstWrong, node: Node, told: Told) -> FirstWrong:
    found = told[node]
    words = f"the right value times {times(1 / found.ranks, wrong.kind)}" if found.equal else found.words
    behind = (f"{wrong.node.label} makes the first value of it that is none", *wrong.reads, ADDED_UP)
    return replace(wrong, node=node, ranks=wrong.kind.ranks, reads=behind, equals=f"it is {words}")


def parts_read(node: Node, readers: Readers, told: Told) -> dict[int, tuple[int, ...]]:
    """Along which dimensions operands have to be added up, by their numbers."""
    found: dict[int, tuple[int, ...]] = {}
    for number, value in enumerate(node.inputs):
        if isinstance(value, Node) and not adds_up(value):
            source = value if value in told else _source(value, readers, told, ())
            if source is not None and told[source].summed:
                found[number] = told[source].summed
    return found


def _parts(node: Node, readers: Readers, told: Told) -> list[Node]:
    """Nodes whose values are parts of sums, each made of the one before, up to what a node reads."""
    path: list[Node] = []
    value: Node | None = node
    while value is not None:
        value = _source(value, readers, told, path)
        if value is not None:
            path.insert(0, value)
    return path


def _source(node: Node, readers: Readers, told: Told, path: Collection[Node]) -> Node | None:
    """The last node that a value is made of whose value is a part of a sum; None where there is none."""
    for source in readers.sources(node, told, linear=True):
        if source in told and told[source].summed and source not in path:
            # What is linear in parts of a sum is a part of one over these ranks, too.
            if node not in told or set(told[source].summed) <= set(told[node].summed):
                return source
    return None


def _is_met(node: Node, readers: Readers, told: Told) -> bool:
    """Whether a node reads what ranks have added up, element by element, and it is a part of that sum still."""
    if not isinstance(node.op, Elementwise | AddN | FusedElementwise) and not moves_or_adds(node.op):
        return False
    if isinstance(node.op, FusedElementwise) and any(isinstance(step.op, ReductionOp) for step in steps_of(node.op)):
        return False  # it makes parts of its own
    for value in node.inputs:
        while isinstance(value, Node) and isinstance(value.op, STRUCTURE):
            value = value.inputs[0]
        if adds_up(value):
            sources = (source for source in readers.sources(value, told, True) if source in told)
            if any(set(told[node].summed) <= set(told[source].summed) for source in sources):
                return True
    return False


def _usual_readers(readers: Readers, told: Told, aside: Collection[Node]) -> set[tuple[str, str]]:
    """By which operators parts of sums are read that are no matter of a wrong value: (of the part, of the reader)."""
    found = readers.added_later()
    for node, own in told.items():
        if own.summed and node not in aside:
            for source in readers.sources(node, told):
                if source in told and told[source].summed:
                    found.add((source.op.name, node.op.name))
    return found

