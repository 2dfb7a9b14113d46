"""Orders of a pipeline's work found by the durations of its actions."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from random import Random

from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    RELEASES,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Made,
    Schedule,
    actions_of,
    handed_on,
    makes,
    reads,
)
from mspc.passes.lib.stage_placement import kinds_of
from mspc.passes.lib.timeline import Awaited, Copies, Durations, Messages, ScheduleTimeline, timeline

# A move takes one action of a stage to another place in its order: one that others wait for to an earlier place, or one
# that is there to a place at which its stage waits. If a stage stores no more micro-batches than it may, and each kind
# of action on a chunk still comes micro-batch by micro-batch, the pipeline is judged again. Moves are drawn from a
# fixed seed; a slightly longer step is accepted at the beginning, as shorter ones may follow.


BUDGET = 30_000_000
"""Actions that are placed in all at most, which takes a second or two: of a long schedule fewer orders are judged."""
ROUNDS = 12_000
"""Moves at most."""
ROUNDED = 1 + 1e-9
"""Sums of stored bytes are rounded."""
NEAR = 0.8
"""The share of the moves drawn from the critical path."""
HEAT = 0.006
"""The part of a step by which one may take longer at the beginning of a search."""


class OrderSearch:
    """Moves from one order on. kept: bytes that each chunk stores of a micro-batch; limits: bytes that stages may
    store. longest: the most that a step may take if it runs alone."""

    def __init__(self, steps: StepsInRow, kept: Sequence[float], limits: Sequence[float], longest: float) -> None:
        self.steps, self.limits, self.longest = steps, limits, longest
        self._random = Random(1)
        actions = steps.actions
        self._keeps = [kept[each.chunk] * ((each.kind == FORWARD) - (each.kind in RELEASES)) for each in actions]
        self._ahead: list[frozenset[int]] = []
        """The actions that must come before each one in the order of its stage."""
        for each in actions:
            ahead = [type(each)(each.kind, each.chunk, each.micro_batch - 1)]
            if each.kind == WEIGHT_GRADIENT:
                ahead += [type(each)(kind, each.chunk, each.micro_batch) for kind in GRADIENTS]
            elif each.kind in GRADIENTS:
                ahead.append(type(each)(FORWARD, each.chunk, each.micro_batch))
            self._ahead.append(frozenset(steps.numbers[one] for one in ahead if one in steps.numbers))

    def improved(self, order: Order, budget: int = BUDGET) -> Order:
        """The best order that is found. budget: actions that are placed."""
        steps, random = self.steps, self._random
        cost, free = steps.among_many(order)
        if cost >= INFINITE or not cost:
            return order
        best, least, heat = [list(own) for own in order], cost, HEAT * cost
        order = [list(own) for own in order]
        rounds = min(ROUNDS, budget // (3 * max(1, len(steps.actions))))
        path = self._critical_path(order, free)
        for turn in range(rounds):
            move = self._drawn_move(order, path)
            if move is None:
                continue
            stage, source, target = move
            own = order[stage]
            own.insert(target, own.pop(source))
            allowed = cost + heat * (1 - turn / rounds) * random.random() ** 3
            found, before = steps.among_many(order, free, turns=2, enough=allowed)
            if found > allowed:
                own.insert(source, own.pop(target))
                continue
            cost, free = found, before
            path = self._critical_path(order, free)
            if cost < least * (1 - 1e-9) and steps.makespan(order) <= self.longest:
                best, least = [list(each) for each in order], cost
        return best

    def _critical_path(self, order: Order, free: list[float]) -> list[tuple[int, int, int]]:
        """Return the critical path of a step: (stage, first place, last place) of actions that run one after another,
        of which another stage waits for the last."""
        steps = self.steps
        ended, ends = steps.step(order, free)
        longest = [end - begin for end, begin in zip(ended, free, strict=True)]
        stage = longest.index(max(longest))
        for source, action in steps.awaited[stage]:
            if action < 0 and ends[order[source][-1]] > ends[order[stage][-1]]:
                stage = source
        places = {number: (s, place) for s, own in enumerate(order) for place, number in enumerate(own)}
        found: list[tuple[int, int, int]] = []
        place = last = len(order[stage]) - 1
        while place >= 0:
            number = order[stage][place]
            start = ends[number] - steps.durations[number]
            source = steps.sources[number]
            if place and ends[order[stage][place - 1]] >= start - 1e-12:
                place -= 1
                continue
            found.append((stage, place, last))
            if source < 0 or ends[source] + steps.ways[number] < start - 1e-12:
                break
            stage, place = places[source]
            last = place
        return found

    def _drawn_move(self, order: Order, path: list[tuple[int, int, int]]) -> tuple[int, int, int] | None:
        """Draw a stage, the place of an action in its order, and its new place."""
        random = self._random
        if random.random() < NEAR:
            stage, first, last = random.choice(path)
            if last > first and random.random() < 0.5:  # the one that is waited for comes earlier
                source, target = last, last - 1 - int(random.random() ** 2 * (last - first))
            elif last > first and random.random() < 0.7:  # one before it comes later
                source, target = random.randrange(first, last), last + int(random.random() ** 3 * 12)
            else:  # the stage waits for the first one: another one meanwhile
                source, target = first + 1 + int(random.random() ** 2 * 24), first
        else:
            stage = random.randrange(len(order))
            source = random.randrange(len(order[stage]))
            target = source + random.choice((-1, 1)) * (1 + int(random.random() ** 2 * 8))
        own = order[stage]
        if not (0 <= source < len(own) and 0 <= target < len(own)) or source == target:
            return None
        return (stage, source, target) if self._is_allowed(stage, own, source, target) else None

    def _is_allowed(self, stage: int, own: list[int], source: int, target: int) -> bool:
        number = own[source]
        if target < source:
            passed = own[target:source]
            if not self._ahead[number].isdisjoint(passed):
                return False
        else:
            passed = own[source + 1 : target + 1]
            if any(number in self._ahead[each] for each in passed):
                return False
        if not self._keeps[number] or (self._keeps[number] > 0) == (target > source):
            return True  # stored later, or released earlier
        moved = own[:]
        moved.insert(target, moved.pop(source))
        kept = 0.0
        for each in moved:
            kept += max(0.0, self._keeps[each])
            if kept > self.limits[stage] * ROUNDED:
                return False
            kept += min(0.0, self._keeps[each])
        return True


# Named schedules have the order that is best if forwards and both gradients take one time. Here stages are walked along
# one clock: each that is free takes the first of its possible actions, by a rule of preference, or waits for one that
# is about to become possible. Of many such rules the quickest order is taken, or the known one if none is quicker, and
# improved move by move (`OrderSearch`). A step is judged among many (`StepsInRow`). On every stage micro-batches come
# in their order, as sums of gradients require, and no stage stores more of them than in the known order, or than it may
# beyond that.


PATIENCE = (0.0, 0.5, 1.0)
"""For which part of the time of a gradient for weights a stage waits for something else, if there is no more."""

STARTS = 2
"""Orders of clocks from which a search begins; another begins from the known one."""
GROWTH = 2
"""The bytes allowed beyond the known order are tried in so many parts: an order that needs less is a good start."""


@dataclass(frozen=True)
class OrderRule:
    """The preferences of a stage. kinds: forwards, gradients that others wait for, and those for weights, the first one
    first. patience: see PATIENCE. later_chunks: of several chunks the later one, else the earlier micro-batch.
    as_known: all but gradients for weights are in the known order."""

    kinds: tuple[int, ...]
    patience: float
    later_chunks: bool = True
    as_known: bool = False


@dataclass(frozen=True)
class TimedWork:
    """The durations of a schedule's actions, as `timeline` takes them. kept: bytes that each chunk stores of a
    micro-batch, in any unit; 0 for chunks left out. None if all store equally much."""

    durations: Durations
    message: Messages = 0
    behind: Mapping[int, float] | None = None
    awaited: Awaited | None = None
    copies: Copies | None = None
    kept: Mapping[int, float] | None = None

    def line(self, schedule: Schedule) -> ScheduleTimeline:
        """Return the timeline of a schedule."""
        return timeline(schedule, self.durations, self.message, None, self.behind, self.awaited, self.copies)

    def kept_of(self, schedule: Schedule) -> list[float]:
        """Return the bytes that the chunks of a schedule store of a micro-batch."""
        kept = dict.fromkeys(range(schedule.chunks), 1.0) if self.kept is None else self.kept
        return [kept.get(chunk, 0.0) for chunk in range(schedule.chunks)]


def ordered_by_times(known: Schedule, work: TimedWork, more: int = 0, budget: int = BUDGET) -> Schedule:
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
    """Return the actions one by one, with gradients apart on all micro-batches if they are on some."""
    found = tuple(actions_of(entries))
    apart = any(action.kind == WEIGHT_GRADIENT for action in found)
    return tuple(replace(action, kind=kind) for action in found for kind in kinds_of(action.kind, apart))


def _rules(known: Schedule) -> list[OrderRule]:
    several = [True, False] if known.chunks > known.stages else [True]
    free = [OrderRule(*each) for each in product(permutations(range(3)), PATIENCE, several)]
    return [*free, *(OrderRule((0, 0, 1), patience, as_known=True) for patience in PATIENCE)]


class _Clock:
    """All stages along one clock, by a rule. limits: bytes that each may store, in the unit of `TimedWork.kept`."""

    def __init__(self, known: Schedule, work: TimedWork, limits: list[float], rule: OrderRule) -> None:
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
        """The next micro-batch of each kind of action on each chunk of every stage."""
        self.others = [
            [part for part in actions_of(entries) if part.kind != WEIGHT_GRADIENT] for entries in known.entries
        ]
        self.events = [(0.0, stage) for stage in range(known.stages)]

    def run(self) -> tuple[tuple[Action, ...], ...] | None:
        """The orders of all stages; None if they have come to a stop."""
        while self.events:
            now, stage = heapq.heappop(self.events)
            if self.free[stage] <= now:
                self._look(now, stage)
        if any(number < self.known.micro_batches for each in self.following for number in each.values()):
            return None
        return tuple(map(tuple, self.found))

    def _look(self, now: float, stage: int) -> None:
        possible: list[tuple[tuple[int, ...], Action]] = []
        soon = float("inf")
        for action in self._next(stage):
            begins = self._start_time(action, stage)
            if begins <= now:
                possible.append((self._preference(action), action))
            elif action.kind != WEIGHT_GRADIENT:
                soon = min(soon, begins)
        if not possible:
            return  # the awaited value wakes it
        _, action = min(possible, key=lambda each: each[0])
        takes = self.work.durations.get((action.chunk, action.kind), 0.0)
        only_weights = all(each.kind == WEIGHT_GRADIENT for _, each in possible)
        if only_weights and soon - now < self.rule.patience * takes:
            return
        self._begin(now, stage, action, takes)

    def _next(self, stage: int) -> list[Action]:
        """Return the actions that may be next once their operands are there."""
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
        """Return whether a place is left for each later chunk, without which no gradient would come."""
        own = [chunk for kind, chunk in self.following[stage] if kind == FORWARD and chunk >= action.chunk]
        needed = sum(self.of_chunks[chunk] for chunk in own)
        return self.kept[stage] + needed <= self.limits[stage] * ROUNDED

    def _start_time(self, action: Action, stage: int) -> float:
        """Return the time at which all operands are there, or infinity if nobody makes one yet."""
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


# A stage that ends early begins the next step while others still work on this one. A step maps the times at which
# stages become free to those at which they are free again; with the best such times, those that all move on by the
# same, a step takes as long as the longest circle of waits through it. From any others the longest time of a stage from
# begin to end is no less, so one step shows whether an order is better than that.


STEPS = 6
"""Number of steps in a row until times are taken as those of any step: stages have come to their distances by then."""
Order = list[list[int]]
"""For every stage its actions by number."""
INFINITE = float("inf")


class StepsInRow:
    """The actions of a schedule by number, and their durations. The schedule has one action at a time."""

    def __init__(
        self, known: Schedule, durations: Durations, message: Messages, behind: Mapping[int, float] | None,
        awaited: Awaited | None,
    ) -> None:  # fmt: skip
        self.stages = known.stages
        self.actions = [part for entries in known.entries for part in actions_of(entries)]
        self.numbers = {action: number for number, action in enumerate(self.actions)}
        self.durations = [_time(durations, action) for action in self.actions]
        maker = {value: number for number, action in enumerate(self.actions) for value in makes(action)}
        self.sources = [-1] * len(self.actions)
        """The action of another chunk that makes each one's operand, or -1, and the message's time between them."""
        self.ways = [0.0] * len(self.actions)
        for number, action in enumerate(self.actions):
            for value in reads(action, known.chunks):
                if value[1] != action.chunk:
                    self.sources[number] = maker[value]
                    apart = known.placement[value[1]] != known.placement[action.chunk]
                    each = message.get((value[1], action.chunk), 0.0) if isinstance(message, Mapping) else message
                    self.ways[number] = each if apart else 0.0
        self.behind = [(behind or {}).get(stage, 0.0) for stage in range(self.stages)]
        self.awaited = [
            [(source, -1 if action is None else self._of(action)) for source, action in (awaited or {}).get(stage, ())]
            for stage in range(self.stages)
        ]

    def _of(self, action: Action) -> int:
        return self.numbers.get(action, self.numbers.get(Action(BACKWARD, action.chunk, action.micro_batch), -1))

    def order(self, schedule: Schedule) -> Order:
        """The actions of stages by number, of a schedule with the same ones."""
        return [[self.numbers[action] for action in actions_of(each)] for each in schedule.entries]

    def step(self, order: Order, free: Sequence[float]) -> tuple[list[float], list[float]]:
        """(when stages are free after a step, when actions end). free: when they are free before it. Infinite if the
        order comes to a stop."""
        ends = [INFINITE] * len(self.actions)
        now, places = list(free), [0] * self.stages
        waiting = [-1] * len(self.actions)
        durations, sources, ways = self.durations, self.sources, self.ways
        running = list(range(self.stages))
        while running:
            stage = running.pop()
            time, place, own = now[stage], places[stage], order[stage]
            count = len(own)
            while place < count:
                number = own[place]
                source = sources[number]
                if source >= 0:
                    there = ends[source]
                    if there == INFINITE:
                        waiting[source] = stage
                        break
                    there += ways[number]
                    if there > time:
                        time = there
                time += durations[number]
                ends[number] = time
                if waiting[number] >= 0:
                    running.append(waiting[number])
                place += 1
            now[stage], places[stage] = time, place
        if any(place < len(own) for place, own in zip(places, order, strict=True)):
            return [INFINITE] * self.stages, ends
        last = list(now)
        for stage, needed in enumerate(self.awaited):
            sent = [ends[action] if action >= 0 else last[source] for source, action in needed]
            now[stage] = max([now[stage], *sent]) + self.behind[stage]
        return now, ends

    def makespan(self, order: Order) -> float:
        """Times of a step that runs alone."""
        return max(self.step(order, [0.0] * self.stages)[0], default=0.0)

    def among_many(
        self, order: Order, free: Sequence[float] | None = None, turns: int = STEPS, enough: float = 0.0
    ) -> tuple[float, list[float]]:
        """Return (the time of a step among many, the times at which stages are free before one).

        free: a start. turns: steps to look at, until one takes at most `enough`.
        """
        free = [0.0] * self.stages if free is None else free
        best, least = list(free), INFINITE
        for _ in range(turns):
            ended, _ = self.step(order, free)
            longest = max(map(float.__sub__, ended, map(float, free)), default=0.0)
            if longest >= INFINITE:
                return INFINITE, best
            if longest < least:
                best, least = list(free), longest
            if least <= enough:
                break
            earliest = min(ended)
            free = [each - earliest for each in ended]
        return least, best


def _time(durations: Durations, action: Action) -> float:
    if action.kind == BACKWARD and (action.chunk, BACKWARD) not in durations:
        parts = (INPUT_GRADIENT, WEIGHT_GRADIENT)
        return sum(durations.get((action.chunk, kind), 0.0) for kind in parts)
    return float(durations.get((action.chunk, action.kind), 0.0))
