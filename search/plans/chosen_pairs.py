"""Chooses among many ranks to a product ahead of the table, which shows the best number only: of a network of equal
layers these are one graph for that, so that a try costs what one layer does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.search.plans.alternatives import Alternative, PlannedNetwork, PlanRequest
from mspc.search.plans.figures import figures
from mspc.search.plans.row import DATA_PARALLEL

SLOWER = "data parallel is quicker where equal layers are one graph"


def slow_pairs(
    captured: CapturedCall, asked: PlanRequest, ways: Sequence[Alternative]
) -> dict[str, str]:  # fmt: skip
    """The names of those ways of pairs of products that are slower than another one of them, or than the batch alone
    being shared, each with what is said of it, "" for nothing. None where a limit of memory may leave the others out,
    or no layers are equal."""
    pairs = [way for way in ways if way.tensor]
    if len(pairs) < 2 or asked.memory:
        return {}
    try:
        config = replace(asked.config(captured), device="CPU")  # elsewhere no layers are one graph
        network = PlannedNetwork.read_folded(captured, config, asked.free)
    except MspcError:
        network = None
    if network is None:
        return {}
    steps: dict[str, float] = {}
    for way in (*pairs, *(way for way in ways if way.name == DATA_PARALLEL)):
        try:
            steps[way.name] = figures(way.name, network.compiled(way), captured, asked).step
        except MspcError:  # the table tells why
            continue
    best = min(steps, key=lambda name: steps[name], default="")
    if best == DATA_PARALLEL:
        return {way.name: SLOWER for way in pairs if way.name in steps}
    return {way.name: "" for way in pairs if way.name in steps and way.name != best}
