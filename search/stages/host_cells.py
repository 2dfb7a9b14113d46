"""Chooses the cells of a way to run stages of which what gradients read lives in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mspc.search.stages.problem import Borders, UnitCosts, Way
from mspc.search.stages.units import Unit
from mspc.search.stages.walk import walk_of


def cells_on_host(
    units: Sequence[Unit], costs: UnitCosts, way: Way, borders: Borders, memory: float
) -> tuple[str, ...]:  # fmt: skip
    """Of every stage the cells of as few of its first units as bring it within the memory; all where none do. costs:
    with what may leave."""
    walk, row = walk_of(way.order), np.array([borders], dtype=int).reshape(1, -1)
    edges = [*pairwise((0, *borders, len(units)))]
    chosen = np.zeros(len(units), bool)
    for stage in range(way.stages):
        own = [unit for chunk in walk.schedule.chunks_of(stage) for unit in range(*edges[chunk])]
        for unit in own:
            if walk.memory_of_stages(costs.only(chosen), row)[stage, 0] <= memory:
                break
            chosen[unit] = costs.host is not None and costs.host.values[unit] > 0
    return tuple(name for unit, is_chosen in zip(units, chosen, strict=True) if is_chosen for name in unit.cells)
