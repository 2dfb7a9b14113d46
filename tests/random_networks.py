"""Steps of random networks with random strategies beside one device: `python -m tests.random_networks SEED COUNT`.

Prints one line per network that differs, with its seed, and a closing line; exits with 1 if any differs.
"""

from __future__ import annotations

import math
import random
import sys
import time

from mspc.ir.graph import Graph
from mspc.ops.modules import load_operators
from mspc.passes.base import parse_passes, run_passes
from tests.interpret import Arrays, random_feeds, run_on_ranks, run_whole, same
from tests.networks import RandomNetwork

PASSES = (
    "grad,simplify,check_strategies,propagate_sharding,insert_redistribution,lower_redistribution,fuse_gradients"
)
TOLERANCE = 1e-12


def well_conditioned_feeds(graph: Graph, seed: int) -> Arrays:
    """Values around zero, weights scaled by their size: sums neither grow with depth nor cancel large terms, so that
    1e-12 is a bound on wrong results and not on rounding."""
    feeds = random_feeds(graph, seed)
    return {name: (value - 0.6) * 2 / math.sqrt(max(value.shape, default=1)) for name, value in feeds.items()}


def check(seed: int) -> None:
    """One training step on all ranks, in float64, equals one device's within TOLERANCE."""
    feeds = well_conditioned_feeds(RandomNetwork(seed).graph, seed)
    expected = run_whole(RandomNetwork(seed).graph, feeds)
    graph = run_passes(RandomNetwork(seed).graph, parse_passes(PASSES))
    graph.verify()
    same(run_on_ranks(graph, feeds), expected, TOLERANCE)


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    load_operators()
    start = time.perf_counter()
    wrong = 0
    generator = random.Random(first)
    for seed in (generator.getrandbits(48) for _ in range(count)):
        try:
            check(seed)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
    print(f"{count} networks from seed {first}, {wrong} differ, {time.perf_counter() - start:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
