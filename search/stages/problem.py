"""Input of the search for stage boundaries: a sequence of units with costs, and ways to run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from mspc.analysis.cost.machine import HOST_COPIES, Machine
from mspc.ir.graph import MICRO_BATCH, WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.host_memory import HostStores, take_apart_calls
from mspc.passes.lib.recomputation import within
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    GPIPE,
    GRADIENTS,
    INPUT_GRADIENT,
    INTERLEAVED,
    ONE_FORWARD_ONE_BACKWARD,
    RELEASES,
    SCHEDULES,
    THERE_AND_BACK,
    WEIGHT_GRADIENT,
    WITH_SPLIT_GRADIENTS,
    ZERO_BUBBLE_2P,
    ZERO_BUBBLE_H1,
    Made,
    Schedule,
    makes,
    reads,
)  # fmt: skip
from mspc.passes.lib.timeline import equal_durations, timeline

ON_DEVICE = 4
"""Micro-batches whose offloadable values are on the device: one produces them, one copies them out, one copies them
back, one reads them."""


@dataclass(frozen=True)
class HostBytes:
    """Values that may be offloaded. values: bytes per unit of one micro-batch that gradients read. seconds: to copy one
    byte."""

    values: np.ndarray
    seconds: float

    def only(self, units: np.ndarray) -> HostBytes:
        """Return the bytes of selected units, given as one bool per unit."""
        return HostBytes(np.where(units, self.values, 0.0), self.seconds)


BUSY = 2 / 3
"""Share of a stage's time that copies can use; they wait for compute, and compute waits for them."""
GIGA = 1 << 30


def host_bytes(values: np.ndarray, machine: Machine) -> HostBytes | None:
    """Return the bytes of every unit with a machine's seconds per byte; None if all are 0."""
    return HostBytes(values, machine.moving_seconds(GIGA, HOST_COPIES) / GIGA) if values.any() else None


def offloaded_bytes(alive: np.ndarray, values: np.ndarray, seconds: np.ndarray, host: HostBytes) -> np.ndarray:
    """Return [entry, row]: bytes of a stage that are on the host during each schedule entry. alive: [entry, chunk],
    number of micro-batches with saved forward results. values: [chunk, row], offloadable bytes of one micro-batch.
    seconds: [row], time available for the copies of one micro-batch."""
    all_values = values.sum(axis=0)
    share = np.minimum(1.0, BUSY * seconds / np.maximum(all_values * host.seconds, 1e-30))
    left = np.einsum("ek,kr->er", alive, values) - ON_DEVICE * values.max(axis=0, initial=0.0)
    return share * np.maximum(0.0, left)


def values_of(graph: Graph, cells: Sequence[str]) -> float:
    """Return the bytes of these cells' results that the gradients of one micro-batch read, in a stage's program. Calls
    in the program are inlined."""
    take_apart_calls(graph)
    found = 0.0
    for each in HostStores(graph):
        call = graph.nodes[each.made]
        if WORK in call.attrs and call.attrs[MICRO_BATCH] == 0 and any(within(each.maker.scope, c) for c in cells):
            found += each.value.type.nbytes
    return found


Numbers = np.ndarray
"""Float64 array, one number per unit."""
ONE_CHUNK = (ONE_FORWARD_ONE_BACKWARD, GPIPE, ZERO_BUBBLE_H1, ZERO_BUBBLE_2P)
IN_ROUNDS = INTERLEAVED
MAX_CHUNKS = 4
"""Maximum number of chunks of a stage in interleaved schedules."""


@dataclass(frozen=True)
class SeparateCosts:
    """Costs of units that run one by one instead of folded, as in schedules that separate input and weight gradients.
    forward: seconds. saved, resident, work, sent: as in `UnitCosts`. late: part of `saved` that weight gradients read.
    between: bytes that input gradients save of a micro-batch for weight gradients."""

    forward: Numbers
    saved: Numbers
    resident: Numbers
    work: Numbers
    sent: Numbers
    late: Numbers
    between: Numbers


@dataclass(frozen=True)
class UnitCosts:
    """Costs of units, one element per unit in each array, for a number of ranks per stage and of micro-batches.

    forward, backward: seconds for one micro-batch. inputs, weights: seconds of separate input and weight gradients.
    rest: seconds of a step outside micro-batches, such as the optimizer's. saved: bytes that one micro-batch saves for
    gradients. resident: bytes of parameters, their states and gradients, and other values that live across
    micro-batches. totals: part of these that are sums of gradients, which begin with the first micro-batch's. work:
    maximum bytes of buffers besides. entry: bytes that a micro-batch saves of the values received by a chunk that
    begins with the unit. message: seconds from each unit to the next, one element less than the others. sent: bytes in
    a step without messages between stages. sent_forward: bytes sent in a step by a stage that ends with the unit.
    sent_back: bytes sent back by a stage that begins with it. separate: of units that run one by one. loops: (first,
    number) of equal units that are folded; a unit that is alone in its chunk runs by itself. host: offloadable values,
    or None. late, between: as in `SeparateCosts`, set by `under`.
    """

    forward: Numbers
    backward: Numbers
    inputs: Numbers
    weights: Numbers
    rest: Numbers
    saved: Numbers
    resident: Numbers
    work: Numbers
    message: Numbers
    sent: Numbers
    entry: Numbers
    sent_forward: Numbers
    sent_back: Numbers
    totals: Numbers
    separate: SeparateCosts
    loops: tuple[tuple[int, int], ...] = ()
    host: HostBytes | None = None
    late: Numbers = field(default_factory=lambda: np.zeros(1))
    between: Numbers = field(default_factory=lambda: np.zeros(1))

    def alone(self, joint: Numbers, separate: Numbers, first: np.ndarray, end: np.ndarray) -> Numbers:
        """Return the additional cost of chunks from unit `first` to `end` that contain a single unit of a loop. joint,
        separate: costs of units in a loop and by themselves."""
        found = np.zeros(np.broadcast_shapes(first.shape, end.shape))
        for is_alone, unit in self.units_alone(first, end):
            found += np.where(is_alone, (separate - joint)[unit], 0.0)
        return found

    def units_alone(self, first: np.ndarray, end: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each loop, yield whether these chunks contain exactly one of its units, and which."""
        for begin, count in self.loops:
            own = np.maximum(first, begin)
            yield np.minimum(end, begin + count) - own == 1, np.minimum(own, self.count - 1)

    def under(self, way: Way) -> UnitCosts:
        """Return the costs under a schedule: those of separate units if it separates the gradients."""
        if not way.splits_gradients:
            return replace(self, late=np.zeros(self.count), between=np.zeros(self.count))
        own = self.separate
        return replace(
            self, forward=own.forward, backward=self.inputs + self.weights, saved=own.saved, resident=own.resident,
            work=own.work, sent=own.sent, late=own.late, between=own.between, loops=(),
        )  # fmt: skip

    @property
    def count(self) -> int:
        return len(self.forward)

    def only(self, units: Numbers) -> UnitCosts:
        """Return the costs with offloading for selected units only, given as one bool per unit."""
        return self if self.host is None else replace(self, host=self.host.only(units))


@dataclass(frozen=True)
class Way:
    """One way to run stages. schedule: its name. chunks: per stage. tensor: ranks that share a matmul in pairs of
    matmuls, 0 for searched layouts. slices: parameters and their states are sharded over ranks with replicas.
    recompute: cells are recomputed for gradients. states, values: optimizer states, and values saved for gradients, are
    offloaded to the host."""

    stages: int
    schedule: str
    micro_batches: int
    chunks: int = 1
    tensor: int = 0
    slices: bool = False
    recompute: bool = False
    states: bool = False
    values: bool = False

    @property
    def actions(self) -> Schedule:
        """The order of actions. Raise MspcError if there is none for these numbers."""
        return SCHEDULES[self.schedule](self.stages, self.micro_batches, self.chunks)

    @property
    def order(self) -> Way:
        """The way with only the fields that determine the order of actions."""
        return Way(self.stages, self.schedule, self.micro_batches, self.chunks)

    @property
    def parts(self) -> int:
        """Number of chunks of all stages."""
        return self.stages * self.chunks

    @property
    def splits_gradients(self) -> bool:
        """Whether input gradients and weight gradients are separate actions."""
        return self.schedule in WITH_SPLIT_GRADIENTS

    @property
    def scheduler(self) -> str:
        """Name of the schedule in scripts and plans, in which interleaving follows from the number of chunks."""
        return ONE_FORWARD_ONE_BACKWARD if self.schedule == IN_ROUNDS else self.schedule

    @property
    def name(self) -> str:
        """Name for people."""
        several = f", {self.chunks} chunks" if self.chunks > 1 and self.schedule not in THERE_AND_BACK else ""
        return self.schedule + several

    @property
    def memory_measures(self) -> str:
        """The measures that lower memory, as the end of a message; "" for none."""
        ways = ["parameters in slices"] * self.slices + ["cells computed again"] * self.recompute
        ways += ["states on the host"] * self.states + ["values on the host"] * self.values
        return "".join(f", {way}" for way in ways)


def ways_of(
    stages: int, micro_batches: int, units: int, tensor: int = 0, slices: bool = False, recompute: bool = False,
    states: bool = False,
) -> list[Way]:  # fmt: skip
    """Return the ways for these numbers. Every stage has work, and there are at least as many micro-batches as stages.
    With recomputed cells, weight gradients are not separate, because the values that they read would stay saved until
    then."""
    if micro_batches < stages or stages > units:
        return []
    found = [Way(stages, name, micro_batches) for name in ONE_CHUNK]
    rounds = range(2, MAX_CHUNKS + 1)
    found += [Way(stages, IN_ROUNDS, micro_batches, chunks) for chunks in rounds if stages * chunks <= units]
    if 2 * stages <= units:
        found += [Way(stages, name, micro_batches, 2) for name in sorted(THERE_AND_BACK)]
    found = [replace(way, tensor=tensor, slices=slices, recompute=recompute, states=states) for way in found]
    return [way for way in found if not (recompute and way.splits_gradients)]


Boundaries = tuple[int, ...]
"""First unit of every chunk except the first chunk, ascending; every chunk has at least one unit."""


def equal_parts(units: int, parts: int) -> Boundaries:
    """Return boundaries with nearly equal numbers of units per part, larger parts first."""
    size, larger = divmod(units, parts)
    return tuple(size * i + min(i, larger) for i in range(1, parts))


@lru_cache(maxsize=256)
def walk_of(way: Way) -> Walk:
    """Return the walk of a way, cached by the order of actions."""
    return Walk(way)


class Walk:
    """Actions of all stages in one topological order: their order under equal durations."""

    def __init__(self, way: Way) -> None:
        self.way, self.schedule = way, way.actions
        line = timeline(self.schedule, equal_durations(self.schedule))
        spans = [(span.start, stage, span.action) for stage, row in enumerate(line.spans) for span in row]
        numbers: dict[Made, int] = {}
        self._steps: list[tuple[int, int, int, list[tuple[int, bool]], range]] = []
        """For every action: its stage, its row of durations, its chunk, (value, comes by a message) pairs, values
        made."""
        rows = {FORWARD: 0, BACKWARD: 1, INPUT_GRADIENT: 2, WEIGHT_GRADIENT: 3}
        for _, stage, action in sorted(spans, key=lambda span: span[:2]):
            values = reads(action, self.schedule.chunks)
            read = [(numbers[value], self.schedule.placement[value[1]] != stage) for value in values]
            made = makes(action)
            first = len(numbers)
            numbers |= {value: first + i for i, value in enumerate(made)}
            self._steps.append((stage, rows[action.kind], action.chunk, read, range(first, first + len(made))))
        self._values = len(numbers)
        self._max_saved = [saved_micro_batches(self.schedule, stage) for stage in range(self.schedule.stages)]

    def max_saved(self, stage: int) -> int:
        """Return the maximum number of micro-batches, summed over chunks, with saved results on a stage at once."""
        return int(self._max_saved[stage][:, 1].sum(axis=1).max(initial=0))

    def max_saved_of_chunk(self, chunk: int) -> tuple[int, int]:
        """Return the maximum number of micro-batches of one chunk with saved results at once: (with all results, with
        those for the weight gradients)."""
        stage = self.schedule.placement[chunk]
        own = self._max_saved[stage][:, :2, self.schedule.chunks_of(stage).index(chunk)].max(axis=0, initial=0)
        return int(own[0]), int(own[1])

    def seconds(self, costs: UnitCosts, boundaries: np.ndarray) -> Numbers:
        """Return the seconds of a step for each row of `boundaries`, of shape (rows, parts - 1)."""
        costs = costs.under(self.way)
        sums = _Sums(costs, boundaries)
        durations = np.stack([
            sums.of(costs.forward, costs.separate.forward), sums.of(costs.backward, costs.inputs + costs.weights),
            sums.of(costs.inputs), sums.of(costs.weights),
        ])  # fmt: skip
        message = costs.message[boundaries - 1].max(axis=1) if boundaries.shape[1] else np.zeros(len(boundaries))
        made = np.empty((self._values, len(boundaries)))
        clocks = np.zeros((self.schedule.stages, len(boundaries)))
        for stage, row, chunk, read, numbers in self._steps:
            clock = clocks[stage]
            for value, comes in read:
                np.maximum(clock, made[value] + message if comes else made[value], out=clock)
            clock += durations[row, chunk]
            for number in numbers:
                made[number] = clock
        return (clocks + self._of_stages(sums.of(costs.rest))).max(axis=0)

    def memory(self, costs: UnitCosts, boundaries: np.ndarray) -> Numbers:
        """Return the peak bytes of the fullest stage, for each row of `boundaries`."""
        return self.memory_of_stages(costs, boundaries).max(axis=0)

    def memory_of_stages(self, costs: UnitCosts, boundaries: np.ndarray) -> np.ndarray:
        """Return [stage, row]: peak bytes of every stage."""
        costs = costs.under(self.way)
        sums = _Sums(costs, boundaries)
        late, between = sums.of(costs.late), sums.of(costs.between)
        saved = sums.of(costs.saved, costs.separate.saved) + costs.entry[sums.edges[:-1]]
        if self.way.splits_gradients:  # the first chunk's input gradients run with the weight gradients
            late[0], between[0] = saved[0], costs.entry[sums.edges[1]] if len(sums.edges) > 2 else 0
        work = sums.largest(costs.work, costs.separate.work)
        totals = sums.of(costs.totals)
        on_host = None if costs.host is None else sums.of(costs.host.values)
        pace = self._pace(sums) if on_host is not None else np.zeros(())
        full = self._of_stages(sums.of(costs.resident, costs.separate.resident) - totals)
        for stage, alive in enumerate(self._max_saved):
            own = self.schedule.chunks_of(stage)
            nbytes = np.stack([saved[own] - late[own], late[own], between[own], totals[own]])
            of_entries = np.einsum("eko,kor->er", alive, nbytes)
            if on_host is not None and costs.host is not None:
                of_entries -= offloaded_bytes(alive[:, 0], on_host[own], pace[own].sum(axis=0), costs.host)
            full[stage] += of_entries.max(axis=0) + work[own].max(axis=0)
        return full

    def _pace(self, sums: _Sums) -> np.ndarray:
        """Return [chunk, row]: seconds of a stage from one micro-batch to the next; of forwards only, if all forwards
        precede all gradients."""
        costs, entries = sums.costs, self.schedule.entries[self.schedule.placement[-1]]
        forward = sums.of(costs.forward, costs.separate.forward)
        kinds = [action.kind for action in entries]
        if FORWARD not in kinds[kinds.count(FORWARD) :]:
            return forward
        return forward + sums.of(costs.backward, costs.inputs + costs.weights)

    def max_bytes_sent(self, costs: UnitCosts, boundaries: np.ndarray) -> Numbers:
        """Return the bytes that a rank of the busiest stage sends, for each row of `boundaries`."""
        costs, placement = costs.under(self.way), self.schedule.placement
        sums = _Sums(costs, boundaries)
        found = sums.of(costs.sent, costs.separate.sent)
        for boundary, (stage, following) in enumerate(pairwise(placement)):
            if stage != following:
                found[boundary] += costs.sent_forward[sums.edges[boundary + 1] - 1]
                found[boundary + 1] += costs.sent_back[sums.edges[boundary + 1]]
        return self._of_stages(found).max(axis=0)

    def idle(self, costs: UnitCosts, boundaries: np.ndarray) -> Numbers:
        """Return the mean share of a step that stages wait, for each row of `boundaries`."""
        costs, count = costs.under(self.way), self.way.micro_batches
        sums = _Sums(costs, boundaries)
        of_one = sums.of(costs.forward, costs.separate.forward)
        of_one += sums.of(costs.backward, costs.inputs + costs.weights)
        busy = count * of_one + sums.of(costs.rest)
        return 1 - busy.sum(axis=0) / self.schedule.stages / self.seconds(costs, boundaries)

    def _of_stages(self, by_chunk: np.ndarray) -> np.ndarray:
        found = np.zeros((self.schedule.stages, by_chunk.shape[1]))
        for chunk, stage in enumerate(self.schedule.placement):
            found[stage] += by_chunk[chunk]
        return found


def saved_micro_batches(schedule: Schedule, stage: int) -> np.ndarray:
    """Return [entry, 4, chunk of the stage]: numbers of micro-batches with live values during the schedule entries of a
    stage: forward results for input gradients; forward results for weight gradients; results of input gradients for
    weight gradients; and 1 if sums of gradients are live. Equal entries are listed once."""
    own = {chunk: place for place, chunk in enumerate(schedule.chunks_of(stage))}
    now = np.zeros((4, len(own)))
    found: dict[bytes, np.ndarray] = {}
    for action in schedule.entries[stage]:
        chunk = own[action.chunk]
        now[:2, chunk] += action.kind == FORWARD
        now[2, chunk] += action.kind in GRADIENTS
        found.setdefault(now.tobytes(), now.copy())
        now[0, chunk] -= action.kind in GRADIENTS
        if action.kind in RELEASES:
            now[1:3, chunk] -= 1
            now[3, chunk] = 1
    return np.array(list(found.values()))


class _Sums:
    """Sums over the units of every chunk, [chunk, row of the boundaries]. costs: under a schedule."""

    def __init__(self, costs: UnitCosts, boundaries: np.ndarray) -> None:
        self.costs = costs
        ends = np.full((len(boundaries), 1), costs.count)
        self.edges = np.concatenate([np.zeros((len(boundaries), 1), int), boundaries, ends], axis=1).T

    def of(self, numbers: Numbers, separate: Numbers | None = None) -> np.ndarray:
        """Return the sums. separate: numbers of units that run by themselves instead of in a loop."""
        behind = np.concatenate([[0.0], np.cumsum(numbers)])
        first, end = self.edges[:-1], self.edges[1:]
        found = behind[end] - behind[first]
        return found if separate is None else found + self.costs.alone(numbers, separate, first, end)

    def largest(self, numbers: Numbers, separate: Numbers) -> np.ndarray:
        """Return the maximum instead of the sum."""
        first, end = self.edges[:-1], self.edges[1:]
        found = largest_of(numbers)[first, end]
        for is_alone, unit in self.costs.units_alone(first, end):
            found = np.where(is_alone, np.maximum(found, separate[unit]), found)
        return found


def largest_of(numbers: Numbers) -> np.ndarray:
    """Return [first, end]: the maximum over units first to end - 1."""
    count = len(numbers)
    table = np.zeros((count + 1, count + 1))
    for first in range(count):
        table[first, first + 1 :] = np.maximum.accumulate(numbers[first:])
    return table
