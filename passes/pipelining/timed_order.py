"""Finds the order of a pipeline's work by what its actions take, within the memory of an order that is known.

Named schedules have the order that is best where forwards and both gradients take one time. Here stages are walked
along one clock: each that is free takes the first of the actions that it could begin, by a rule of preference, or waits
for one that is about to become possible. Of many such rules the quickest order is taken, the known one where none is
quicker, and bettered move by move (`order_search.py`). What is judged is a step among many (`steps_in_row.py`). On
every stage micro-batches come in their order, as sums of gradients ask for, and no stage keeps more of them than in the
known order, or than it may keep beyond that.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations, product

from mspc.ir.late_dataclass import dataclass
from mspc.passes.pipelining.chosen_schedule import kinds_of
from mspc.passes.pipelining.host_pace import Copies
from mspc.passes.pipelining.order_search import BUDGET, ROUNDED, OrderSearch
from mspc.passes.pipelining.schedules.action import (
    FORWARD,
    GRADIENTS,
    RELEASES,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Schedule,
    actions_of,
)  # fmt: skip
from mspc.passes.pipelining.schedules.dependence import Made, handed_on, makes, reads
from mspc.passes.pipelining.steps_in_row import Order, StepsInRow
from mspc.passes.pipelining.timeline import Awaited, Durations, Messages, Timeline, timeline

PATIENCE = (0.0, 0.5, 1.0)
"""For which part of the time of a gradient for weights a stage waits for something else, where there is no more."""

STARTS = 2
"""Orders of clocks from which a search begins; another begins from the known one."""
GROWTH = 2
"""In so many parts that one is given what may be kept beyond the known order: what fits into less is a good start."""


@dataclass(frozen=True)
class Rule:
    """What a stage prefers. kinds: of forwards, gradients that others wait for, and those for weights, the first one
    first. patience: see PATIENCE. later_chunks: of several chunks the later one, else the earlier micro-batch.
    as_known: all but gradients for weights are in the known order."""

    kinds: tuple[int, ...]
    patience: float
    later_chunks: bool = True
    as_known: bool = False


@dataclass(frozen=True)
class Work:
    """What a schedule's actions take, as `timeline` is given it. kept: what each chunk keeps of a micro-batch, in any
    one unit; of those left out nothing. None where all keep as much."""

    durations: Durations
    message: Messages = 0
    behind: Mapping[int, float] | None = None
    awaited: Awaited | None = None
    copies: Copies | None = None
    kept: Mapping[int, float] | None = None

    def line(self, schedule: Schedule) -> Timeline:
        """When its stages do what."""
        return timeline(schedule, self.durations, self.message, None, self.behind, self.awaited, self.copies)

    def kept_of(self, schedule: Schedule) -> list[float]:
        """What the chunks of a schedule keep of a micro-batch."""
        kept = dict.fromkeys(range(schedule.chunks), 1.0) if self.kept is None else self.kept
        return [kept.get(chunk, 0.0) for chunk in range(schedule.chunks)]


def ordered_by_times(known: Schedule, work: Work, more: int = 0, budget: int = BUDGET) -> Schedule:
    """The order of the actions of a schedule, which may be its own, whose steps take least among many of those found; a
    step that runs alone takes no longer than in the known one.

    Args:
        more: so many micro-batches of a chunk of the usual size a stage may keep beyond those of the known order.
        budget: see OrderSearch.
    """
    known = replace(known, entries=tuple(map(_actions, known.entries)))
    line = work.line(known)
    kept = work.kept_of(known)
    usual = sum(kept) / max(1, sum(each > 0 for each in kept))
    limits = [
        [line.kept_bytes(stage, kept) + each * usual for stage in range(known.stages)]
        for each in dict.fromkeys((0, *(more * part // GROWTH for part in range(1, GROWTH + 1))))
    ]
    orders = (_Clock(known, work, limits[-1], rule).run() for rule in _rules(known))
    found = [replace(known, entries=entries) for entries in orders if entries is not None]
    copies = (work.copies or {}).values()
    if any(each.ahead or each.left for each in copies):  # these pace stages, as the timeline alone has it
        return min((known, *found), key=lambda each: work.line(each).makespan)
    steps = StepsInRow(known, work.durations, work.message, work.behind, work.awaited)
    longest = steps.makespan(steps.order(known))

    def period(order: Order) -> float:
        return steps.among_many(order)[0]

    among = [order for order in map(steps.order, (known, *found)) if steps.makespan(order) <= longest]
    among = sorted(among, key=period)[:STARTS]
    better = [OrderSearch(steps, kept, limits[-1], longest).improved(order, budget // 5) for order in among]
    grown = steps.order(known)
    for each in limits:
        grown = OrderSearch(steps, kept, each, longest).improved(grown, budget // 3 // len(limits))
    best = OrderSearch(steps, kept, limits[-1], longest).improved(min((grown, *better), key=period), budget // 4)
    entries = tuple(tuple(steps.actions[number] for number in own) for own in best)
    return replace(known, entries=entries)


def _actions(entries: tuple[Entry, ...]) -> tuple[Action, ...]:
    """One by one, with gradients apart on all micro-batches where they are on some."""
    found = tuple(actions_of(entries))
    apart = any(action.kind == WEIGHT_GRADIENT for action in found)
    return tuple(
        replace(action, kind=kind) for action in found for kind in kinds_of(action.kind, apart)
    )  # fmt: skip


def _rules(known: Schedule) -> list[Rule]:
    several = [True, False] if known.chunks > known.stages else [True]
    free = [Rule(*each) for each in product(permutations(range(3)), PATIENCE, several)]
    return [*free, *(Rule((0, 0, 1), patience, as_known=True) for patience in PATIENCE)]


class _Clock:
    """All stages along one clock, by a rule. limits: what each may keep, in the unit of `Work.kept`."""

    def __init__(self, known: Schedule, work: Work, limits: list[float], rule: Rule) -> None:
        self.known, self.work, self.limits, self.rule = known, work, limits, rule
        self.made: dict[Made, tuple[float, int]] = {}
        """When each value is there, and on which stage; of actions that run as well."""
        self.found: list[list[Action]] = [[] for _ in known.entries]
        self.free = [0.0] * known.stages
        self.kept = [0.0] * known.stages
        self.of_chunks = work.kept_of(known)
        kinds = {(part.kind, part.chunk) for entries in known.entries for part in actions_of(entries)}
        self.following = [
            {each: 0 for each in sorted(kinds) if known.placement[each[1]] == stage} for stage in range(known.stages)
        ]
        """Of every stage the next micro-batch of each kind of action on each of its chunks."""
        self.others = [
            [part for part in actions_of(entries) if part.kind != WEIGHT_GRADIENT] for entries in known.entries
        ]
        self.events = [(0.0, stage) for stage in range(known.stages)]

    def run(self) -> tuple[tuple[Action, ...], ...] | None:
        """The orders of all stages; None where they have come to a stop."""
        while self.events:
            now, stage = heapq.heappop(self.events)
            if self.free[stage] <= now:
                self._look(now, stage)
        if any(number < self.known.micro_batches for each in self.following for number in each.values()):
            return None
        return tuple(map(tuple, self.found))

    def _look(self, now: float, stage: int) -> None:
        """Let a stage that is free begin something, or wait."""
        possible: list[tuple[tuple[int, ...], Action]] = []
        soon = float("inf")
        for action in self._next(stage):
            begins = self._begins(action, stage)
            if begins <= now:
                possible.append((self._preference(action), action))
            elif action.kind != WEIGHT_GRADIENT:
                soon = min(soon, begins)
        if not possible:
            return  # what it waits for wakes it
        _, action = min(possible, key=lambda each: each[0])
        takes = self.work.durations.get((action.chunk, action.kind), 0.0)
        only_weights = all(each.kind == WEIGHT_GRADIENT for _, each in possible)
        if only_weights and soon - now < self.rule.patience * takes:
            return
        self._begin(now, stage, action, takes)

    def _next(self, stage: int) -> list[Action]:
        """The actions that may be next where what they read is there."""
        found = [
            Action(kind, chunk, number)
            for (kind, chunk), number in self.following[stage].items() if number < self.known.micro_batches
        ]  # fmt: skip
        if self.rule.as_known:
            done = sum(action.kind != WEIGHT_GRADIENT for action in self.found[stage])
            fixed = self.others[stage][done : done + 1]
            found = [action for action in found if action.kind == WEIGHT_GRADIENT or action in fixed]
        return [action for action in found if action.kind != FORWARD or self._has_room(action, stage)]

    def _has_room(self, action: Action, stage: int) -> bool:
        """A place is left for each later chunk, without which no gradient would come."""
        own = [chunk for kind, chunk in self.following[stage] if kind == FORWARD and chunk >= action.chunk]
        needed = sum(self.of_chunks[chunk] for chunk in own)
        return self.kept[stage] + needed <= self.limits[stage] * ROUNDED

    def _begins(self, action: Action, stage: int) -> float:
        """When all that it reads is there; infinite where nobody makes it yet."""
        found = 0.0
        for value in reads(action, self.known.chunks):
            if value not in self.made:
                return float("inf")
            there, source = self.made[value]
            found = max(found, there if source == stage else there + self._message(value, action))
        return found

    def _message(self, value: Made, reader: Action) -> float:
        message = self.work.message
        return message.get((value[1], reader.chunk), 0.0) if isinstance(message, Mapping) else message

    def _preference(self, action: Action) -> tuple[int, ...]:
        kind = 0 if action.kind == FORWARD else 1 if action.kind in GRADIENTS else 2
        order = self.rule.kinds.index(kind) if not self.rule.as_known else int(kind == 2)
        if self.rule.later_chunks and kind == 0:
            return order, -action.chunk, action.micro_batch
        return order, action.micro_batch, -action.chunk

    def _begin(self, now: float, stage: int, action: Action, takes: float) -> None:
        end = self.free[stage] = now + takes
        self.found[stage].append(action)
        self.following[stage][action.kind, action.chunk] += 1
        self.kept[stage] += self.of_chunks[action.chunk] * ((action.kind == FORWARD) - (action.kind in RELEASES))
        for value in makes(action):
            self.made[value] = end, stage
        handed = handed_on(action, self.known.chunks)
        if handed is not None:
            reader = self.known.placement[handed[1]]
            comes = end if reader == stage else end + self._message(handed[0], Action(action.kind, handed[1], 0))
            heapq.heappush(self.events, (comes, reader))
        heapq.heappush(self.events, (end, stage))
