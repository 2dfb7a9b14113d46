"""Lets values of two programs be of the same dimensions that stand for the same value of the script."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.verify.marks import MARK, mark_of_line
from mspc.verify.scale.dimensions import Product
from mspc.verify.scale.sizes import Sizing


@dataclass(frozen=True)
class Tied:
    """A tensor of a program, and its dimensions. phase: of its node."""

    type: TensorType
    dims: list[Product]
    phase: str


@dataclass(frozen=True)
class Marked:
    """The key of a value by the number of its operator ahead of sharding, and what it is: on a rank it may have become
    several."""

    mark: int
    name: str


def tie(sizing: Sizing, one: Graph, other: Graph) -> None:
    """Tie two programs: a dimension of which a rank has one element is not told from one of size 1 otherwise, as the
    heads where every rank has one."""
    by_place = not any(MARK in node.attrs for each in one.graphs() for node in each.nodes)
    known, tied = _by_key(sizing, one, by_place), _by_key(sizing, other, by_place)
    for key, values in tied.items():
        for whole, own in _pairs(known.get(key, ()), values):
            if isinstance(key, Marked) or _may_be_piece(whole, own):
                sizing.same([whole.dims], [own.dims])


def _may_be_piece(whole: Tied, own: Tied) -> bool:
    """Whether a value that stands at the same place is thought to be a piece of another. Several gradients stand at one
    place: of these only those are that have one element along a dimension that has several."""
    pairs = list(zip(whole.type.shape, own.type.shape, strict=True))
    if not all(mine and n % mine == 0 for n, mine in pairs):
        return False
    return own.phase != "backward" or any(mine == 1 < n for n, mine in pairs)


def _by_key(sizing: Sizing, graph: Graph, by_place: bool) -> dict[Hashable, list[Tied]]:
    found: dict[Hashable, list[Tied]] = {}
    for each in graph.graphs():
        for node in each.nodes:
            for number, key in enumerate(_keys_of(node, by_place)):
                if key is not None:
                    tied = Tied(element_types(node.type)[number], sizing.dims(node)[number], node.phase)
                    found.setdefault(key, []).append(tied)
    return found


def _pairs(known: Sequence[Tied], values: Sequence[Tied]) -> Iterator[tuple[Tied, Tied]]:
    """Which of several values of one key are the same: one by one, or all where one device has them of one type."""
    pairs: Iterable[tuple[Tied, Tied]] = ()
    if len(known) == len(values):
        pairs = zip(known, values, strict=True)
    elif len({value.type for value in known}) == 1:
        pairs = ((known[0], value) for value in values)
    return (pair for pair in pairs if len(pair[0].dims) == len(pair[1].dims))


def _keys_of(node: Node, by_place: bool) -> list[Hashable]:
    """For each tensor of a node's result what it is known by: its mark; by_place: of programs without marks, as a
    folder's files, the place of the script that it stands at; None where that is not known, either."""
    number = node.attrs.get(MARK)
    tensors = len(element_types(node.type))
    if isinstance(node.op, FusedElementwise):
        lines = steps_of(node.op)
        marks = [mark_of_line(number, i, len(lines)) for i in node.op.returns]
        names = (lines[i].op.name for i in node.op.returns)
        return [None if mark is None else Marked(mark, name) for mark, name in zip(marks, names, strict=True)]
    if isinstance(number, int):
        return [Marked(number, node.op.name)] if tensors == 1 else [None] * tensors
    if not (by_place and node.frames):
        return [None] * tensors
    where = (node.scope, node.op.name, node.phase, tuple(map(str, node.frames)), node.instance)
    return [(where, place) for place in range(tensors)]
