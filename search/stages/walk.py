"""The step's time of many choices of borders at once, by the rules of `passes/lib/timeline.py`."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    RELEASES,
    WEIGHT_GRADIENT,
    Made,
    Schedule,
    makes,
    parts_of,
    reads,
)  # fmt: skip
from mspc.passes.lib.timeline import equal_durations, timeline
from mspc.search.stages.host_bytes import spared
from mspc.search.stages.problem import Numbers, UnitCosts, Way


@lru_cache(maxsize=256)
def walk_of(way: Way) -> Walk:
    """The walk of a way, which is the same whatever ranks share and hold."""
    return Walk(way)


class Walk:
    """All stages' entries in one order in which none comes before what it waits for: that of equal times."""

    def __init__(self, way: Way) -> None:
        self.way, self.schedule = way, way.made
        line = timeline(self.schedule, equal_durations(self.schedule), overlap=None)
        spans = [(span.start, stage, span.entry) for stage, row in enumerate(line.spans) for span in row]
        numbers: dict[Made, int] = {}
        self._steps: list[tuple[int, list[tuple[int, int]], list[tuple[int, bool]], list[int]]] = []
        """Of every entry its stage, its (row of durations, chunk) pairs, (value, comes by a message), values made."""
        rows = {FORWARD: 0, BACKWARD: 1, INPUT_GRADIENT: 2, WEIGHT_GRADIENT: 3}
        for _, stage, entry in sorted(spans, key=lambda span: span[:2]):
            read: list[tuple[int, bool]] = []
            for value in (value for part in parts_of(entry) for value in reads(part, self.schedule.chunks)):
                read.append((numbers[value], self.schedule.placement[value[1]] != stage))
            made = [value for part in parts_of(entry) for value in makes(part)]
            first = len(numbers)
            numbers |= {value: first + i for i, value in enumerate(made)}
            work = [(rows[part.kind], part.chunk) for part in parts_of(entry)]
            self._steps.append((stage, work, read, list(range(first, first + len(made)))))
        self._values = len(numbers)
        self._kept = [kept_during(self.schedule, stage) for stage in range(self.schedule.stages)]

    def kept(self, stage: int) -> int:
        """Micro-batches of chunks that a stage keeps at most at once."""
        return int(self._kept[stage][:, 1].sum(axis=1).max(initial=0))

    def kept_of_chunk(self, chunk: int) -> tuple[int, int]:
        """Micro-batches of one chunk that its stage keeps at most at once: all that is kept of them, and until the
        gradients of weights."""
        stage = self.schedule.placement[chunk]
        own = self._kept[stage][:, :2, self.schedule.chunks_of(stage).index(chunk)].max(axis=0, initial=0)
        return int(own[0]), int(own[1])

    def seconds(self, costs: UnitCosts, borders: np.ndarray) -> Numbers:
        """The time of a step by each row of `borders`, of shape (rows, parts - 1)."""
        sums = _Sums(costs, borders, self.way)
        durations = np.stack([
            sums.of(costs.forward_of(self.way), costs.apart.forward),
            sums.of(costs.backward_of(self.way), costs.inputs + costs.weights),
            sums.of(costs.inputs), sums.of(costs.weights),
        ])  # fmt: skip
        message = costs.message[borders - 1].max(axis=1) if borders.shape[1] else np.zeros(len(borders))
        made = np.empty((self._values, len(borders)))
        clocks = np.zeros((self.schedule.stages, len(borders)))
        for stage, work, read, numbers in self._steps:
            clock = clocks[stage]
            for value, comes in read:
                np.maximum(clock, made[value] + message if comes else made[value], out=clock)
            for row, chunk in work:
                clock += durations[row, chunk]
            for number in numbers:
                made[number] = clock
        return (clocks + self._of_stages(sums.of(costs.rest))).max(axis=0)

    def memory(self, costs: UnitCosts, borders: np.ndarray) -> Numbers:
        """Bytes that the fullest stage takes at most, by each row of `borders`."""
        return self.memory_of_stages(costs, borders).max(axis=0)

    def memory_of_stages(self, costs: UnitCosts, borders: np.ndarray) -> np.ndarray:
        """[stage, row]: the same of every stage."""
        sums = _Sums(costs, borders, self.way)
        late, between = sums.of(costs.late_of(self.way)), sums.of(costs.between_of(self.way))
        kept = sums.of(costs.kept_of(self.way), costs.apart.kept) + costs.entry[sums.edges[:-1]]
        if self.way.is_apart:  # nobody waits for gradients of what the first chunk reads: all run with those of weights
            late[0], between[0] = kept[0], costs.entry[sums.edges[1]] if len(sums.edges) > 2 else 0
        work = sums.most(costs.work_of(self.way), costs.apart.work)
        totals = sums.of(costs.totals)
        on_host = None if costs.host is None else sums.of(costs.host.values)
        pace = self._pace(sums) if on_host is not None else np.zeros(())
        full = self._of_stages(sums.of(costs.held_of(self.way), costs.apart.held) - totals)
        for stage, alive in enumerate(self._kept):
            own = self.schedule.chunks_of(stage)
            nbytes = np.stack([kept[own] - late[own], late[own], between[own], totals[own]])
            of_entries = np.einsum("eko,kor->er", alive, nbytes)
            if on_host is not None and costs.host is not None:
                of_entries -= spared(alive[:, 0], on_host[own], pace[own].sum(axis=0), costs.host)
            full[stage] += of_entries.max(axis=0) + work[own].max(axis=0)
        return full

    def _pace(self, sums: _Sums) -> np.ndarray:
        """[chunk, row]: the seconds of a stage between one micro-batch and the next: of forwards alone where all are
        ahead of all gradients."""
        costs, entries = sums.costs, self.schedule.entries[self.schedule.placement[-1]]
        forward = sums.of(costs.forward_of(self.way), costs.apart.forward)
        kinds = [part.kind for entry in entries for part in parts_of(entry)]
        if FORWARD not in kinds[kinds.count(FORWARD) :]:
            return forward
        return forward + sums.of(costs.backward_of(self.way), costs.inputs + costs.weights)

    def most_sent(self, costs: UnitCosts, borders: np.ndarray) -> Numbers:
        """Bytes that a rank of the busiest stage sends, by each row of `borders`."""
        sums, placement = _Sums(costs, borders, self.way), self.schedule.placement
        found = sums.of(costs.sent_of(self.way), costs.apart.sent)
        for border, (stage, following) in enumerate(pairwise(placement)):
            if stage != following:
                found[border] += costs.there[sums.edges[border + 1] - 1]
                found[border + 1] += costs.back[sums.edges[border + 1]]
        return self._of_stages(found).max(axis=0)

    def idle(self, costs: UnitCosts, borders: np.ndarray) -> Numbers:
        """The share of a step in which stages wait, in the mean, by each row of `borders`."""
        sums, count = _Sums(costs, borders, self.way), self.way.micro_batches
        of_one = sums.of(costs.forward_of(self.way), costs.apart.forward)
        of_one += sums.of(costs.backward_of(self.way), costs.inputs + costs.weights)
        busy = count * of_one + sums.of(costs.rest)
        return 1 - busy.sum(axis=0) / self.schedule.stages / self.seconds(costs, borders)

    def _of_stages(self, by_chunk: np.ndarray) -> np.ndarray:
        found = np.zeros((self.schedule.stages, by_chunk.shape[1]))
        for chunk, stage in enumerate(self.schedule.placement):
            found[stage] += by_chunk[chunk]
        return found


def kept_during(schedule: Schedule, stage: int) -> np.ndarray:
    """[entry, 4, chunk of the stage]: micro-batches of which it keeps, during its entries, what gradients of inputs
    need of forwards; what those of weights need of these, and of the gradients of inputs; and whether there are sums of
    gradients by then."""
    own = {chunk: place for place, chunk in enumerate(schedule.chunks_of(stage))}
    now = np.zeros((4, len(own)))
    found: dict[bytes, np.ndarray] = {}
    for entry in schedule.entries[stage]:
        for part in parts_of(entry):
            chunk = own[part.chunk]
            now[:2, chunk] += part.kind == FORWARD
            now[2, chunk] += part.kind in GRADIENTS
        found.setdefault(now.tobytes(), now.copy())
        for part in parts_of(entry):
            chunk = own[part.chunk]
            now[0, chunk] -= part.kind in GRADIENTS
            if part.kind in RELEASES:
                now[1:3, chunk] -= 1
                now[3, chunk] = 1
    return np.array(list(found.values()))


class _Sums:
    """Sums over the units of every chunk, [chunk, row of the borders]."""

    def __init__(self, costs: UnitCosts, borders: np.ndarray, way: Way) -> None:
        self.costs, self.way = costs, way
        ends = np.full((len(borders), 1), costs.count)
        self.edges = np.concatenate([np.zeros((len(borders), 1), int), borders, ends], axis=1).T

    def of(self, numbers: Numbers, apart: Numbers | None = None) -> np.ndarray:
        """apart: of units that are no loop with others."""
        behind = np.concatenate([[0.0], np.cumsum(numbers)])
        first, end = self.edges[:-1], self.edges[1:]
        found = behind[end] - behind[first]
        return found if apart is None else found + self.costs.alone(self.way, numbers, apart, first, end)

    def most(self, numbers: Numbers, apart: Numbers) -> np.ndarray:
        """The largest in place of the sum."""
        first, end = self.edges[:-1], self.edges[1:]
        found = largest_of(numbers)[first, end]
        for is_alone, unit in self.costs.units_alone(self.way, first, end):
            found = np.where(is_alone, np.maximum(found, apart[unit]), found)
        return found


def largest_of(numbers: Numbers) -> np.ndarray:
    """[first, end]: the largest of the numbers from `first` on, before `end`."""
    count = len(numbers)
    table = np.zeros((count + 1, count + 1))
    for first in range(count):
        table[first, first + 1 :] = np.maximum.accumulate(numbers[first:])
    return table
