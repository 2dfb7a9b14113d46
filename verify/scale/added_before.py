"""Says of a part of a sum whether it can be what ranks should have added up, where something behind it is wrong."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Node, Value
from mspc.ir.iterative import iterative
from mspc.ops.math.arithmetic import Add, AddN
from mspc.verify.scale.kinds import STRUCTURE, RankKind
from mspc.verify.scale.odd_ranks import ranks_in_words
from mspc.verify.scale.readers import Readers, adds_up
from mspc.verify.scale.relations import CLOSE, Relation, added, ranks_along

Array = Any


class AddedBefore:
    """The parts of sums that a wrong value reads. told: what is known of values that are one device's. joint: the ranks
    in whose dimensions that is."""

    def __init__(
        self, wrong: Node, kind: RankKind, joint: RankKind, readers: Readers, told: Mapping[Node, Relation]
    ) -> None:
        self._wrong, self._kind, self._joint, self._readers, self._told = wrong, kind, joint, readers, told

    def may_be(self, part: Node) -> bool:
        """Whether one sum of this part would do: all parts that are read come of it, and nobody adds up later what
        others make of it, which would be a sum of equal numbers then."""
        axes = {*self._told[part].summed}
        return self._are_of(part, axes) and not self._is_added_later(part, axes)

    def is_forgotten(self, part: Node, reader: Node) -> bool:
        """Whether ranks add a part up for nobody, which its reader should have read."""
        axes = {*self._told[part].summed}
        direct = [each for each in self._readers.of(part) if isinstance(each, Node)]
        handed = [n for each in direct if isinstance(each.op, STRUCTURE) for n in self._readers.of(each)]
        return any(
            axes & added_along(each, self._kind, self._joint)
            for each in (*direct, *handed)
            if isinstance(each, Node) and adds_up(each) and each is not reader and not self._readers.is_read(each)
        )

    def _are_of(self, part: Node, axes: set[int]) -> bool:
        """Whether all parts that the wrong value reads are made of this one."""
        explained: dict[Node, bool] = {part: True}

        @iterative
        def is_of(node: Node) -> Generator[Any, bool, bool]:
            if node not in explained:
                explained[node] = True  # while it is looked for: what a loop carries is made of what it was
                # A sum is a part of one where all that is added is.
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
        """The parts of sums that a value is, or is made of."""
        if isinstance(value, Node) and (value in self._told or adds_up(value)):
            return self._summed([value], axes)
        return self._read(value, axes)

    def _read(self, value: Value, axes: set[int]) -> list[Node]:
        """The parts of sums that a value is made of."""
        return self._summed(self._readers.sources(value, self._told, linear=True), axes)

    def _summed(self, nodes: Sequence[Node], axes: set[int]) -> list[Node]:
        return [node for node in nodes if node in self._told and axes & {*self._told[node].summed}]

    def _is_added_later(self, part: Node, axes: set[int]) -> bool:
        seen: set[Value] = {self._wrong}
        waiting: list[Value] = [part]
        while waiting:
            for reader in self._readers.of(waiting.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                if isinstance(reader, Node) and adds_up(reader):
                    if self._readers.is_read(reader) and axes & added_along(reader, self._kind, self._joint):
                        return True
                elif self._stays_part(reader, axes):
                    waiting.append(reader)
        return False

    def _stays_part(self, reader: Value, axes: set[int]) -> bool:
        """Whether what is made of a part is one. Of what is not known it is, where it only hands tensors on."""
        if not isinstance(reader, Node):
            return True
        if reader in self._told:
            return bool(axes & {*self._told[reader].summed})
        return isinstance(reader.op, STRUCTURE) or bool(reader.regions)


def added_along(node: Node, kind: RankKind, joint: RankKind) -> set[int]:
    """Along which dimensions of the mesh of `joint` a node of a kind adds up."""
    found: set[int] = set()
    for op in kind.ops_of(node.op):
        places = [joint.place[rank] for rank in op.members if rank in joint.place]  # type: ignore[attr-defined]  # a collective's
        if places:
            coordinates = np.array(np.unravel_index(places, joint.mesh))
            found |= {axis for axis, own in enumerate(coordinates) if own.min() < own.max()}
    return found


def sum_over_others(
    node: Node, kind: RankKind, operands: Sequence[Array], results: Sequence[Array], told: Mapping[Node, Relation]
) -> str:
    """What is wrong with a sum over other ranks than have parts of it, "" where it is what it should be."""
    axes = added_along(node, kind, kind)
    for value, read, made in zip(node.inputs, operands, results, strict=True):
        parts = told.get(value) if isinstance(value, Node) else None
        if parts is None or not parts.summed or axes == {*parts.summed}:
            continue
        if not np.allclose(added(read, kind, parts.summed), made, CLOSE, 0):
            op: Any = node.op
            theirs = ranks_in_words(ranks_along(kind, parts.summed))
            return f"it adds up over {ranks_in_words(op.members)}, and {value.label} is a part of a sum over {theirs}"
    return ""
