"""Betters the order of a pipeline's work move by move, judged by the time of a step among many.

A move takes one action of one stage to another place in its order: one for which others wait to an earlier place, or
one that is there to a place where its stage waits. Where a stage does not keep more micro-batches than it may, and
each kind of action on a chunk still comes micro-batch by micro-batch, the pipeline is judged again. Moves are drawn,
the same each time; one that makes a step a little longer is taken at the beginning, as shorter ones may lie behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from mspc.passes.pipelining.schedules.action import FORWARD, GRADIENTS, RELEASES, WEIGHT_GRADIENT
from mspc.passes.pipelining.steps_in_row import INFINITE, Order, StepsInRow

BUDGET = 30_000_000
"""Actions that are placed in all at most, which takes a second or two: of a long schedule fewer orders are judged."""
ROUNDS = 12_000
"""Moves at most."""
ROUNDED = 1 + 1e-9
"""Sums of what is kept are rounded."""
NEAR = 0.8
"""The part of the moves that are drawn from what makes a step as long as it is."""
HEAT = 0.006
"""The part of a step by which one may take longer at the beginning of a search."""


class OrderSearch:
    """Moves from one order on. kept: what each chunk keeps of a micro-batch; limits: what stages may keep. longest: a
    step that runs alone takes no longer."""

    def __init__(self, steps: StepsInRow, kept: Sequence[float], limits: Sequence[float], longest: float) -> None:
        self.steps, self.limits, self.longest = steps, limits, longest
        self._random = Random(1)
        actions = steps.actions
        self._keeps = [kept[each.chunk] * ((each.kind == FORWARD) - (each.kind in RELEASES)) for each in actions]
        self._ahead: list[frozenset[int]] = []
        """What must stand ahead of each action in the order of its stage."""
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
        path = self._critical(order, free)
        for turn in range(rounds):
            move = self._drawn(order, path)
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
            path = self._critical(order, free)
            if cost < least * (1 - 1e-9) and steps.makespan(order) <= self.longest:
                best, least = [list(each) for each in order], cost
        return best

    def _critical(self, order: Order, free: list[float]) -> list[tuple[int, int, int]]:
        """What makes a step as long as it is: (stage, first place, last place) of actions that run one behind another,
        of which the last one is waited for elsewhere."""
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

    def _drawn(self, order: Order, path: list[tuple[int, int, int]]) -> tuple[int, int, int] | None:
        """A stage, the place of an action in its order, and its new place."""
        random = self._random
        if random.random() < NEAR:
            stage, first, last = random.choice(path)
            if last > first and random.random() < 0.5:  # the one that is waited for comes earlier
                source, target = last, last - 1 - int(random.random() ** 2 * (last - first))
            elif last > first and random.random() < 0.7:  # one ahead of it comes later
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
            return True  # what is kept later, or released earlier
        moved = own[:]
        moved.insert(target, moved.pop(source))
        kept = 0.0
        for each in moved:
            kept += max(0.0, self._keeps[each])
            if kept > self.limits[stage] * ROUNDED:
                return False
            kept += min(0.0, self._keeps[each])
        return True
