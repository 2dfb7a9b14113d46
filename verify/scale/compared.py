"""Values of ranks beside those of one device, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import source
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import MakeStack
from mspc.verify.difference import GROWTH, STORED, TOLERANCES, Noise, epsilon_of
from mspc.verify.scale.rank_kinds import RankKind

Array = Any


@dataclass(frozen=True)
class Compared:
    """A value of all ranks of a kind beside one device's. apart: the largest distance of an element, relative to the
    largest of one device. allowed: the distance that rounding may cause. rank, place: of that element, in the rank's
    tensor. words: a change that would make the first wrong value right."""

    what: str
    name: str
    step: int
    kind: RankKind
    apart: float
    allowed: float
    rank: int = -1
    place: tuple[int, ...] = ()
    expected: float = 0.0
    found: float = 0.0
    words: str = ""

    @property
    def same(self) -> bool:
        return self.apart <= self.allowed


def compared(
    what: str, name: str, step: int, kind: RankKind, wanted: Array, found: Array, noise: Noise,
    change: float | None = None,
) -> Compared:  # fmt: skip
    """Return the row of one value. wanted, found: with leading dimensions. change: the largest change of a stored
    value, which sets its tolerance, as an update hardly moves the values that it is added to."""
    if wanted.shape[kind.depth :] != found.shape[kind.depth :]:
        return Compared(what, name, step, kind, float("inf"), 0.0)
    if wanted.dtype.kind == "c":
        wanted, found = _parts(wanted), _parts(found)
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(wanted, np.float64) - np.asarray(found, np.float64))
        same = (wanted == found) | (np.isnan(wanted) & np.isnan(found)) if wanted.dtype.kind == "f" else wanted == found
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    finite = np.abs(wanted[np.isfinite(wanted)]) if wanted.dtype.kind == "f" else np.abs(wanted.astype(np.float64))
    size = float(np.max(finite, initial=0.0)) or 1.0
    at = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.size else (0,) * apart.ndim
    largest = float(apart[at]) / size if apart.size else 0.0
    allowed = 0.0
    if wanted.dtype.kind == "f":
        held_to = size if change is None else min(change, size)
        moved_by_rounding = STORED * epsilon_of("Float64") * size + GROWTH * noise.largest
        allowed = (TOLERANCES["Float64"] * held_to + moved_by_rounding) / size
    if largest <= allowed:
        return Compared(what, name, step, kind, largest, allowed)
    place = [int(i) for i in at]
    rank = kind.ranks[int(np.ravel_multi_index(place[: kind.depth], kind.mesh))]
    return Compared(
        what, name, step, kind, largest, allowed, rank, tuple(place[kind.depth :]),
        float(np.broadcast_to(wanted, apart.shape)[at]), float(np.broadcast_to(found, apart.shape)[at]),
    )  # fmt: skip


def _parts(array: Array) -> Array:
    """Return the real and imaginary parts of complex numbers, in a last dimension."""
    return np.stack([array.real, array.imag], axis=-1).astype(np.float64)


def largest_change(before: Array, behind: Array) -> float | None:
    """Return the largest change of an element of a stored value, or None if unknown."""
    if before.shape != behind.shape or behind.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        moved = np.abs(np.asarray(behind, np.float64) - before)
    return float(np.max(moved, initial=0.0, where=np.isfinite(moved)))


# Nodes of a program that overwrite stored values.


Names = frozenset[str]


def written(graph: Graph) -> dict[Node, Names]:
    """Return the nodes of a program, and of those that it runs, that overwrite parameters, alone or in a stack, with
    their names."""
    found: dict[Node, Names] = {}
    _walk(graph, {parameter: Names((parameter.name,)) for parameter in graph.parameters}, found)
    return found


def _walk(graph: Graph, named: Mapping[Value, Names], found: dict[Node, Names]) -> None:
    known = {**named}
    for node in graph.nodes:
        names = [known.get(value, Names()) for value in node.inputs]
        if isinstance(node.op, MakeStack):
            known[node] = Names().union(*names)
        elif node.regions:
            _inside(node, names, found)
        elif node.op.mutates:
            own = Names().union(*(names[i] for i in node.op.mutates))
            if own:
                found[node] = found.get(node, Names()) | own


def _inside(node: Node, names: Sequence[Names], found: dict[Node, Names]) -> None:
    op: Any = node.op
    types = [value.type for value in node.inputs]
    for number, region in enumerate(node.regions):
        named: dict[Value, Names] = {}
        for own, places in zip(names, op.places(number, types), strict=True):
            for place in places:
                if own and place < len(region.parameters):
                    named[region.parameters[place]] = own
        _walk(region, named, found)


def makers(graph: Graph, rows: Sequence[Compared]) -> list[Node]:
    """Return the nodes of a program that compute the compared values."""
    results = [source(graph.results[int(row.name)]) for row in rows if row.what == "result"]
    names = {row.name for row in rows if row.what == "parameter"}
    found = [node for node, own in written(graph).items() if not names.isdisjoint(own)] if names else []
    return [*(value for value in results if isinstance(value, Node)), *found]


def writer_of_others(graph: Graph, one: Graph, update: Node) -> Node | None:
    """Return the node of a program that writes other parameters that an update of one device writes."""
    names = written(one)[update]
    return next((node for node, own in written(graph).items() if not names.isdisjoint(own)), None)
