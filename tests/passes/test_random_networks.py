"""Steps of random networks with random strategies equal one device's, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ops.collective.collectives import AllReduce
from mspc.ops.op import REGISTRY, load_operators
from tests import random_networks
from tests.networks import usable
from tests.random_updates import OPTIMIZERS
from tests.shares import share_of

SEED, COUNT, PARTS = 20261122, share_of(960, 16), 3
LEAST = 50
"""Operators that the networks of every part have at least."""


@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part-{part + 1}-of-{PARTS}")
def test_networks_equal_one_device(part: int) -> None:
    """Optimizers, clipping, accumulation, dropout, integers, several results, recompute among them."""
    load_operators()
    seeds = [seed for seeds in random_networks.batches(SEED, COUNT) for seed in seeds][part::PARTS]
    found = random_networks.check_all(seeds, usable(), random_networks.STEPS)
    assert found.lines == []
    assert found.count == COUNT / PARTS
    assert len(found.operators) >= LEAST


def test_what_can_be_drawn_is_what_is_asked_for() -> None:
    """Attention, sorting, indexing, random masks and integers are among the operators, and every optimizer is."""
    load_operators()
    names = set(usable())
    wanted = {
        "Gather", "GatherD", "TensorScatterUpdate", "Concat", "Split", "SortExt", "TopK", "OneHot", "Select",
        "StridedSlice", "Transpose", "FlashAttentionScore", "Dropout", "LayerNorm", "BatchMatMul",
        "BitwiseAnd", "LogicalNot",
    }  # fmt: skip
    assert wanted - names == set()
    named = {name: getattr(op, "operands", ()) for name, op in REGISTRY.items() if op.mutates}
    optimizers = {name for name, of in named.items() if isinstance(of, tuple) and "gradient" in of}
    assert optimizers == set(OPTIMIZERS)


def test_a_sum_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that hold their own term of a sum: some of a few networks differ, and nothing else is reported."""
    load_operators()
    monkeypatch.setattr(AllReduce, "bind", lambda self, comm: np.array)
    (seeds,) = random_networks.batches(3, random_networks.BATCH)
    found = random_networks.check_all(seeds, usable(), 1)
    assert found.kinds[random_networks.WRONG] > 3
    assert set(found.kinds) == {random_networks.WRONG}
    assert len(found.lines) == found.kinds[random_networks.WRONG]
