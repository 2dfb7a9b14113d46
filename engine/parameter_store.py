"""Storage of a script's Parameters while graphs train them: every rank holds its slices, and reading a Parameter
gathers it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mspc.engine.initial_values import RankInitialValue, initial_of
from mspc.engine.job import JOINT_NOTES, Job, joint_call
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OFFLOAD, stages_of
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.cpu.blocks import thread_count
from mspc.runtime.available_memory import explain_memory_errors
from mspc.runtime.data import full_type, gather, padded_slice, slice_parameter, slices_of

if TYPE_CHECKING:
    from concurrent.futures import Future


# Parameters held by pipeline stages: their ranks send values to the ranks of all other stages.


Array = Any


def on_all_stages(job: Job, parameter: GraphParameter, full: Array | None) -> Array:
    """Return the full tensor of a parameter that only some stages hold; all ranks call this together.

    full: the tensor on the ranks of these stages; None on all others.
    """
    assert isinstance(parameter.layout, Layout)
    type = full_type(parameter)
    given = np.empty(type.shape, type.dtype.numpy) if full is None else full
    return job.aside.broadcast(given, stages_of(parameter.attrs)[0] * parameter.layout.ranks, tuple(range(job.size)))


class OtherStage:
    """Access to a parameter on ranks that do not hold it."""

    holds = False

    def __init__(self, job: Job, parameter: GraphParameter) -> None:
        self._job, self._parameter = job, parameter

    def read(self, parameter: Any) -> Array:
        """Return the full tensor, from a stage that holds it; all ranks must read it."""
        what = f"reads '{parameter.name}', which stage {stages_of(self._parameter.attrs)[0]} holds"
        with joint_call(self._job, what, "", JOINT_NOTES), self._job.outside_user_code():
            return on_all_stages(self._job, self._parameter, None)

    def write(self, parameter: Any, array: Array) -> None:
        """Do nothing: the ranks that hold the parameter replace it."""

    def draw(self, parameter: Any, initial: Any) -> None:
        """Do nothing, like `write`."""

    def part(self, parameter: Any) -> tuple[Layout | None, Array]:
        """Not called: callers check `Parameter.is_here` first."""
        raise AssertionError(f"no part of '{parameter.name}' is here")


# Initial values are drawn early, several tensors in parallel: random numbers take most of a large network's first step
# on the CPU.


MIN_THREADED_ELEMENTS = 1 << 22
"""Minimum number of elements of all tensors for which threads pay off: about 40 ms of one core."""
MIN_EARLY_ELEMENTS = 1 << 15
"""Minimum number of elements of a tensor that is drawn early."""
MAX_BYTES = 1 << 30
"""Maximum bytes of tensors that are drawn and not yet taken; a single tensor may exceed it."""


class _DrawRequest(NamedTuple):
    key: int
    initial: Any
    slices: tuple[slice, ...] | None
    nbytes: int


class EarlyDraws:
    """Initial values of Parameters, drawn in threads and taken in the order of `wanted`.

    Only mspc's own initializers are drawn early, with the same numbers as in sequence. rank: whose slices are drawn.
    """

    def __init__(self, wanted: Iterable[tuple[Any, GraphParameter]], rank: int) -> None:
        self._waiting = deque(self._drawn(wanted, rank))
        self._begun: dict[int, tuple[Future[Array], int]] = {}
        self._nbytes = 0
        self._pool: Any = None
        threads = min(thread_count(), len(self._waiting))
        if threads < 2 or sum(each.nbytes for each in self._waiting) < 4 * MIN_THREADED_ELEMENTS:
            self._waiting.clear()
            return
        from concurrent.futures import ThreadPoolExecutor  # late: small tensors need none

        self._pool = ThreadPoolExecutor(threads, "mspc-first-values")
        self._begin()

    def take(self, parameter: Any) -> Array | None:
        """Return this rank's slice of a Parameter's initial values; None if it was not drawn. Raise the error of
        drawing it."""
        found = self._begun.pop(id(parameter), None)
        if found is None:
            return None
        future, nbytes = found
        try:
            return future.result()
        finally:
            self._nbytes -= nbytes
            self._begin()

    def close(self) -> None:
        """Stop drawing."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _drawn(self, wanted: Iterable[tuple[Any, GraphParameter]], rank: int) -> list[_DrawRequest]:
        found: dict[int, _DrawRequest] = {}
        for parameter, of_graph in wanted:
            initial = parameter.initial
            if initial is not None and of_graph.tensor_type.size >= MIN_EARLY_ELEMENTS and _is_random(initial):
                slices = slices_of(of_graph, rank)
                found.setdefault(
                    id(parameter), _DrawRequest(id(parameter), initial, slices, of_graph.tensor_type.nbytes)
                )
        return list(found.values())

    def _begin(self) -> None:
        while self._waiting and (not self._begun or self._nbytes + self._waiting[0].nbytes <= MAX_BYTES):
            each = self._waiting.popleft()
            self._begun[each.key] = self._pool.submit(each.initial.fill, each.slices), each.nbytes
            self._nbytes += each.nbytes


def _is_random(initial: Any) -> bool:
    try:
        described = initial.description()
    except MspcError:  # reported when the parameter is attached
        return False
    return described is not None and described.distribution.random


@dataclass
class _Slice:
    """One graph's slice of a parameter. array: in device memory. version: of its values."""

    graph_parameter: GraphParameter
    array: Array
    version: int = 0


@dataclass
class _StoredParameter:
    """Slices of a parameter; graphs with the same placement share one array. parameter: weak reference to it. newest:
    index of the slice with the newest values."""

    parameter: weakref.ref[Any]
    slices: list[_Slice] = field(default_factory=list[_Slice])
    newest: int = 0
    version: int = 0
    varies: bool = False
    """Whether a graph updates the values."""
    relying: list[Any] = field(default_factory=list[Any])
    """Calls whose graphs were compiled for these values."""

    def changed(self) -> None:
        """Record that the values have changed: graphs compiled for the earlier ones are outdated."""
        for compiled_call in self.relying:
            compiled_call.is_outdated = True
        self.relying.clear()


class ParameterStore:
    """Parameters of one rank's script. All ranks read and write a sharded parameter together."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.from_rank_0 = False
        """Whether parameters of which every rank holds all start with rank 0's values (`parameter_broadcast`)."""
        self._stored: dict[int, _StoredParameter] = {}
        self._ahead: EarlyDraws | None = None
        self._begun: list[RankInitialValue | None] = []
        self._borrowed: dict[int, list[tuple[_StoredParameter, int]]] = {}
        self._several: dict[int, list[tuple[_StoredParameter, int]]] = {}
        """Parameters with several slices that a graph borrowed, by the number of the graph; others always have the
        newest values. Needed at every step, so cached."""

    @contextmanager
    def drawn_early(self, wanted: Iterable[tuple[Any, GraphParameter]]) -> Generator[None]:
        """Return a context in which Parameters are attached in this order, with early draws."""
        new = [(parameter, of_graph) for parameter, of_graph in wanted if id(parameter) not in self._stored]
        self._ahead = EarlyDraws(new, self._job.rank)
        try:
            yield
        finally:
            self._ahead.close()
            self._ahead = None

    def attach(self, parameter: Any, graph_parameter: GraphParameter, owner: Any) -> Array:
        """Return the array of `parameter` for this rank's graph; from now on its values are stored here."""
        stored = self._stored.get(id(parameter))
        if stored is None:
            with explain_memory_errors(
                f"parameter '{parameter.name}', {graph_parameter.type} on rank {self._job.rank}"
            ):
                array = self._begin(parameter, graph_parameter)
            if not self._is_broadcast_from_rank_0(parameter, graph_parameter):
                where = slices_of(graph_parameter, self._job.rank)
                self._begun.append(initial_of(graph_parameter.name, "parameter", where, parameter, array))
            key = id(parameter)
            gone = weakref.ref(parameter, lambda _: self._stored.pop(key, None))
            stored = self._stored[key] = _StoredParameter(gone, [_Slice(graph_parameter, array)])
            self._uses(owner, stored, 0)
            parameter.released(self)
            return array
        for index, known in enumerate(stored.slices):
            one = known.graph_parameter
            is_offloaded = (OFFLOAD in one.attrs) == (OFFLOAD in graph_parameter.attrs)
            if one.layout == graph_parameter.layout and one.type == graph_parameter.type and is_offloaded:
                self._uses(owner, stored, index)
                return known.array
        memory = self._job.hardware.memory
        mine = self._own_slice(graph_parameter, self.read(parameter), not memory.copies)
        array = memory.place(mine, OFFLOAD in graph_parameter.attrs)
        stored.slices.append(_Slice(graph_parameter, array, stored.version))
        self._several.clear()
        self._uses(owner, stored, len(stored.slices) - 1)
        return array

    def _begin(self, parameter: Any, graph_parameter: GraphParameter) -> Array:
        """Return the initial values on this rank, in device memory: rank 0's if the script broadcasts them; then all
        ranks call this together."""
        job, type = self._job, graph_parameter.tensor_type
        memory, on_host = job.hardware.memory, OFFLOAD in graph_parameter.attrs
        takes_part = job.size > 1 and self._is_broadcast_from_rank_0(parameter, graph_parameter)
        described = None if parameter.initial is None else parameter.initial.description()
        if described is not None and described.is_zero and not takes_part:
            return memory.zeros(type.shape, type.dtype.numpy, on_host)
        mine = self._initial(parameter, graph_parameter)
        if not takes_part:
            return memory.place(mine, on_host)
        what = f"takes the first values of '{parameter.name}' from rank 0"
        with joint_call(job, what, ""), job.outside_user_code():
            mine = job.aside.broadcast(mine, 0, tuple(range(job.size)))
        return memory.place(mine, on_host)

    def _is_broadcast_from_rank_0(self, parameter: Any, graph_parameter: GraphParameter) -> bool:
        is_replicated = slices_of(graph_parameter, self._job.rank) is None and not parameter.layerwise_parallel
        return self.from_rank_0 and is_replicated

    def take_initial_values(self) -> list[RankInitialValue]:
        """Return the initial values of the parameters attached since the last call."""
        found = [begun for begun in self._begun if begun is not None]
        self._begun.clear()
        return found

    def _initial(self, parameter: Any, graph_parameter: GraphParameter) -> Array:
        """Return this rank's slice of the initial values; the rest of an unsampled parameter is never generated."""
        initial = parameter.initial
        if initial is None:
            return self._own_slice(graph_parameter, parameter.array, not self._job.hardware.memory.copies)
        drawn = None if self._ahead is None else self._ahead.take(parameter)
        return padded_slice(graph_parameter, self._drawn(graph_parameter, initial) if drawn is None else drawn)

    def _drawn(self, graph_parameter: GraphParameter, initial: Any) -> Array:
        """Return the initial values of this rank's slice, without padding."""
        slices, type = slices_of(graph_parameter, self._job.rank), graph_parameter.tensor_type
        if slices is not None and any(s.start == s.stop for s in slices) and type.size:
            return np.zeros([s.stop - s.start for s in slices], type.dtype.numpy)  # nothing but padding
        return initial.fill(slices)

    def _own_slice(self, graph_parameter: GraphParameter, full: Array, copied: bool) -> Array:
        return slice_parameter(graph_parameter, np.asarray(full), self._job.rank, "parameter", copied)

    def _store(self, mine: _Slice, full: Array) -> None:
        self._job.hardware.memory.store(mine.array, self._own_slice(mine.graph_parameter, full, copied=False))

    def _uses(self, owner: Any, stored: _StoredParameter, index: int) -> None:
        self._borrowed.setdefault(owner.number, []).append((stored, index))

    def rely(self, parameter: Any, compiled_call: Any) -> None:
        """Record that the call's graph was compiled for the current values: it `is_outdated` once they are replaced."""
        self._stored[id(parameter)].relying.append(compiled_call)

    def varies(self, parameter: Any) -> bool:
        """Return whether a graph updates a stored parameter."""
        return self._stored[id(parameter)].varies

    def changed_by(self, compiled_call: Any) -> None:
        """Record that a graph updates the parameters of its `mutated`, so that no other graph relies on their
        values."""
        for stored, index in self._borrowed.get(compiled_call.number, ()):
            if stored.slices[index].graph_parameter.name in compiled_call.mutated:
                stored.varies = True
                stored.changed()

    def detach(self, compiled_call: Any) -> None:
        """Record that a launched graph is no longer stored; the values of its parameters remain."""
        for stored, _ in self._borrowed.pop(compiled_call.number, ()):
            stored.relying = [each for each in stored.relying if each is not compiled_call]
        self._several.pop(compiled_call.number, None)

    def prepare(self, compiled_call: Any) -> None:
        """Update the launched graph's slices, if other graphs place parameters differently."""
        for stored, index in self._in_several_slices(compiled_call):
            mine = stored.slices[index]
            if mine.version != stored.version:
                self._store(mine, self._full(stored))
                mine.version = stored.version

    def done(self, compiled_call: Any) -> None:
        """Record that the launched graph has run and updated its parameters."""
        for stored, index in self._in_several_slices(compiled_call):
            if stored.slices[index].graph_parameter.name in compiled_call.mutated:
                stored.version += 1
                stored.slices[index].version = stored.version
                stored.newest = index

    def _in_several_slices(self, compiled_call: Any) -> list[tuple[_StoredParameter, int]]:
        found = self._several.get(compiled_call.number)
        if found is None:
            borrowed = self._borrowed.get(compiled_call.number, ())
            found = self._several[compiled_call.number] = [entry for entry in borrowed if len(entry[0].slices) > 1]
        return found

    def _full(self, stored: _StoredParameter) -> Array:
        newest = stored.slices[stored.newest]
        shape = full_type(newest.graph_parameter).shape
        local = self._job.hardware.memory.fetch(newest.array)
        return gather(local, newest.graph_parameter.layout, shape, self._job.aside)

    def read(self, parameter: Any) -> Array:
        """Return the full tensor, gathered if it is sharded; then all ranks must read it."""
        stored = self._stored[id(parameter)]
        of_graph = stored.slices[stored.newest].graph_parameter
        layout, staged = of_graph.layout, bool(stages_of(of_graph.attrs))
        if not staged and (self._job.size == 1 or layout is None or getattr(layout, "is_replicated", False)):
            full = self._job.hardware.memory.fetch(stored.slices[stored.newest].array)
            return np.array(full[tuple(map(slice, full_type(of_graph).shape))])
        what = f"reads the sharded parameter '{parameter.name}'"
        with joint_call(self._job, what, "", JOINT_NOTES), self._job.outside_user_code():
            full = self._full(stored)
            return on_all_stages(self._job, of_graph, full) if staged else full

    def leave(self, parameter: Any, graph_parameter: GraphParameter) -> None:
        """Record that ranks of other stages hold a parameter; a parameter already stored here stays."""
        if id(parameter) not in self._stored:
            parameter.released(OtherStage(self._job, graph_parameter))

    def part(self, parameter: Any) -> tuple[Layout | None, Array]:
        """Return (layout of the newest values or None, this rank's slice of them with padding). The layout also says if
        only one stage holds them."""
        stored = self._stored[id(parameter)]
        newest = stored.slices[stored.newest]
        layout = newest.graph_parameter.layout
        staged = bool(stages_of(newest.graph_parameter.attrs))
        is_sharded = isinstance(layout, Layout) and (staged or not layout.is_replicated)
        return (layout if is_sharded else None), self._job.hardware.memory.fetch(newest.array)

    def draw(self, parameter: Any, initial: Any) -> None:
        """Replace the values by those of an `InitialValue`; every rank generates its own slices."""
        stored = self._stored[id(parameter)]
        stored.changed()
        for mine in stored.slices:
            array = padded_slice(mine.graph_parameter, self._drawn(mine.graph_parameter, initial))
            self._job.hardware.memory.store(mine.array, array)

    def write(self, parameter: Any, array: Array) -> None:
        """Replace the full tensor; every rank passes the same."""
        stored = self._stored[id(parameter)]
        stored.changed()
        for mine in stored.slices:
            self._store(mine, np.asarray(array))
