"""Relates values of ranks to those of one device: slices, copies, or parts of sums.

A value of a rank is found among the pieces of one device's value by its dot product with a random vector, which
identifies pieces; so no layout that a pass has chosen is trusted.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.verify.scale.rank_kinds import RankKind, flat, widened

Array = Any
CLOSE = 1e-9
"""The tolerance of a dot product with a random vector, relative to the size of the operands."""
MAX_PIECES = 4096
FAR = 1e3
"""Numbers that are so many times the usual size, and so many times 1, as those that hide scores, count as no larger,
lest they hide the others."""


class Pieces:
    """The pieces of one shape of which a whole value is made. whole: with a leading dimension, of the places of ranks
    that have rows of their own. own: the shape."""

    def __init__(self, whole: Array, own: tuple[int, ...]) -> None:
        self._whole, self._own = whole, (1, *own)
        rows = self._rows()
        self.count, self.length = rows.shape
        self.largest = float(np.max(np.abs(rows), initial=0.0))
        self._most = FAR * (max(_usual(rows), 1.0) if self.largest > FAR else 1.0)
        with np.errstate(all="ignore"):
            self.sums = (self._bounded(rows) if self.largest > FAR else rows) @ _random(self.count, self.length)
        """The products of all pieces, in the order of the whole value's dimensions."""
        self.size = min(self.largest, self._most) * math.sqrt(max(self.length, 1)) or 1.0

    def _rows(self) -> Array:
        counts = [total // n for n, total in zip(self._own, self._whole.shape, strict=True)]
        split = self._whole.reshape([n for pair in zip(counts, self._own, strict=True) for n in pair])
        split = split.transpose(*range(0, split.ndim, 2), *range(1, split.ndim, 2))
        return np.asarray(split.reshape(math.prod(counts), -1), np.float64)

    @staticmethod
    def of(whole: Array, own: tuple[int, ...]) -> Pieces | None:
        """Return the pieces, or None if a value has no pieces of that shape."""
        local = (1, *own)
        if len(local) != whole.ndim or any(not n or total % n for n, total in zip(local, whole.shape, strict=True)):
            return None
        count = math.prod(total // n for n, total in zip(local, whole.shape, strict=True))
        return Pieces(whole, own) if count <= MAX_PIECES else None

    def are_on_some_rank(self, value: Array, kind: RankKind) -> bool:
        """Return whether each row of all pieces is on some rank, and no rank has all of a piece: ranks that have a part
        of a table look rows of others up at a wrong place, and a mask leaves them out afterwards."""
        ranks = np.reshape(flat(value, kind.mesh), (len(kind.ranks), 1, -1, value.shape[-1]))
        rows = self._bounded(self._rows()).reshape(1, self.count, -1, value.shape[-1])
        right = np.isclose(ranks, rows, CLOSE, CLOSE).all(-1)
        piece = right.sum(-1).argmax(1)
        own = right[np.arange(len(piece)), piece]
        return not own.all(1).any() and all(own[piece == number].any(0).all() for number in {*piece.tolist()})

    def product(self, value: Array, depth: int) -> Array:
        """Return the dot products of the ranks' values, with `depth` leading dimensions."""
        with np.errstate(all="ignore"):
            own = self._bounded(value.reshape(*value.shape[:depth], -1))
            return own @ _random(self.count, self.length)

    def bounds(self, value: Array, ranks: int) -> bool:
        """Return whether no sum of values of so many ranks counts as smaller than it is."""
        return bool(np.max(np.abs(value), initial=0.0) * ranks <= self._most)

    def _bounded(self, array: Array) -> Array:
        return np.clip(array, -self._most, self._most)

    @cached_property
    def _ordered(self) -> Array:
        return np.sort([-np.inf, *self.sums, np.inf])

    def has(self, products: Array) -> Array:
        """Return for all products whether they are some piece's."""
        ordered = self._ordered
        at = np.minimum(np.searchsorted(ordered, products), len(ordered) - 1)  # beyond the end if it is no number
        return np.minimum(np.abs(products - ordered[at - 1]), np.abs(products - ordered[at])) <= CLOSE * self.size

    @cached_property
    def differ(self) -> bool:
        """Whether no two pieces are equal."""
        return bool(np.min(np.diff(self._ordered)) > 2 * CLOSE * self.size)

    def numbers(self, products: Array) -> Array:
        """Return the numbers of the pieces that have these products."""
        return np.argmin(np.abs(products.reshape(-1, 1) - self.sums), 1).reshape(products.shape)

    def are_placed(self, products: Array) -> bool:
        """Return whether ranks have the pieces as slices of a mesh: along each of its dimensions all the same, or each
        another. Pieces that are equal tell nothing."""
        if not self.differ:
            return True
        numbers = self.numbers(products)
        axes = [axis for axis in range(products.ndim) if not (numbers == np.take(numbers, [0], axis)).all()]
        return len(np.unique(numbers)) == math.prod(products.shape[axis] for axis in axes)


@lru_cache(maxsize=64)
def _random(count: int, length: int) -> Array:
    return np.random.default_rng(count).standard_normal(length)


def _usual(rows: Array) -> float:
    """Return the size of the middle one of all numbers that are not 0."""
    sizes = np.abs(rows[np.isfinite(rows) & (rows != 0)])
    return float(np.median(sizes)) if sizes.size else 1.0


@dataclass(frozen=True)
class Relation:
    """The relation of all ranks' values to one device's. summed: dimensions of the ranks' mesh along which to add up.
    how: "sum", or "mean" if the sum has to be divided by the number of ranks. ranks: how many have a part of one sum.
    equal: these parts are equal. alone: some ranks have all of a sum, to which others add nothing. places: the number
    of the piece that every rank has, if known."""

    summed: tuple[int, ...] = ()
    how: str = "sum"
    ranks: int = 1
    equal: bool = False
    alone: bool = False
    places: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def is_whole(self) -> bool:
        """Whether it is a slice or a copy."""
        return not self.summed and self.how == "sum"

    @property
    def words(self) -> str:
        """Describe a part; "" for a slice or a copy."""
        return f"a part of a {self.how} over {self.ranks} ranks" if self.summed else ""


def relation(
    value: Array, pieces: Pieces, kind: RankKind, is_mean: bool = False, batches: Collection[int] = ()
) -> Relation | None:
    """Relate a value with leading dimensions to the pieces of a whole one; None if unknown. is_mean: its operator takes
    means, of which parts are parts of a mean. batches: the loss of one device is a mean over so many ranks or
    micro-batches, so that gradients of their own losses may be so many times as large as one device's."""
    own = widened(pieces.product(value, kind.depth), kind.mesh)
    are_bounded = pieces.bounds(value, len(kind.ranks))
    for axes in axes_along(kind):
        ranks = math.prod(kind.mesh[axis] for axis in axes)
        for how, n in [("sum", 1), *(("mean", n) for n in batches or ((ranks,) if is_mean and axes else ()))]:
            if are_bounded:  # the product of a sum is the sum of the products
                products = own.sum(axes, keepdims=True) / n
            else:
                products = pieces.product(added(value, kind, axes) / n, kind.depth)
            if pieces.has(products).all() and pieces.are_placed(products):
                equal = bool(axes) and all(value.shape[axis] == 1 for axis in axes)
                alone = bool(axes) and bool(pieces.has(own).any())
                return Relation(axes, how, ranks, equal, alone, _places(pieces, products, kind))
    return None


def axes_along(kind: RankKind, least: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield the combinations of at least so many dimensions of the ranks' mesh, small ones first."""
    wide = [axis for axis, n in enumerate(kind.mesh) if n > 1]
    for count in range(least, len(wide) + 1):
        yield from itertools.combinations(wide, count)


def added(value: Array, kind: RankKind, axes: Sequence[int]) -> Array:
    """Return a value added up along some dimensions of the ranks' mesh."""
    lead = tuple(kind.mesh[a] if a in axes else value.shape[a] for a in range(kind.depth))
    return widened(value, lead).sum(tuple(axes), keepdims=True) if axes else value


def ranks_along(kind: RankKind, axes: Sequence[int]) -> list[int]:
    """Return the ranks along some dimensions of the mesh, with the first one."""
    found = [0]
    step = 1
    for axis in reversed(range(len(kind.mesh))):
        if axis in axes:
            found = [place + step * i for i in range(kind.mesh[axis]) for place in found]
        step *= kind.mesh[axis]
    return [kind.ranks[place] for place in sorted(found)]


def _places(pieces: Pieces, products: Array, kind: RankKind) -> dict[int, int]:
    if pieces.count == 1 or not pieces.differ:
        return {}
    numbers = np.broadcast_to(pieces.numbers(products), kind.mesh).reshape(-1).tolist()
    return dict(zip(kind.ranks, numbers, strict=True))


def scaled(value: Array, pieces: Pieces, kind: RankKind) -> float | None:
    """Return the factor by which a value is too large on all ranks that have a wrong one, or None."""
    products = pieces.product(value, kind.depth)
    right = pieces.has(products)
    if right.all():
        return None
    first = float(products[~right].flat[0])
    for factor in (first / w for w in pieces.sums[:64] if abs(w) > 1e-3 * pieces.size and math.isfinite(first)):
        near = round(factor) if abs(factor) >= 1 else 1 / round(1 / factor) if factor else 0
        if near not in (0, 1) and abs(factor - near) < 1e-6 * abs(near):
            if (right | pieces.has(pieces.product(value / near, kind.depth))).all():
                return float(near)
    return None


def likeness(value: Array, wanted: Array, kind: RankKind) -> str:
    """Describe the sum or factor that would make a value right on every rank, or "". Both have leading dimensions."""
    for axes in axes_along(kind, 1):
        if np.allclose(added(value, kind, axes), wanted, CLOSE, 0):
            return f"it is a part of a sum over {math.prod(kind.mesh[axis] for axis in axes)} ranks"
    with np.errstate(all="ignore"):
        factors = np.asarray(value / wanted)
        factor = float(factors[np.isfinite(factors)].flat[0]) if np.isfinite(factors).any() else 0.0
    if factor and abs(factor - 1) > CLOSE and np.allclose(value, factor * wanted, CLOSE, 0):
        return f"it is the right value times {times(factor, kind)}"
    return ""


def times(factor: float, kind: RankKind) -> str:
    """Describe a factor, and its possible cause if it is the number of ranks along some dimensions."""
    ratio = max(abs(factor), 1 / abs(factor))
    said = f"{factor:g}" if abs(factor) >= 1 else f"1/{1 / factor:g}"
    sizes = {math.prod(axes) for n in range(len(kind.mesh)) for axes in itertools.combinations(kind.mesh, n + 1)}
    if factor < 0 or round(ratio) not in sizes:
        return said
    over = f"over {round(ratio)} ranks"
    return f"{said}: " + (
        f"a sum {over} is taken twice, or a mean is none" if factor > 1 else
        f"a mean {over} is taken twice, or a sum is none"
    )  # fmt: skip


def wrong_ranks(value: Array, pieces: Pieces, kind: RankKind) -> tuple[int, ...]:
    """Return the ranks that have no piece of a value; all if each has one, but not that of its place."""
    right = np.broadcast_to(pieces.has(pieces.product(value, kind.depth)), kind.mesh).reshape(-1)
    return tuple(rank for rank, has in zip(kind.ranks, right, strict=True) if not has) or kind.ranks


# Which values of one device stand at the same place of the script as one of ranks.


Whole = tuple[Node, int]
"""A value of one device: the node, and the number of the tensor in its result."""
SCALED = ("Mul", "Div")
MEAN = "ReduceMean"
"""Ranks that add up parts of a mean make it by operators that scale."""


class OfName(NamedTuple):
    """The key of an operator of which no place is known."""

    name: str
    phase: str


@dataclass(frozen=True)
class ReferenceCandidates:
    """Values of one device that a tensor of ranks may be. number: of the tensor in its node's result. own: the expected
    one, if ranks and one device run the operators of a place in one order; None if they have more or fewer of them.
    micro_batches: how many micro-batches run the place one after the other. more: whether ranks run more operators
    there than one device, so that passes have put some of them in."""

    number: int
    wholes: Sequence[Whole] = field(default_factory=list[Whole])
    own: Whole | None = None
    micro_batches: int = 1
    more: bool = False


def _divides(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether a tensor of a shape is made of pieces of another shape."""
    pairs = zip(part, whole, strict=False)
    return len(part) == len(whole) and not any(total % n if n else total for n, total in pairs)


def _embedded(few: int, many: int, fits: Callable[[int, int], bool]) -> list[int | None]:
    """Return the places of the elements of a list among those of a longer one, in order; None for an element that has
    several, or for all if they have none. fits: whether an element of the first may be one of the second."""
    first, last = list[int](), list[int]()
    place = 0
    for element in range(few):
        while place < many and not fits(element, place):
            place += 1
        first.append(place)
        place += 1
    place = many - 1
    for element in reversed(range(few)):
        while place >= 0 and not fits(element, place):
            place -= 1
        last.insert(0, place)
        place -= 1
    return [one if one == other < many else None for one, other in zip(first, last, strict=True)]


def files_of(graphs: Iterable[Graph]) -> set[str]:
    """Return the source files of the nodes of some programs."""
    nodes = (node for graph in graphs for node in graph.all_nodes())
    return {frame.file for node in nodes for frame in node.frames}


class PlacesOfScript:
    """The values of one device by their places in the script."""

    def __init__(self, one: Graph, files: Collection[str] | None = None) -> None:
        """files: those whose lines are part of a place, by their text; operators in other files are paired by module
        alone, and places whose lines are reached otherwise on one device by their innermost lines. None: all files, by
        the numbers of lines."""
        self._known: dict[Hashable, list[Whole]] = {}
        self._files, by_line = files, files is not None
        self._key_of: dict[Node, Hashable] = {}
        self._run: set[Hashable] = set()
        for key, node, number in keyed(one, files):
            self._key_of[node] = key
            self._known.setdefault(key, []).append((node, number))
            if by_line and not isinstance(key, OfName) and _line_of(key) != key:
                self._known.setdefault(_line_of(key), []).append((node, number))
            names = (node.op.name, *SCALED) if node.op.name == MEAN else (node.op.name,)
            for name in names:
                self._known.setdefault(OfName(name, node.phase), []).append((node, number))

    def of(self, kind: RankKind) -> Iterator[tuple[Node, ReferenceCandidates]]:
        """Return the candidates of each tensor of a kind that has any."""
        tensors = [
            (key, node, number) for key, node, number in self._keyed(kind.graph)
            if key in self._known and (self._files is None or self._fits(key, node, number))
        ]  # fmt: skip
        counts = Counter(key for key, _, _ in tensors)
        self._run |= counts.keys()
        micro_batches = self._micro_batches(kind, counts)
        owns = {key: iter(self._paired(key, [t[1:] for t in tensors if t[0] == key], micro_batches)) for key in counts}
        for key, node, number in tensors:
            known = self._known[key]
            is_run_again = micro_batches > 1 and counts[key] == micro_batches * len(known)
            times, more = micro_batches if is_run_again else 1, counts[key] > micro_batches * len(known)
            yield node, ReferenceCandidates(number, known, next(owns[key]), times, more)

    def _paired(self, key: Hashable, tensors: Sequence[Whole], micro_batches: int) -> Sequence[Whole | None]:
        """Return the tensor of one device that each of the ranks' at a place should be, in their order."""
        known = self._known[key]
        if isinstance(key, OfName):
            return [None] * len(tensors)
        if len(known) == len(tensors):
            return known
        if self._files is None or micro_batches > 1:
            return [None] * len(tensors)
        parts, wholes = ([_shape_of(*each) for each in some] for some in (tensors, known))
        if len(parts) < len(wholes):
            places = _embedded(len(parts), len(wholes), lambda i, j: _divides(parts[i], wholes[j]))
            return [None if place is None else known[place] for place in places]
        found: list[Whole | None] = [None] * len(tensors)
        for whole, place in enumerate(_embedded(len(wholes), len(parts), lambda i, j: _divides(parts[j], wholes[i]))):
            if place is not None:
                found[place] = known[whole]
        return found

    def is_left_out(self, node: Node) -> bool:
        """Return whether one device runs a node at a place of the script that no kind of ranks has reached."""
        key = self._key_of.get(node)
        return key is not None and self._run.isdisjoint({key} if isinstance(key, OfName) else {key, _line_of(key)})

    def _fits(self, key: Hashable, node: Node, number: int) -> bool:
        """Return whether a tensor may be a piece of a value of its place. Flat buffers of several parameters are not,
        and do not count among the operators of a place."""
        return any(_divides(_shape_of(node, number), _shape_of(*whole)) for whole in self._known[key])

    def _keyed(self, graph: Graph) -> Iterator[tuple[Hashable, Node, int]]:
        for key, node, number in keyed(graph, self._files):
            is_known = key in self._known or self._files is None or isinstance(key, OfName)
            yield key if is_known else _line_of(key), node, number

    def _micro_batches(self, kind: RankKind, counts: Mapping[Hashable, int]) -> int:
        """Return how many times stages run most of the places that they run several times; 1 for no stages."""
        if not any(isinstance(node.op, SendToStage | ReceiveFromStage) for node in kind.graph.nodes):
            return 1
        ratios = [divmod(count, len(self._known[key])) for key, count in counts.items()]
        times = Counter(ratio for ratio, rest in ratios if not rest and ratio > 1)
        return max(times, key=lambda n: times[n], default=1)


def keyed(graph: Graph, files: Collection[str] | None = None) -> Iterator[tuple[Hashable, Node, int]]:
    """Return every operator of the script in a program, with a key that programs share: (key, node, number of the
    tensor in its result). Several may have one key. A fused node has the place of one of its members, so its key is the
    operator's name and phase. files: see `PlacesOfScript`."""
    for node in graph.all_nodes():
        for number, name in _named(node):
            if isinstance(node.op, FusedElementwise):
                yield OfName(name, node.phase), node, number
            elif node.frames:
                yield _where(node, files), node, number


def _where(node: Node, files: Collection[str] | None) -> Hashable:
    if files is None:
        return node.scope, node.op.name, node.phase, tuple(map(str, node.frames)), node.instance
    # The text of a line stays if lines before it are added. A recorded gradient has the phase of an update if updates
    # alone read it, and those of other parameters share a flat buffer with it on ranks: a place has no phase.
    frames = tuple(frame.text.strip() or str(frame) for frame in node.frames if frame.file in files)
    return node.scope, node.op.name, "", frames, node.instance


def _shape_of(node: Node, number: int) -> tuple[int, ...]:
    return element_types(node.type)[number].shape  # type: ignore[union-attr]  # a tensor's


def _line_of(place: Any) -> Hashable:
    """Return the key of a place without the lines around its innermost one."""
    scope, name, phase, frames, instance = place
    return scope, name, phase, frames[:1], instance


def _named(node: Node) -> Iterator[tuple[int, str]]:
    """Return (number of the tensor in the result, operator) of a node's results."""
    if isinstance(node.op, FusedElementwise):
        lines = steps_of(node.op)
        yield from ((place, lines[line].op.name) for place, line in enumerate(node.op.returns))
    elif len(element_types(node.type)) == 1:
        yield 0, node.op.name


# Remembers which values of one device those of ranks are, and finds ranks' that are those of another place.


ANOTHER = "it is the value that {} has at the same place of the script"


class Identities:
    """The identity of the ranks' values with values of one device. If several operators are at one place of the script,
    each of the ranks' should be the one of its turn: a value of another one is taken from there, unless they are all in
    another order."""

    def __init__(self) -> None:
        self._found: dict[Node, dict[int, set[Whole]]] = {}
        self._own: dict[Node, dict[int, Whole]] = {}
        self._makers: dict[Whole, list[tuple[Node, int]]] = {}

    def note(self, node: Node, candidates: ReferenceCandidates, whole: Whole) -> None:
        """Note that a tensor of a node is this value of one device, in one turn of the loops around."""
        found = self._found.setdefault(node, {}).setdefault(candidates.number, set())
        if candidates.own is not None and not found:
            self._own.setdefault(node, {})[candidates.number] = candidates.own
            self._makers.setdefault(candidates.own, []).append((node, candidates.number))
        found.add(whole)

    def of_tensor(self, value: Value, number: int) -> set[Whole]:
        """Return the values of one device that a tensor of a node is; none of any other value."""
        return self._found.get(value, {}).get(number, set())  # type: ignore[call-overload]  # a node, or not found

    def of(self, node: Node) -> set[Whole]:
        """Return the values of one device that those of a node are."""
        return {whole for found in self._found.get(node, {}).values() for whole in found}

    def taken_from(self, node: Node) -> str:
        """Say that the value of a node is that of another, or ""."""
        for number, own in self._own.get(node, {}).items():
            for whole in self._found[node][number] - {own}:
                for maker, place in self._makers.get(whole, ()):
                    if self._found[maker][place] == {whole}:
                        return ANOTHER.format(maker.label)
        return ""
