"""Orders by times beside named ones and a bound, for drawn times of transformers.

    python -m benchmarks.pipelines.orders [--count 20] [--schedule zero_bubble_v] [--keep-more 0 2] [--stages 4]

Printed is by how much a step among many takes longer than its stage with the most work: in the named order, in the best
that stages walked along a clock find, in what the search makes of it, and at least. That bound is the longest way
through a step: until a stage may begin its first gradient it can do as many forwards as it may keep, behind its last
gradient as many gradients for weights as it may keep, and all else of its work stands between.
"""

from __future__ import annotations

import argparse
from random import Random
from time import process_time

from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Schedule,
)  # fmt: skip
from mspc.passes.pipelining.schedules.named import named_schedule
from mspc.passes.pipelining.steps_in_row import StepsInRow
from mspc.passes.pipelining.timed_order import Work, ordered_by_times


def drawn(name: str, stages: int, seed: int) -> tuple[Schedule, Work]:
    """A schedule, and what its parts take: gradients for inputs 1.2 to 1.8 of a forward, for weights 0.6 to 1, some
    stages longer than others; in half of them the first chunk has both gradients in one."""
    r = Random(seed)
    stages = stages or r.randint(2, 8)
    known = named_schedule(name, stages, r.randint(2 * stages, 8 * stages))
    inputs, weights, uneven = r.uniform(1.2, 1.8), r.uniform(0.6, 1), r.choice((0, 0, 0.05, 0.2))
    times: dict[tuple[int, str], float] = {}
    for chunk in range(known.chunks):
        forward = r.uniform(1 - uneven, 1 + uneven)
        times |= {
            (chunk, FORWARD): forward,
            (chunk, INPUT_GRADIENT): inputs * forward,
            (chunk, WEIGHT_GRADIENT): weights * forward,
            (chunk, BACKWARD): (inputs + weights) * forward,
        }
    if r.random() < 0.5:
        times[0, WEIGHT_GRADIENT] += times[0, INPUT_GRADIENT]
        times[0, INPUT_GRADIENT] = 0
    return known, Work(times, r.choice((0, 0.05, 0.1)), dict.fromkeys(range(stages), 0.5))


def period(schedule: Schedule, work: Work) -> float:
    """The time of a step among many."""
    steps = StepsInRow(schedule, work.durations, work.message, work.behind, work.awaited)
    return steps.among_many(steps.order(schedule))[0]


def least(known: Schedule, work: Work, more: int) -> tuple[float, float]:
    """(the most work of a stage, the least time of a step), where stages keep so many more micro-batches."""
    line, times, behind = work.line(known), work.durations, work.behind or {}
    way = work.message if isinstance(work.message, int | float) else 0.0
    busy = [line.busy(stage) for stage in range(known.stages)]
    best = max(busy)
    for stage in range(known.stages):
        own = known.chunks_of(stage)
        if min(own) == 0:
            continue
        kept = line.kept(stage) + more

        def most(kind: str, own: list[int] = own, kept: int = kept) -> float:
            return sum(sorted((times[c, kind] for c in own for _ in range(known.micro_batches)), reverse=True)[:kept])

        turns = sum(a != b for a, b in zip(known.placement, known.placement[1:], strict=False))
        ahead = sum(times[c, FORWARD] for c in range(known.chunks)) + turns * way
        ahead += sum(times[c, INPUT_GRADIENT] + way for c in range(max(own) + 1, known.chunks))
        after = (
            sum(times[c, INPUT_GRADIENT] + way for c in range(min(own))) + times[0, WEIGHT_GRADIENT] + behind.get(0, 0)
        )
        work_of = busy[stage] - behind.get(stage, 0)
        best = max(best, ahead + work_of - most(FORWARD) - most(WEIGHT_GRADIENT) + after)
    return max(busy), best


def main() -> None:
    """Print a line for every drawn one, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--schedule", default="zero_bubble_v")
    parser.add_argument("--stages", type=int, default=0, help="0: 2 to 8")
    parser.add_argument("--keep-more", nargs="*", type=int, default=[0, 2])
    options = parser.parse_args()
    for more in options.keep_more:
        rows: list[list[float]] = []
        for seed in range(options.count):
            known, work = drawn(options.schedule, options.stages, seed)
            busy, bound = least(known, work, more)
            begun = process_time()
            found = ordered_by_times(known, work, more)
            took = process_time() - begun
            steps = (
                period(known, work),
                period(ordered_by_times(known, work, more, 0), work),
                period(found, work),
                bound,
            )
            rows.append([each / busy - 1 for each in steps])
            told = ", ".join(
                f"{n} {x:.2%}" for n, x in zip(("named", "clocks", "search", "bound"), rows[-1], strict=True)
            )
            print(
                f"{known.stages} stages, {known.micro_batches} micro-batches, +{more}: {told}; {took:.2f} s", flush=True
            )
        mean = [sum(each) / len(rows) for each in zip(*rows, strict=True)]
        told = ", ".join(f"{n} {x:.2%}" for n, x in zip(("named", "clocks", "search", "bound"), mean, strict=True))
        print(f"mean, +{more} kept: {told}", flush=True)


if __name__ == "__main__":
    main()
