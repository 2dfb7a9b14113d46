"""Bytes, messages and planning time of redistributions, over all pairs of tuple strategies of 2-D and 3-D
tensors on 4 to 64 ranks and over seeded random pairs of layouts.

    python -m benchmarks.redistribution [--quick]

Every pair up to 16 ranks is executed on simulated ranks and compared exactly. The floor of a rank is what it
misses of its new slice. Exit status 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mspc.passes.lib.redistribution import plan
from tests.redistributions import (
    Pair,
    execute,
    expected,
    holders,
    missing,
    one_collective_suffices,
    parts_of,
    random_pairs,
    strategy_pairs,
)

SEED = 20230


@dataclass
class Figures:
    """What one set of pairs costs. Elements are summed over ranks and pairs."""

    pairs: int = 0
    executed: int = 0
    moved: int = 0
    floor: int = 0
    worst: float = 1.0
    in_vain: int = 0
    largest: float = 0.0
    split: int = 0
    messages: int = 0
    seconds: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def failures(self) -> list[str]:
        """The promises that do not hold."""
        promises = [
            (self.moved <= 1.05 * self.floor, "more than 1.05 times the floor in total"),
            (self.worst <= 1.5, "a pair above 1.5 times its floor"),
            (self.in_vain == 0, "bytes where the floor is 0"),
            (self.largest <= 1, "a tensor larger than both slices"),
            (self.split == 0, "several collectives where one reaches the floor"),
            (self.messages == 0, "more messages than ranks that hold a missing piece"),
            (statistics.median(self.seconds) <= 1e-3, "planning above 1 ms"),
        ]
        return [text for holds, text in promises if not holds]


def measure(pairs: Iterable[Pair], figures: Figures, execute_up_to: int = 16) -> None:
    for source, target, shape in pairs:
        start = time.perf_counter()
        found = plan.__wrapped__(source, target, shape, 8)
        figures.seconds.append(time.perf_counter() - start)
        figures.pairs += 1
        figures.kinds["+".join(step.op.name for step in found.steps) or "nothing"] += 1
        larger = max(math.prod(source.local_shape(shape)), math.prod(target.local_shape(shape)))
        for step in found.steps:
            figures.largest = max(figures.largest, math.prod(step.layout.local_shape(shape)) / larger)
        if source.ranks <= execute_up_to:
            parts = parts_of(source, shape)
            outcome = execute(found, source, target, parts)
            for mine, wanted in zip(outcome.arrays, expected(source, target, parts), strict=True):
                if source.reduction == "mean":
                    np.testing.assert_allclose(mine, wanted, rtol=1e-14)
                else:
                    np.testing.assert_array_equal(mine, wanted)
            figures.executed += 1
            moved, received = round(sum(outcome.sent) / parts.itemsize), np.array(outcome.received)
        else:
            moved, received = round(found.nbytes * source.ranks / 8), np.array([found.messages])
        if source.partial:
            continue
        floor = int(missing(source, target, shape).sum())
        figures.moved += moved
        figures.floor += floor
        if floor:
            figures.worst = max(figures.worst, moved / floor)
        else:
            figures.in_vain += moved
        most = holders(source, target, shape)
        figures.messages += bool((received > (most if len(received) > 1 else most.max())).any())
        by_pieces = any(step.op.name == "Exchange" for step in found.steps)
        if (found.collectives > 1 or by_pieces) and one_collective_suffices(source, target, shape):
            figures.split += 1


def report(name: str, figures: Figures) -> list[str]:
    times = sorted(figures.seconds)
    print(f"{name}: {figures.pairs} pairs, {figures.executed} executed and compared exactly")
    if figures.floor:
        ratio = figures.moved / figures.floor
        print(f"  elements received / floor   {figures.moved} / {figures.floor} = {ratio:.4f}")
        print(f"  worst pair                  {figures.worst:.4f}")
    print(f"  largest tensor in between   {figures.largest:.2f} of the larger slice")
    median, p99 = statistics.median(times), times[len(times) * 99 // 100]
    print(f"  planning                    {median * 1e3:.3f} ms median, {p99 * 1e3:.3f} ms for 99 of 100")
    print(
        "  steps                       "
        + ", ".join(f"{kind} {n}" for kind, n in figures.kinds.most_common(9))
    )
    failures = figures.failures()
    for failure in failures:
        print(f"  BROKEN: {failure}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Bytes, messages and planning time of redistributions.")
    parser.add_argument(
        "--quick", action="store_true", help="every 10th pair of strategies, 200 random pairs"
    )
    quick = parser.parse_args().quick
    failures: list[str] = []
    pairs = list(strategy_pairs())
    count = 200 if quick else 2000
    print(f"seed {SEED}")
    for name, chosen in (
        ("tuple strategies, 4 to 64 ranks", pairs[::10] if quick else pairs),
        ("random layouts, 4 to 64 ranks", random_pairs(SEED, count)),
        ("random layouts with partial sources", random_pairs(SEED, count, (4, 6, 8, 12, 16), partial=True)),
    ):
        figures = Figures()
        measure(chosen, figures)
        failures += report(name, figures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
