"""A training step of random networks with random strategies equals one device's, in float64 within 1e-12."""

from __future__ import annotations

import pytest

from mspc.ops.modules import load_operators
from mspc.passes.base import parse_passes, run_passes
from tests.interpret import random_feeds, run_on_ranks, run_whole, same
from tests.networks import RandomNetwork

load_operators()
PASSES = "grad,simplify,check_strategies,propagate_sharding,insert_redistribution,lower_redistribution"
BATCH = 25


@pytest.mark.parametrize("first", range(0, 250, BATCH))
def test_step_equals_one_device(first: int) -> None:
    for seed in range(first, first + BATCH):
        feeds = random_feeds(RandomNetwork(seed).graph, seed)
        expected = run_whole(RandomNetwork(seed).graph, feeds)
        graph = run_passes(RandomNetwork(seed).graph, parse_passes(PASSES))
        graph.verify()
        try:
            same(run_on_ranks(graph, feeds), expected, 1e-12)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
