"""Finds what values of ranks are of one device's: slices, copies, or parts of sums; and the first value that is none.

A value of a rank is compared with that of the operator of the script that it is of. It is found among the pieces of
one device's value by a product with a random vector, which tells pieces apart; so no layout that a pass has chosen is
trusted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.math.reduce import ReduceMean
from mspc.verify.marks import MARK
from mspc.verify.scale.families import Families, Together
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.spread import mapped, parts_of, widened

Array = Any
CLOSE = 1e-9
"""How far a product with a random vector may be off, relative to the size of what is multiplied."""
MOST_PIECES = 4096
MOST_WRONG = 64
"""Nodes with wrong values after which no more are looked for."""


@dataclass(frozen=True)
class Relation:
    """What a value of all ranks of a kind is. summed: dimensions of the ranks' mesh along which it has to be added up
    first. how: "sum", or "mean" where the sum has to be divided by the number of ranks."""

    summed: tuple[int, ...] = ()
    how: str = "sum"


@dataclass(frozen=True)
class FirstWrong:
    """The first value that is none of one device's. reads: what its operands are, in words. equals: what it would be
    right as, in words, "" where nothing is known. ranks: those that have a wrong one."""

    kind: RankKind
    node: Node
    ranks: tuple[int, ...]
    reads: tuple[str, ...]
    equals: str


def relation(value: Array, whole: Array, kind: RankKind, is_mean: bool = False) -> Relation | None:
    """What a value with leading dimensions is of a whole value; None: nothing that is known. is_mean: whether its
    operator takes means, which of parts are parts of a mean."""
    pieces = _pieces(whole, value.shape[kind.depth :])
    if pieces is None:
        return None
    generator = np.random.default_rng(len(pieces))
    vector = generator.standard_normal(pieces.shape[1])
    wanted = pieces @ vector
    size = float(np.max(np.abs(pieces), initial=0.0)) * math.sqrt(max(pieces.shape[1], 1)) or 1.0
    wide_axes = [axis for axis, n in enumerate(kind.mesh) if n > 1]
    for count in range(len(wide_axes) + 1):
        for axes in itertools.combinations(wide_axes, count):
            added = _added(value, kind, axes)
            found = added.reshape(*added.shape[: kind.depth], -1) @ vector
            ways = {"sum": found}
            if is_mean:
                ways["mean"] = found / math.prod(kind.mesh[axis] for axis in axes)
            for how, made in ways.items():
                if _all_among(made, wanted, size) and _is_regular(made, wanted, size):
                    return Relation(axes, how)
    return None


def scaled(value: Array, whole: Array, kind: RankKind) -> float | None:
    """The number by which a value is too large everywhere; None where there is no such number."""
    pieces = _pieces(whole, value.shape[kind.depth :])
    if pieces is None:
        return None
    vector = np.random.default_rng(len(pieces)).standard_normal(pieces.shape[1])
    wanted = np.unique(pieces @ vector)
    first = float((value.reshape(-1, pieces.shape[1]) @ vector)[0])
    size = float(np.max(np.abs(pieces), initial=0.0)) * math.sqrt(max(pieces.shape[1], 1)) or 1.0
    for factor in (first / w for w in wanted[:64] if abs(w) > 1e-3 * size and math.isfinite(first)):
        near = round(factor) if abs(factor) >= 1 else 1 / round(1 / factor) if factor else 0
        if near not in (0, 1) and abs(factor - near) < 1e-6 * abs(near):
            if _all_among((value / near).reshape(-1, pieces.shape[1]) @ vector, wanted, size):
                return float(near)
    return None


def _added(value: Array, kind: RankKind, axes: Sequence[int]) -> Array:
    lead = tuple(kind.mesh[a] if a in axes else value.shape[a] for a in range(kind.depth))
    return widened(value, lead).sum(tuple(axes), keepdims=True) if axes else value


def _pieces(whole: Array, own: tuple[int, ...]) -> Array | None:
    """The pieces of this shape of which a value with a dimension of places is made, a row each; None where it is not
    made of such."""
    local = (1, *own)
    if len(local) != whole.ndim or any(not n or total % n for n, total in zip(local, whole.shape, strict=True)):
        return None
    counts = [total // n for n, total in zip(local, whole.shape, strict=True)]
    if math.prod(counts) > MOST_PIECES:
        return None
    split = whole.reshape([n for pair in zip(counts, local, strict=True) for n in pair])
    order = [2 * i for i in range(len(local))] + [2 * i + 1 for i in range(len(local))]
    return np.asarray(split.transpose(order).reshape(math.prod(counts), -1), np.float64)


def _is_regular(found: Array, wanted: Array, size: float) -> bool:
    """Whether ranks have the pieces as slices of a mesh: along each of its dimensions all the same, or each another."""
    ordered = np.unique(wanted)
    if len(ordered) < len(wanted) or (len(ordered) > 1 and np.min(np.diff(ordered)) <= 2 * CLOSE * size):
        return True  # pieces that are equal tell nothing
    numbers = np.argmin(np.abs(found.reshape(-1, 1) - ordered), 1).reshape(found.shape)
    axes = [
        axis
        for axis in range(found.ndim)
        if not (numbers == np.take(numbers, [0], axis)).all()
    ]
    return len(np.unique(numbers)) == math.prod(found.shape[axis] for axis in axes)


def _all_among(found: Array, wanted: Array, size: float) -> bool:
    ordered = np.sort(wanted)
    at = np.searchsorted(ordered, found)
    low, high = ordered[np.clip(at - 1, 0, len(ordered) - 1)], ordered[np.clip(at, 0, len(ordered) - 1)]
    apart = np.minimum(np.abs(found - low), np.abs(found - high))
    return bool((apart <= CLOSE * size).all())


# Values that belong together


def keyed(graph: Graph) -> Iterator[tuple[Hashable, Node, int]]:
    """Of a program every operator of the script, with a key that programs share: (key, node, number of the tensor in
    its result). Several may have one key. A node that is fused of several says where one of these stands, so that its
    key is the operator's name."""
    for each in graph.graphs():
        for node in each.nodes:
            for number, name in _named(node):
                mark = node.attrs.get(MARK)
                if isinstance(mark, tuple):
                    mark = mark[number[1]]
                if mark is not None:
                    yield (mark, name), node, number[0]
                elif isinstance(node.op, FusedElementwise):
                    yield name, node, number[0]
                elif node.frames:
                    yield _where(node), node, number[0]


def _where(node: Node) -> Hashable:
    return (node.scope, node.op.name, node.phase, tuple(map(str, node.frames)), node.instance)


def _named(node: Node) -> Iterator[tuple[tuple[int, int], str]]:
    """((number of the tensor in the result, of the line that makes it), operator) of a node's results."""
    if isinstance(node.op, FusedElementwise):
        lines = steps_of(node.op)
        for place, line in enumerate(node.op.returns):
            yield (place, line), lines[line].op.name
    elif len(element_types(node.type)) == 1:
        yield (0, 0), node.op.name


Known = Mapping[Node, Mapping[tuple[int, ...], Any]]
"""Values of the reference by node, and by the turns of the loops around; with a leading dimension of its places."""
Whole = tuple[Node, int]
"""A value of one device: the node, and the number of the tensor in its result."""


class Watch:
    """Looks at every value that ranks compute, whether it is one of one device's.

    right: nodes whose values are. whole: whether the step has been run to its end.
    """

    def __init__(self, one: Graph, values: Known, kinds: Sequence[RankKind]) -> None:
        self._wrong: dict[Node, FirstWrong] = {}
        self.right: set[Node] = set()
        self.whole = True
        known: dict[Hashable, list[Whole]] = {}
        for key, node, number in keyed(one):
            known.setdefault(key, []).append((node, number))
            known.setdefault(node.op.name, []).append((node, number))
        self._wholes: dict[tuple[int, Node], list[tuple[int, list[Whole]]]] = {}
        self._families = Families(kinds)
        for kind in kinds:
            for key, node, number in keyed(kind.graph):
                self._families.note(kind, key, node, number)
                if key in known:
                    self._wholes.setdefault((id(kind), node), []).append((number, known[key]))
        self._values = values
        self._said: dict[Node, str] = {}

    @property
    def first(self) -> FirstWrong | None:
        """The first value that is none of one device's, and of which something is computed that is none, either: a
        rank may come to right values in another way than one device."""
        kinds = {id(wrong.kind): wrong.kind for wrong in self._wrong.values()}
        readers = {number: Readers(kind.graph) for number, kind in kinds.items()}
        looked = self.right | self._wrong.keys()
        for node, wrong in self._wrong.items():
            if not set(wrong.ranks) & set(wrong.kind.ranks) or self._also_right(node):
                continue  # another kind of the family has what is wrong, or the wrong line may be of a pass
            found = [n for n in readers[id(wrong.kind)].next(node, looked) if n in looked]
            if not found or any(n in self._wrong for n in found):
                return wrong
        return None

    def __call__(self, kind: RankKind, node: Node, result: Any, around: tuple[int, ...]) -> None:
        if len(self._wrong) >= MOST_WRONG:
            return
        parts = parts_of(result)
        for number, wholes in self._wholes.get((id(kind), node), ()):
            if isinstance(parts[number], list) or parts[number].dtype.kind != "f":
                continue
            for value in self._families.together(kind, node, number, parts[number], around):
                self._look(value, list(self._fitting(value.value.shape[value.kind.depth :], wholes, around)))

    def _look(self, value: Together, fitting: Sequence[Array]) -> None:
        """Note what a value is of those of one device that have pieces of its shape."""
        mean = any(isinstance(node.op, ReduceMean) for _, node in value.nodes)
        relations = (relation(value.value, whole, value.kind, mean) for whole in fitting)
        found = next((each for each in relations if each is not None), None)
        for kind, node in value.nodes:
            if found is not None:
                self.right.add(node)
                ranks = math.prod(value.kind.mesh[a] for a in found.summed)
                self._said[node] = f"a part of a {found.how} over {ranks} ranks" if found.summed else "right"
            elif fitting and node not in self._wrong:
                self._wrong[node] = self._described(kind, node, value, fitting[0])

    def _also_right(self, node: Node) -> bool:
        """Whether another line of a fused node is one of the script's; then this one may be of a pass."""
        return isinstance(node.op, FusedElementwise) and node in self.right

    def _fitting(self, local: tuple[int, ...], wholes: Sequence[Whole], around: tuple[int, ...]) -> Iterator[Array]:
        """Values of one device that have pieces of this shape."""
        for of, place in wholes:
            by_turn = self._values.get(of, {})
            whole = by_turn.get(around, by_turn.get(around[:1]))
            if whole is None or isinstance(parts_of(whole)[place], list):
                continue
            wanted = np.asarray(parts_of(whole)[place])
            if _pieces(wanted, local) is not None:
                yield wanted

    def _described(self, kind: RankKind, node: Node, value: Together, whole: Array) -> FirstWrong:
        reads = tuple(
            f"input {i} is {self._said[v]}"
            for i, v in enumerate(node.inputs)
            if isinstance(v, Node) and v in self._said and self._said[v] != "right"
        )
        factor = scaled(value.value, whole, value.kind)
        equals = "" if factor is None else f"it is the right value times {factor:g}"
        return FirstWrong(kind, node, self._ranks(value.kind, value.value, whole), reads, equals)

    def _ranks(self, kind: RankKind, value: Array, whole: Array) -> tuple[int, ...]:
        pieces = _pieces(whole, value.shape[kind.depth :])
        assert pieces is not None
        vector = np.random.default_rng(0).standard_normal(pieces.shape[1])
        wanted = pieces @ vector
        size = float(np.max(np.abs(pieces), initial=0.0)) * math.sqrt(max(pieces.shape[1], 1)) or 1.0
        found = np.broadcast_to(
            (value.reshape(*value.shape[: kind.depth], -1) @ vector), kind.mesh
        ).reshape(-1)
        wrong = tuple(r for r, f in zip(kind.ranks, found, strict=True) if not _all_among(np.array([f]), wanted, size))
        return wrong or kind.ranks  # each has a piece, and not that of its place


def known_values(seen: dict[Node, dict[tuple[int, ...], Any]]) -> Any:
    """What is told of every value of the reference, to keep it. seen: by node, and by the turns of the loops around."""

    def note(kind: RankKind, node: Node, result: Any, around: tuple[int, ...]) -> None:
        seen.setdefault(node, {})[around] = mapped(result, np.asarray)

    return note
