"""Random rows of units, and the best of all ways to run them in stages by trying every one: what the search for stages
chooses is compared with that.

    python -m tests.stage_choices [--count 300]

Times are those of `passes/lib/timeline.py` itself; so is the memory.
"""

import argparse
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import numpy as np

from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    RELEASES,
    WEIGHT_GRADIENT,
)  # fmt: skip
from mspc.passes.lib.timeline import ScheduleTimeline, timeline
from mspc.search.stages.boundaries import all_ways, choose
from mspc.search.stages.problem import BUSY, ON_DEVICE, Boundaries, HostBytes, SeparateCosts, UnitCosts, Way

SAME = 1e-9


def drawn(random: Random) -> tuple[UnitCosts, list[int], list[int], float]:
    """Costs of 2 to 7 units, numbers of stages and of micro-batches to try, and a limit of memory, 0 for none."""
    count = random.randint(2, 7)

    def numbers(least: float, most: float) -> np.ndarray:
        return np.array([random.uniform(least, most) for _ in range(count)])

    forward = numbers(1, 5) if random.random() < 0.7 else np.full(count, 2.0)
    inputs, weights = forward * numbers(0.8, 1.2), forward * numbers(0.5, 1.2)
    separate = SeparateCosts(
        forward * 1.05, saved=numbers(1, 9), resident=numbers(1, 9), work=numbers(0, 2), sent=forward,
        late=numbers(0, 1), between=numbers(0, 1),
    )  # fmt: skip
    costs = UnitCosts(
        forward, inputs + weights * 0.9, inputs, weights, rest=numbers(0, 3), saved=numbers(1, 9),
        resident=numbers(1, 9), work=numbers(0, 2), message=numbers(0, 0.5)[: count - 1], sent=forward,
        entry=numbers(0, 2), sent_forward=forward, sent_back=forward, totals=numbers(0, 1), separate=separate,
        loops=_loops(random, count),
    )  # fmt: skip
    memory = random.choice([0.0, 0.0, float(costs.resident.sum() / 2 + costs.saved.sum() * random.uniform(1, 3))])
    stages = [number for number in (1, 2, 3, 4) if number <= count]
    counts = random.sample([1, 2, 3, 4, 5, 6, 8], 2)
    if random.random() < 0.5:
        costs = replace(costs, host=HostBytes(np.minimum(costs.saved, costs.separate.saved) * numbers(0, 1), 1.0))
    return costs, stages, counts, memory


def _loops(random: Random, count: int) -> tuple[tuple[int, int], ...]:
    """None, or one or two rows of units."""
    if random.random() < 0.5:
        return ()
    first, end = sorted(random.sample(range(count + 1), 2))
    return tuple((begin, size) for begin, size in ((first, end - first), (end, count - end)) if size > 1)


def of_chunk(costs: UnitCosts, way: Way, chunk: slice, joint: np.ndarray, separate: np.ndarray) -> np.ndarray:
    """The costs of a chunk's units, of which one may be alone of its loop."""
    found = joint.copy()
    for first, count in () if way.splits_gradients else costs.loops:
        inside = [unit for unit in range(first, first + count) if chunk.start <= unit < chunk.stop]
        if len(inside) == 1:
            found[inside] = separate[inside]
    return found[chunk]


def seconds(costs: UnitCosts, way: Way, boundaries: Boundaries, memory: float) -> float:
    """A step by one way and its borders, infinite where it takes more than the memory."""
    schedule, costs = way.actions, costs.under(way)
    chunks = [slice(a, b) for a, b in pairwise((0, *boundaries, costs.count))]
    joint = costs.inputs + costs.weights
    kinds = {
        FORWARD: (costs.forward, costs.separate.forward), BACKWARD: (costs.backward, joint),
        INPUT_GRADIENT: (costs.inputs, costs.inputs), WEIGHT_GRADIENT: (costs.weights, costs.weights),
    }  # fmt: skip
    durations = {
        (c, kind): float(of_chunk(costs, way, own, *each).sum())
        for c, own in enumerate(chunks) for kind, each in kinds.items()
    }  # fmt: skip
    message = max((float(costs.message[b - 1]) for b in boundaries), default=0.0)
    times = timeline(schedule, durations, message)
    pairs = ((costs.saved, costs.separate.saved), (costs.resident, costs.separate.resident))
    saved, held_by = ([of_chunk(costs, way, each, *pair) for each in chunks] for pair in pairs)
    work = [
        max(*costs.work[each], *of_chunk(costs, way, each, costs.work, costs.separate.work))
        for each in chunks
    ]
    of_weights = (costs.late, costs.between)
    late, between = ([numbers[each].sum() for each in chunks] for numbers in of_weights)
    if way.splits_gradients:  # nobody waits for a gradient of the first chunk: all of its are with those of weights
        late[0], between[0] = saved[0].sum(), float(costs.entry[boundaries[0]]) if boundaries else 0.0
    found = 0.0
    for stage in range(schedule.stages):
        own = schedule.chunks_of(stage)
        resident = sum(held_by[each].sum() for each in own) + max(work[each] for each in own)
        of_each = [own.sum() + costs.entry[chunk.start] for own, chunk in zip(saved, chunks, strict=True)]
        totals = [float(costs.totals[each].sum()) for each in chunks]
        on_host = [np.zeros(1) if costs.host is None else costs.host.values[each] for each in chunks]
        bus = 0.0 if costs.host is None else share_of_bus(costs, way, chunks, own, [v.sum() for v in on_host])
        resident += most_at_once(times, stage, of_each, late, between, totals, [bus * float(v.sum()) for v in on_host])
        if memory and resident > memory:
            return np.inf
        found = max(found, times.spans[stage][-1].end + sum(costs.rest[chunks[each]].sum() for each in own))
    return found


def share_of_bus(costs: UnitCosts, way: Way, chunks: list[slice], own: list[int], values: list[float]) -> float:
    """The share of a stage's values that may leave for which there is time on the bus."""
    backward = np.zeros(costs.count) if way.schedule == "gpipe" else costs.backward
    pairs = ((costs.forward, costs.separate.forward), (backward, (backward > 0) * (costs.inputs + costs.weights)))
    work = sum(float(of_chunk(costs, way, chunks[each], *pair).sum()) for each in own for pair in pairs)
    return min(1.0, BUSY * work / max(1e-9, sum(values[each] for each in own)))


def most_at_once(
    times: ScheduleTimeline, stage: int, saved: list[float], late: list[float], between: list[float],
    totals: list[float], on_host: list[float],
) -> float:  # fmt: skip
    """Bytes of micro-batches, and of sums of gradients that are not there yet (less than none): those of a chunk are
    once its first gradient has ended. kept: of a micro-batch by chunks, of them `late` until the gradients of weights,
    which also read what those of inputs keep, `between`. on_host: what may leave of each, of all but a few."""
    missing = {chunk: totals[chunk] for chunk in times.schedule.chunks_of(stage)}
    found = []
    now = 0.0
    alive = dict.fromkeys(missing, 0)
    room = ON_DEVICE * max(on_host[each] for each in missing)
    for span in times.spans[stage]:
        part = span.action
        now += saved[part.chunk] if part.kind == FORWARD else 0.0
        now += between[part.chunk] if part.kind in GRADIENTS else 0.0
        alive[part.chunk] += part.kind == FORWARD
        left = sum(on_host[each] * number for each, number in alive.items())
        found.append(now - sum(missing.values()) - max(0.0, left - room))
        alive[part.chunk] -= part.kind in GRADIENTS
        now -= saved[part.chunk] - late[part.chunk] if part.kind in GRADIENTS else 0.0
        if part.kind in RELEASES:
            now -= late[part.chunk] + between[part.chunk]
            missing.pop(part.chunk, None)
    return max(found)


def difference(seed: int) -> str:
    """The error of the choice for a drawn network; "" if nothing is better, and the proof holds."""
    costs, stages, counts, memory = drawn(Random(seed))
    problems = all_ways(costs, stages, counts)
    choice = choose(problems, memory)
    best = min(
        (seconds(costs, each.way, boundaries, memory), each.way.name, boundaries)
        for each in problems
        for boundaries in combinations(range(1, costs.count), each.way.parts - 1)
    )
    if choice.best is None:
        return "" if best[0] == np.inf else f"nothing was chosen, and {best} is there"
    own = seconds(costs, choice.best.way, choice.best.boundaries, memory)
    if abs(own - choice.best.seconds) > SAME * own:
        return f"{choice.best} takes {own}"
    if own > best[0] * (1 + SAME):
        return f"{choice.best}, and {best} is better"
    if choice.proven > best[0] * (1 + SAME):
        return f"{choice.proven} is said to be proved, and {best} is below"
    return "" if choice.gap < SAME * 10 else f"a gap of {choice.gap} is left"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    wrong = {seed: found for seed in range(parser.parse_args().count) if (found := difference(seed))}
    for seed, found in wrong.items():
        print(f"{seed}: {found}")
    print(f"{len(wrong)} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
