"""Finds the smallest change of the ranks' programs that makes a wrong step right: changes are tried one by one.

A change replaces the value of one node on all ranks: a sum over ranks that is missing or one too many, another
reduction or group, a factor, another slice. Both steps are run with it, and it is told only if all values that ranks
hand out or store are then those of one device.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ranks_listed
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.iterative import reached
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.math.arithmetic import Add, Div, Mul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.comm.interface import pieces
from mspc.verify.scale.execution import KindRun, KindState
from mspc.verify.scale.meetings import NodeError, along_axes
from mspc.verify.scale.rank_kinds import RankKind, aligned, axes_of_groups, flat, mapped, on_mesh
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.relations import added, axes_along, ranks_along

Array = Any
_NUMBERS = re.compile(r"\d+")
REDUCTIONS = ("sum", "max", "min")
GROUPED = (AllGather, AllReduce, AlltoAll, ReduceScatter)
NEAR = 48
"""Most nodes before a wrong value whose changes are tried."""
MAX_SUMS, FEW = 6, 2
MAX_STEPS, MAX_DOUBTED = 14, 4
"""How often as many nodes as those up to the first wrong step are computed to try changes, and how many are tried
though the first wrong value is no better with them."""


@dataclass(frozen=True)
class Edit:
    """A change of the value of a node, or of all nodes like it. make: returns the changed value for (value, operands),
    or None if it has none. words: describes what is wrong there."""

    kind: RankKind
    node: Node
    words: str
    make: Callable[[Array, Sequence[Array]], Array | None]
    nodes: frozenset[Node] = frozenset()

    def is_at(self, node: Node) -> bool:
        """Return whether it changes the value of a node."""
        return node is self.node or node in self.nodes

    def wider(self, kinds: Sequence[RankKind], is_suspect: Callable[[RankKind, Node], bool]) -> Iterator[Edit]:
        """Yield the same change of all nodes like it in layers of other numbers, of those of its line with wrong
        readers, of all of its line, and of those in other kinds, as stages are, whose ranks lie in the same dimensions.
        """
        layers, line = [self.node], [self.node]
        places: Counter[Hashable] = Counter()
        keys: dict[Node, Hashable] = {}
        for node in self._of_line(self.kind):
            keys[node] = _NUMBERS.sub("", node.scope), places[node.scope]
            places[node.scope] += 1
            line.append(node)
        layers += [node for node, key in keys.items() if key == keys[self.node]]
        others = (kind for kind in kinds if kind is not self.kind and kind.mesh == self.kind.mesh)
        everywhere = [*line, *(node for kind in others for node in self._of_line(kind))]
        some = [node for node in line if node is self.node or is_suspect(self.kind, node)]
        sets = dict.fromkeys(map(frozenset, (layers, some, line, everywhere)))
        yield from (replace(self, nodes=nodes) for nodes in sets if len(nodes) > 1)

    def _of_line(self, kind: RankKind) -> list[Node]:
        return [
            node for node in kind.graph.nodes
            if node.op.name == self.node.op.name and node.frames[:1] == self.node.frames[:1]
        ]  # fmt: skip


def edits_before(
    kind: RankKind, seeds: Sequence[Node], settled: Callable[[Node], bool], divided: Callable[[Node], bool],
    ratio: float = 0.0,
) -> Iterator[Edit]:  # fmt: skip
    """Return the changes of values that some nodes are computed from, those of collectives first. settled: whether a
    value is right, so that nothing before it is wrong. divided: whether it is no part of a sum, so that no sum is
    missing after it. ratio: a factor by which a value is too small, 0 if unknown."""
    near, readers = nodes_before(kind, seeds, settled), Readers(kind.graph)
    for node in near:
        if isinstance(node.op, GROUPED):
            yield from _of_collective(kind, node)
    for node in near:
        yield from _of_slice(kind, node, readers)
        yield from _terms(kind, node)
    yield from scaled_before(kind, near, ratio)
    for node in _likely_parts(kind, [node for node in reversed(near) if not divided(node)]):
        yield from _missing_sums(kind, node)
    sizes = {math.prod(kind.mesh[axis] for axis in axes) for axes in axes_along(kind, 1)}
    for factor in (factor for size in sorted(sizes | {2}) for factor in (size, 1 / size)):
        yield from scaled_before(kind, near, factor if factor != ratio else 0.0)


def scaled_before(kind: RankKind, nodes: Sequence[Node], factor: float) -> Iterator[Edit]:
    """Return the changes that multiply values by a factor, those of products first; none if it is 0."""
    for node in sorted(nodes, key=lambda node: not isinstance(node.op, Mul | Div)) if factor else ():
        yield _scaled(kind, node, factor)


def likeliest(kind: RankKind) -> Iterator[Edit]:
    """Return the changes of collectives that are another one, or over other ranks, than all others of their line, and
    of numbers that each rank adds before a sum."""
    lines: dict[Hashable, list[Node]] = defaultdict(list)
    for node in kind.graph.nodes:
        if isinstance(node.op, GROUPED) and node.frames:
            lines[type(node.op), node.frames[:2]].append(node)
        source = node.inputs[0] if isinstance(node.op, AllReduce) else None
        if isinstance(source, Node) and any(isinstance(value, Constant) for value in source.inputs):
            yield from _terms(kind, source)
    for nodes in lines.values():
        ways = Counter(map(_way, nodes))
        if len(ways) == 2 and len(nodes) > FEW:
            for node in nodes:
                if ways[_way(node)] == 1:
                    yield from _of_collective(kind, node)


def _way(node: Node) -> tuple[str, Hashable]:
    """Return the reduction of a collective, and its ranks."""
    return getattr(node.op, "op", ""), getattr(node.op, "members", ())


def doubled_sums(kind: RankKind, seed: Node) -> Iterator[Edit]:
    """Return the changes that leave out a sum before a value, the nearest first. Its result may be right, as another
    sum of it follows that is taken over the same ranks."""
    before = reached([seed], Readers(kind.graph).read_by)
    sums = (value for value in before if isinstance(value, Node) and isinstance(value.op, AllReduce))
    for value in islice(sums, MAX_SUMS):
        yield next(_of_collective(kind, value))


def _likely_parts(kind: RankKind, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes, first those at which the program adds up other values: between the same operators. Those that
    are only moved afterwards, by nodes that nothing else reads, are taken then: next to the reader that lacks a sum."""
    readers = Readers(kind.graph)
    usual = {(term, reader) for _, term, reader in readers.places_of_sums()}

    def is_unusual(node: Node) -> bool:
        return not any(isinstance(r, Node) and (node.op.name, r.op.name) in usual for r in readers.of(node))

    live: set[Value] = {*kind.graph.results}
    for node in reversed(kind.graph.nodes):
        if node in live or node.op.mutates:
            live.update((node, *node.inputs))

    def last(node: Node) -> Node:
        found: Value = node
        while isinstance(found, Node) and (found is node or _moves(found)):
            node, of = found, [each for each in readers.of(found) if each in live]
            if len(of) != 1:
                break
            found = of[0]
        return node

    return list(dict.fromkeys(map(last, sorted(nodes, key=is_unusual))))


def _moves(node: Node) -> bool:
    return isinstance(node.op, Transpose) or (isinstance(node.op, Op) and node.op.reshapes)


def nodes_before(kind: RankKind, seeds: Sequence[Node], settled: Callable[[Node], bool]) -> list[Node]:
    """Return the nodes of floating-point tensors that seeds are computed from, the nearest first."""
    readers = Readers(kind.graph)

    def unsettled(node: Node) -> Iterator[Node]:
        return (each for each in readers.read_by(node) if isinstance(each, Node) and not settled(each))

    return [*islice((node for node in reached(seeds, unsettled) if _is_float(node)), NEAR)]


def _is_float(node: Node) -> bool:
    return hasattr(node.type, "dtype") and node.type.dtype.is_float and not node.op.mutates


def _over(kind: RankKind, axes: Sequence[int]) -> str:
    return f"over {ranks_listed(ranks_along(kind, axes))}"


def _of_collective(kind: RankKind, node: Node) -> Iterator[Edit]:
    op: Any = node.op
    groups = [own.members for own in kind.ops_of(op)]  # type: ignore[attr-defined]  # collectives
    own = axes_of_groups(kind, groups)
    if isinstance(op, AllReduce):
        yield Edit(kind, node, f"{node.label} is one {op.op} too many", lambda value, operands: operands[0])
    if own is None:
        own = axes_of_groups(kind, [tuple(sorted(group)) for group in groups])
        if own is None:
            return
        words = f"{node.label} has its ranks in the order {op.members}"
        yield Edit(kind, node, words, partial(_along, op, kind, own))
    how = getattr(op, "op", "")
    for other in REDUCTIONS if how else ():
        if other != how:
            words = f"{node.label} takes the {how} over ranks instead of the {other}"
            yield Edit(kind, node, words, partial(_along, replace(op, op=other), kind, own))
    for axes in axes_along(kind, 1):
        if axes != own:
            words = f"{node.label} is {_over(kind, own)}, and should be {_over(kind, axes)}, and groups alike"
            yield Edit(kind, node, words, partial(_along, op, kind, axes))


def _along(op: Any, kind: RankKind, axes: Sequence[int], value: Array, operands: Sequence[Array]) -> Array | None:
    try:
        return along_axes(op, operands, kind.mesh, axes)
    except ValueError:
        return None


def _of_slice(kind: RankKind, node: Node, readers: Readers) -> Iterator[Edit]:
    """Let each rank take the slice of its place along some dimensions of the mesh, or all the slice behind another one
    of the same buffer, as that of each parameter is behind the one before."""
    if not isinstance(node.op, StridedSlice):
        return
    (read,) = node.inputs
    dims = [d for d, (n, m) in enumerate(zip(read.shape, node.shape, strict=False)) if n != m]
    if len(read.shape) != len(node.shape) or len(dims) != 1:
        return
    (dim,), (whole, own) = dims, (read.shape[dims[0]], node.shape[dims[0]])
    for axes in axes_along(kind, 1) if whole % own == 0 else ():
        if math.prod(kind.mesh[axis] for axis in axes) == whole // own:
            words = f"{node.label} is not the slice of the rank's place {_over(kind, axes)}, and groups alike"
            yield Edit(kind, node, words, partial(_own_slice, kind, axes, whole // own, dim))
    others = [each.op for each in readers.of(read) if isinstance(each, Node) and isinstance(each.op, StridedSlice)]
    for begin in sorted({op.end[dim] for op in others if op.end[dim] + own <= whole} - {node.op.begin[dim]}):
        words = f"{node.label} does not begin where the slice before it ends in {_name(read)}"
        place = (..., slice(begin, begin + own), *(slice(None),) * (len(read.shape) - 1 - dim))
        yield Edit(kind, node, words, partial(lambda place, value, operands: operands[0][place], place))


def _name(value: Value) -> str:
    if isinstance(value, Constant) and value.value.size == 1:
        return f"{value.value.item():g}"
    return value.label if isinstance(value, Node) else value.name


def _own_slice(
    kind: RankKind, axes: Sequence[int], count: int, dim: int, value: Array, operands: Sequence[Array]
) -> Array | None:
    if operands[0].shape[kind.depth + dim] % count:  # fewer iterations are run than the program has
        return None
    at = np.unravel_index(np.arange(math.prod(kind.mesh)), kind.mesh)
    numbers = np.ravel_multi_index([at[axis] for axis in axes], [kind.mesh[axis] for axis in axes])
    rows = zip(flat(operands[0], kind.mesh), numbers, strict=True)
    return on_mesh(np.stack([pieces(own, count, dim)[number] for own, number in rows]), kind.mesh)


def _terms(kind: RankKind, node: Node) -> Iterator[Edit]:
    """Let a term that all ranks add before a sum be added once."""
    for place, value in enumerate(node.inputs if isinstance(node.op, Add) else ()):
        for axes in axes_along(kind, 1):
            label = _name(value)
            count = math.prod(kind.mesh[axis] for axis in axes)
            words = f"{node.label} adds {label} on each of {count} ranks, whose results are added up"
            yield Edit(kind, node, words, partial(_term_once, kind, place, axes, count))


def _term_once(
    kind: RankKind, place: int, axes: Sequence[int], count: int, value: Array, operands: Sequence[Array]
) -> Array | None:
    term, other = operands[place], operands[1 - place]
    if any(term.shape[axis] > 1 for axis in axes) or all(other.shape[axis] == 1 for axis in axes):
        return None  # it differs on the ranks, or all terms do not
    other, term = aligned([other, term], kind.depth)
    return other + term / count


def _missing_sums(kind: RankKind, node: Node) -> Iterator[Edit]:
    for axes in axes_along(kind, 1):
        for how in ("sum", "mean", "max"):
            words = f"an all_reduce of the {how} {_over(kind, axes)}, and groups alike, is missing after {node.label}"
            yield Edit(kind, node, words, partial(_joined, kind, axes, how))


def _joined(kind: RankKind, axes: Sequence[int], how: str, value: Array, operands: Sequence[Array]) -> Array | None:
    if all(value.shape[axis] == 1 for axis in axes):
        return None  # a factor, and no sum
    if how == "max":
        return value.max(tuple(axes), keepdims=True)
    return added(value, kind, axes) / (math.prod(kind.mesh[axis] for axis in axes) if how == "mean" else 1)


def _scaled(kind: RankKind, node: Node, factor: float) -> Edit:
    size = round(max(factor, 1 / factor))
    words = f"{node.label} is {size} times too {'small' if factor > 1 else 'large'}"
    numbers = [value for value in node.inputs if isinstance(value, Constant) and value.value.size == 1]
    if numbers and isinstance(node.op, Mul | Div):
        given = float(numbers[0].value.reshape(-1)[0])
        if given and factor in (given, 1 / given):
            is_undone = (factor == given) == isinstance(node.op, Div)
            words = f"{node.label} by {given:g} is one too {'many' if is_undone else 'few'}"
    return Edit(kind, node, words, lambda value, operands: value * factor)


def ratio_of(found: float, expected: float) -> float:
    """Return the whole number, or the reciprocal of one, by which a number is too small; 0 if it is none."""
    ratio = expected / found if found and math.isfinite(found) else 0.0
    size = max(ratio, 1 / ratio) if ratio > 0 else 0.0
    return 0.0 if abs(size - round(size)) > 1e-6 or round(size) < 2 else float(round(size)) ** (1 if ratio > 1 else -1)


# A step is run with each change: only values that are computed from changed ones, and only up to the first wrong value
# if that is still wrong.


class TriedChanges:
    """Changes that are tried. target: the first wrong value, if it is known, of this kind and step, counted from 1.
    fits: whether another value of it is one of one device. doubted: the changes of collectives after which it is none.
    """

    def __init__(
        self, kinds: Sequence[RankKind], step: int, target: Node | None, fits: Callable[[RankKind, Node, Any], bool]
    ) -> None:
        self.step, self.target, self.fits = step, target, fits
        self.doubted: list[Edit] = []
        nodes = [node for kind in kinds for node in kind.graph.nodes]
        self.num_computed, self._limit = 0, MAX_STEPS * step * len(nodes)
        # Regions run their nodes several times, and a value that is overwritten is another one later.
        self.are_known = not any(
            node.regions or any(isinstance(node.inputs[i], Node) for i in node.op.mutates) for node in nodes
        )
        self._meet = len(kinds) > 1
        self._readers = {id(kind): Readers(kind.graph) for kind in kinds}
        self._results: dict[Node, Any] = {}

    @property
    def are_enough(self) -> bool:
        return self.num_computed > self._limit

    def note(self, kind: RankKind, node: Node, result: Any, around: tuple[int, ...], operands: Sequence[Any]) -> None:
        """Remember a node of the first step without changes."""
        if not node.op.mutates:
            self._results[node] = mapped(result, np.array)

    def unchanged(self, kind: RankKind, edit: Edit) -> dict[Node, Any]:
        """Return the known values of a kind that are not computed from changed ones or those of other kinds."""
        readers = self._readers[id(kind)]

        def computed_from(value: Value) -> list[Value]:
            overwritten = [value.inputs[i] for i in value.op.mutates] if isinstance(value, Node) else []
            return [*readers.of(value), *overwritten]

        nodes = kind.graph.nodes
        begin = [node for node in nodes if edit.is_at(node) or (self._meet and isinstance(node.op, Collective))]
        known = self._results.keys() - {*reached(begin, computed_from)}
        return {node: self._results[node] for node in nodes if node in known}


class EditedRun(KindRun):
    """A step with a change."""

    def __init__(self, state: KindState, step: int, edit: Edit, tried: TriedChanges) -> None:
        super().__init__(state, step, None)
        self._edit, self._tried = edit, tried
        self._known = tried.unchanged(state.kind, edit) if step == 1 and tried.are_known else {}
        is_checked = step == tried.step and not (tried.target is not None and edit.is_at(tried.target))
        self._target = tried.target if is_checked else None

    def _changed(self, node: Node, operands: Sequence[Any], result: Any) -> Any:
        self._tried.num_computed += 1
        if self._edit.is_at(node) and isinstance(result, np.ndarray):
            made = self._edit.make(result, operands)
            fits = made is not None and made.shape[self.kind.depth :] == result.shape[self.kind.depth :]
            if not fits or np.array_equal(*np.broadcast_arrays(made, result)):
                raise NodeError(self.kind, node, "the change leaves it as it is")
            result = np.array(made)
        if node is self._target and not self._tried.fits(self.kind, node, result):
            if isinstance(self._edit.node.op, GROUPED) and not self._edit.nodes:
                self._tried.doubted.append(self._edit)
            raise NodeError(self.kind, node, "it is wrong with the change, too")
        return result
