"""The search within a limit of memory beside all assignments there are."""

from itertools import product

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.passes.lib.choices import MINIMAL_MEMORY
from mspc.passes.lib.layout_search import Search
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.layouts.within_memory import Limited
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import CostModel
from mspc.search.solver.elimination import LARGEST
from tests.search.layouts.test_cheapest import small_network

MOST = 3000
"""Assignments that are tried one after the other."""


def problem(seed: int) -> tuple[CostModel, MemoryModel, list[int]]:
    graph = small_network(seed)
    graph.attrs["search_memory"] = 1
    search = Search(graph)
    model = CostModel(search, mesh_of(search))
    memory = MemoryModel(model)
    return model, memory, [variable.size for variable in model.variables]


def compare(seed: int) -> bool:
    """Hold limits between the least and what the cheapest takes against all assignments; False where they are many."""
    model, memory, sizes = problem(seed)
    if not 1 < np.prod(sizes, dtype=float) <= MOST:
        return False
    known = [
        (
            sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in model.factors),
            max(memory.live_bytes(values)),
        )
        for values in product(*map(range, sizes))
    ]
    least, cheapest = min(held for _, held in known), min(known)[1]
    for share in (0.0, 0.3, 0.7, 1.0):
        limit = int(np.ceil(least + share * (cheapest - least)))
        best = min(cost for cost, held in known if held <= limit)
        solver = Limited(sizes, model.factors, memory, LARGEST)
        solver.memory.peak = lambda values: max(memory.live_bytes(values))  # type: ignore[method-assign]
        found = solver.solve(limit)
        assert max(memory.live_bytes(found.values)) <= limit, f"seed {seed}, limit {limit}"
        assert best <= found.cost * (1 + 1e-9) + 1e-6, f"seed {seed}, limit {limit}"
        assert found.bound <= best * (1 + 1e-9) + 1e-6, f"seed {seed}, limit {limit}: {found.bound} of {best}"
        assert found.cost <= best * 1.01 + 1e-6, f"seed {seed}, limit {limit}: {found.cost} for {best}"
    with pytest.raises(MspcError, match="of memory on a rank: the least is"):
        Limited(sizes, model.factors, memory, LARGEST).solve(max(1, int(least) - 1))
    smallest = Limited(sizes, model.factors, memory, LARGEST).solve(MINIMAL_MEMORY)
    assert max(memory.live_bytes(smallest.values)) == pytest.approx(least)
    return True


def test_limits_equal_brute_force() -> None:
    assert sum(compare(seed) for seed in range(60)) >= 15
