"""Where a script's Parameters are while graphs train them: every rank keeps its slices, reading one
gathers it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from mspc.engine.beginnings import Beginning, beginning
from mspc.engine.job import Job
from mspc.engine.occasions import TOGETHER, occasion
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.runtime.room import room_for
from mspc.runtime.slices import cut_parameter, full_type, gather, slices_of

Array = Any


@dataclass
class _Slice:
    """One graph's slice of a parameter. array: where the job's device keeps it. version: of the values in it."""

    graph_parameter: GraphParameter
    array: Array
    version: int = 0


@dataclass
class _Kept:
    """A parameter's slices; graphs that place it alike share one array. newest: the slice with the
    newest values."""

    parameter: Any
    slices: list[_Slice] = field(default_factory=list[_Slice])
    newest: int = 0
    version: int = 0


class ParameterStore:
    """The parameters of one rank's script. Every rank reads and writes a sharded parameter together with
    the others."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.from_rank_0 = False
        """Whether parameters of which every rank holds all start with rank 0's values (`parameter_broadcast`)."""
        self._kept: dict[int, _Kept] = {}
        self._begun: list[Beginning | None] = []
        self._borrowed: dict[int, list[tuple[_Kept, int]]] = {}
        self._several: dict[int, list[tuple[_Kept, int]]] = {}
        """Of what a graph borrowed, by its number, the parameters of which there are several slices; others always have
        the newest values. Asked for at every step, so kept."""

    def attach(self, parameter: Any, graph_parameter: GraphParameter, owner: Any) -> Array:
        """The array of `parameter` as this rank's graph holds it; from now on its values live here."""
        kept = self._kept.get(id(parameter))
        if kept is None:
            with room_for(f"parameter '{parameter.name}', {graph_parameter.type} on rank {self._job.rank}"):
                array = self._job.hardware.memory.place(self._first(parameter, graph_parameter))
            if not self._comes_from_rank_0(parameter, graph_parameter):
                where = slices_of(graph_parameter, self._job.rank)
                self._begun.append(beginning(graph_parameter.name, "parameter", where, parameter, array))
            kept = _Kept(parameter, [_Slice(graph_parameter, array)])
            self._kept[id(parameter)] = kept
            self._uses(owner, kept, 0)
            parameter.released(self)
            return array
        for index, known in enumerate(kept.slices):
            if known.graph_parameter.layout == graph_parameter.layout:
                self._uses(owner, kept, index)
                return known.array
        full = self.read(parameter)
        array = self._place(graph_parameter, full)
        kept.slices.append(_Slice(graph_parameter, array, kept.version))
        self._several.clear()
        self._uses(owner, kept, len(kept.slices) - 1)
        return array

    def _first(self, parameter: Any, graph_parameter: GraphParameter) -> Array:
        """The first values on this rank, those of rank 0 where the script wants them on all; then all ranks ask for
        them together."""
        mine = self._initial(parameter, graph_parameter)
        if not self._comes_from_rank_0(parameter, graph_parameter) or self._job.size == 1:
            return mine
        with occasion(self._job, f"takes the first values of '{parameter.name}' from rank 0", ""):
            with self._job.outside_user_code():
                return self._job.aside.broadcast(mine, 0, tuple(range(self._job.size)))

    def _comes_from_rank_0(self, parameter: Any, graph_parameter: GraphParameter) -> bool:
        is_whole = slices_of(graph_parameter, self._job.rank) is None and not parameter.layerwise_parallel
        return self.from_rank_0 and is_whole

    def take_begun(self) -> list[Beginning]:
        """The parameters that came here since this was last asked, as they began."""
        found = [begun for begun in self._begun if begun is not None]
        self._begun.clear()
        return found

    def _initial(self, parameter: Any, graph_parameter: GraphParameter) -> Array:
        """This rank's slice of the first values; the rest of a parameter that was not drawn yet never is."""
        initial = parameter.initial
        if initial is None:
            return cut_parameter(graph_parameter, np.asarray(parameter.value), self._job.rank, "parameter")
        return initial.fill(slices_of(graph_parameter, self._job.rank))

    def _place(self, graph_parameter: GraphParameter, full: Array) -> Array:
        mine = cut_parameter(graph_parameter, full, self._job.rank, "parameter")
        return self._job.hardware.memory.place(mine)

    def _store(self, mine: _Slice, full: Array) -> None:
        array = cut_parameter(mine.graph_parameter, full, self._job.rank, "parameter")
        self._job.hardware.memory.store(mine.array, array)

    def _uses(self, owner: Any, kept: _Kept, index: int) -> None:
        self._borrowed.setdefault(owner.number, []).append((kept, index))

    def detach(self, launched: Any) -> None:
        """The launched graph is no longer kept; the values of its parameters are."""
        self._borrowed.pop(launched.number, None)
        self._several.pop(launched.number, None)

    def prepare(self, launched: Any) -> None:
        """Bring the launched graph's slices up to date; they are, unless another graph places a
        parameter otherwise."""
        for kept, index in self._in_several_slices(launched):
            if kept.slices[index].version != kept.version:
                self._refresh(kept, index)

    def done(self, launched: Any) -> None:
        """The launched graph has run, and changed the parameters that it updates."""
        for kept, index in self._in_several_slices(launched):
            if kept.slices[index].graph_parameter.name in launched.mutated:
                kept.version += 1
                kept.slices[index].version = kept.version
                kept.newest = index

    def _in_several_slices(self, launched: Any) -> list[tuple[_Kept, int]]:
        found = self._several.get(launched.number)
        if found is None:
            borrowed = self._borrowed.get(launched.number, ())
            found = self._several[launched.number] = [(kept, index) for kept, index in borrowed if len(kept.slices) > 1]
        return found

    def _refresh(self, kept: _Kept, index: int) -> None:
        mine = kept.slices[index]
        self._store(mine, self._full(kept))
        mine.version = kept.version

    def _full(self, kept: _Kept) -> Array:
        newest = kept.slices[kept.newest]
        shape = full_type(newest.graph_parameter).shape
        local = self._job.hardware.memory.fetch(newest.array)
        return gather(local, newest.graph_parameter.layout, shape, self._job.aside)

    def read(self, parameter: Any) -> Array:
        """The full tensor, gathered where it is cut; then all ranks must read it."""
        kept = self._kept[id(parameter)]
        layout = kept.slices[kept.newest].graph_parameter.layout
        if self._job.size == 1 or layout is None or getattr(layout, "is_replicated", False):
            return np.array(self._job.hardware.memory.fetch(kept.slices[kept.newest].array))
        what = f"reads the sharded parameter '{parameter.name}'"
        with occasion(self._job, what, "", TOGETHER), self._job.outside_user_code():
            return self._full(kept)

    def part(self, parameter: Any) -> tuple[Layout | None, Array]:
        """How the newest values are cut (None: not at all), and this rank's slice of them."""
        kept = self._kept[id(parameter)]
        newest = kept.slices[kept.newest]
        layout = newest.graph_parameter.layout
        is_cut = isinstance(layout, Layout) and not layout.is_replicated
        return (layout if is_cut else None), self._job.hardware.memory.fetch(newest.array)

    def draw(self, parameter: Any, initial: Any) -> None:
        """Replace the values by those that an `InitialValue` makes, on every rank its own slices."""
        kept = self._kept[id(parameter)]
        for mine in kept.slices:
            array = initial.fill(slices_of(mine.graph_parameter, self._job.rank))
            self._job.hardware.memory.store(mine.array, array)

    def write(self, parameter: Any, array: Array) -> None:
        """Replace the full tensor; every rank gives the same."""
        for mine in self._kept[id(parameter)].slices:
            self._store(mine, np.asarray(array))
