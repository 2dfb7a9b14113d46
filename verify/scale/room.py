"""Checks before a run whether the small programs fit into memory if dimensions could not shrink.

It counts only memory that is certainly used at once: first values, inputs, stored values of the ranks, and of one
device or of a kind of ranks the values of a step that are alive together, with the ranks as leading dimensions if these
have values of their own. NumPy's views are not counted again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.graph import Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, Broadcast
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Split, Transpose
from mspc.ops.tensor.reshape import BroadcastTo
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.available_memory import available_bytes
from mspc.verify.scale.rank_kinds import STRUCTURE, RankKind, Slices, axes_of_groups, narrowed, told_apart

Lead = tuple[int, ...]
Part = tuple[Value, int]
"""A tensor of a value."""
VIEWS = (*STRUCTURE, BroadcastTo, Split, StridedSlice, Transpose)
SAME_BEHIND = (AllGather, AllReduce, Broadcast)
"""Collectives after which the ranks of a group have equal values."""
MAX_NAMED = 4
"""Parameters that are named."""


@dataclass
class Peak:
    """The largest number of bytes alive at once, and the largest value among them."""

    nbytes: int = 0
    largest: Value | None = None
    size: int = 0


def check_fits(one: Graph, kinds: Sequence[RankKind], real: Graph, steps: int) -> None:
    """Check that the small programs fit. one: that of one device; real: the same at real sizes. steps: whose inputs are
    there at once. Raise MspcError if they do not, with the largest value and the sizes that did not shrink."""
    stored = sum(_nbytes(p) * (steps if p.kind == "input" else 1) for p in one.parameters)
    peaks = [_Alive(None, (1,)).peak(one, {})]
    for kind in kinds:
        slices = Slices(kind)
        leads: dict[Part, Lead] = {}
        for parameter in kind.graph.parameters:
            layout = parameter.layout if isinstance(parameter.layout, Layout) else None
            lead = leads[parameter, 0] = slices.lead(layout)
            stored += 0 if parameter.kind == "input" else _nbytes(parameter) * math.prod(lead)
        peaks.append(_Alive(kind, (1,) * kind.depth).peak(kind.graph, leads))
    peak = max(peaks, key=lambda each: each.nbytes)
    needed, available = stored + peak.nbytes, available_bytes()
    if needed <= available:
        return
    widest = max(one.parameters, key=_nbytes, default=None)
    largest = peak.largest
    if largest is None or (widest is not None and _nbytes(widest) > peak.size):
        largest, size = widest, 0 if widest is None else _nbytes(widest)
    else:
        size = peak.size
    named = "" if largest is None else f", {_name(largest)} alone {shown_bytes(size)}"
    raise MspcError(
        f"the least sizes that keep the plan as it is do not fit: they take {shown_bytes(needed)}{named}; "
        f"{shown_bytes(available)} are available",
        notes=_kept(real, one),
        frames=largest.frames if isinstance(largest, Node) else (),
    )


def values_nbytes(one: Graph, kinds: Sequence[RankKind]) -> int:
    """Return the bytes of all values of one device and of all ranks in Float64, whether they are there at once or
    not."""
    programs = [(one, 1), *((kind.graph, len(kind.ranks)) for kind in kinds)]
    return sum(
        math.prod(type.shape) * count * np.dtype(np.float64).itemsize
        for graph, count in programs
        for each in graph.graphs()
        for value in (*each.parameters, *each.nodes)
        for type in element_types(value.type)
    )


def _kept(real: Graph, small: Graph) -> list[str]:
    """Name the largest parameters' dimensions that did not shrink."""
    pairs = sorted(zip(real.parameters, small.parameters, strict=True), key=lambda pair: -_nbytes(pair[1]))
    said = [
        f"{a.name} {a.shape} becomes {b.shape}" if a.shape != b.shape else f"{a.name} {a.shape} keeps its sizes"
        for a, b in pairs
        if any(x == y > 1 for x, y in zip(a.shape, b.shape, strict=True))
    ]
    return ["; ".join(said[:MAX_NAMED])] if said else []


def _name(value: Value) -> str:
    if isinstance(value, Parameter):
        return f"{value.kind} {value.name!r}"
    return f"the result of {value.label}" if isinstance(value, Node) else "a constant"


def _nbytes(value: Value) -> int:
    return sum(type.nbytes for type in element_types(value.type))


class _Alive:
    """Visits the program of a kind, or of one device. alone: the leading dimensions of values that all ranks share."""

    def __init__(self, kind: RankKind | None, alone: Lead) -> None:
        self._kind, self._alone = kind, alone

    def peak(self, graph: Graph, leads: dict[Part, Lead]) -> Peak:
        """Return the peak of all values of the nodes. leads: of the parameters' tensors; gets those of all values."""
        owners: dict[Part, tuple[Part, ...]] = {}
        inner: dict[Node, int] = {}
        last: dict[Part, int] = {}
        for number, node in enumerate(graph.nodes):
            if node.regions:
                inner[node] = max(self._region(node, i, leads).nbytes for i in range(len(node.regions)))
            self._node(node, leads, owners)
            for value in (*node.inputs, node):
                for part in _parts(value):
                    last |= dict.fromkeys(owners.get(part, ()), number)
        for value in graph.results:
            for part in _parts(value):
                last |= dict.fromkeys(owners.get(part, ()), len(graph.nodes))
        found, alive = Peak(), 0
        ending: dict[int, list[Part]] = {}
        for part, number in last.items():
            ending.setdefault(number, []).append(part)
        held: dict[Part, int] = {}
        for number, node in enumerate(graph.nodes):
            for part in _parts(node):
                if owners[part] == (part,):
                    held[part] = element_types(node.type)[part[1]].nbytes * math.prod(leads[part])
                    alive += held[part]
            if alive + inner.get(node, 0) > found.nbytes:
                part = max(held, key=held.__getitem__, default=None)
                found = Peak(alive + inner.get(node, 0), None if part is None else part[0], held.get(part, 0))  # type: ignore[arg-type]  # a part is there if its node is
            for part in ending.get(number, ()):
                alive -= held.pop(part, 0)
        return found

    def _region(self, node: Node, number: int, leads: dict[Part, Lead]) -> Peak:
        region, op = node.regions[number], node.op
        for value, places in zip(node.inputs, op.places(number, [v.type for v in node.inputs]), strict=True):  # type: ignore[attr-defined]  # of operators with regions
            for place in places:
                if place < len(region.parameters):
                    leads[region.parameters[place], 0] = leads.get((value, 0), self._alone)
        return self.peak(region, leads)

    def _node(self, node: Node, leads: dict[Part, Lead], owners: dict[Part, tuple[Part, ...]]) -> None:
        """Note whose memory the results of a node are, and their leading dimensions."""
        op = node.op
        parts = list(_parts(node))
        given = [part for value in node.inputs for part in _parts(value)]
        if isinstance(op, TupleGetItem):
            given = [(node.inputs[0], op.index)]
        elif len(parts) == len(given) > 1 and isinstance(op, STRUCTURE):
            for part, own in zip(parts, given, strict=True):
                leads[part], owners[part] = leads.get(own, self._alone), owners.get(own, ())
            return
        lead = np.broadcast_shapes(self._alone, *(leads.get(part, self._alone) for part in given))
        lead = self._own(op, lead)
        is_view = isinstance(op, VIEWS) or (isinstance(op, Op) and bool(op.reshapes or op.mutates or op.is_view))
        shared = tuple(dict.fromkeys(owner for part in given for owner in owners.get(part, ())))
        for place, part in enumerate(parts):
            inside = [leads.get((g.results[place], 0), lead) for g in node.regions if place < len(g.results)]
            leads[part] = np.broadcast_shapes(self._alone, *inside) if inside else lead
            owners[part] = shared if is_view else (part,)

    def _own(self, op: object, lead: Lead) -> Lead:
        """Return the leading dimensions after an operator."""
        kind = self._kind
        if kind is None or not isinstance(op, Op):
            return lead
        ops = kind.ops_of(op)
        if not isinstance(op, Collective):
            if len(ops) == 1:
                return lead
            numbers = np.array(told_apart(ops)[1]).reshape(kind.mesh)
            return np.broadcast_shapes(lead, narrowed(numbers, kind.depth).shape)
        groups = [getattr(each, "rank_list", ()) for each in ops]
        axes = axes_of_groups(kind, groups) if all(groups) else None
        if axes is None:
            return lead
        same = isinstance(op, SAME_BEHIND)
        return tuple(
            n if a not in axes else 1 if same else size for a, (n, size) in enumerate(zip(lead, kind.mesh, strict=True))
        )


def _parts(value: Value) -> Iterable[Part]:
    return ((value, place) for place in range(len(element_types(value.type))))
