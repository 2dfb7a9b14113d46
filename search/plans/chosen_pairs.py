"""Looks at usual plans ahead of the table with equal layers as one graph, so that a try costs what one layer does.

Of many ranks to a product the table shows the best number only, and a plan that is far from any good one is not looked
at layer by layer, or not at all where it takes far more memory than there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.plans.alternatives import Alternative, PlannedNetwork, PlanRequest
from mspc.search.plans.figures import Outcome, figures, remarked
from mspc.search.plans.row import DATA_PARALLEL, PlanResult

SLOWER = "data parallel is quicker where equal layers are one graph"
FAR = 5
"""How many times what no plan takes less than a step takes that is far from any good one."""


SURELY = 1.5
"""How many times more a step, or memory, is with equal layers as one graph where it is too much layer by layer, too."""


@dataclass(frozen=True)
class FoldedTries:
    """What was found with layers as one graph. slow: the names of those ways of pairs of products that are slower than
    another one of them, or than the batch alone being shared, each with what is said of it, "" for nothing. far: of
    the batch alone being shared, where that is far from any good plan. over: the names of ways that are so and take too
    much memory, with what is said of them. pairs: within a limit of memory the other ways of pairs of products, the
    quickest first, of which those behind one that fits are left out."""

    slow: Mapping[str, str] = field(default_factory=dict[str, str])
    far: Outcome | None = None
    over: Mapping[str, str] = field(default_factory=dict[str, str])
    pairs: Sequence[str] = ()


def folded_network(captured: CapturedCall, asked: PlanRequest, ways: Sequence[Alternative]) -> PlannedNetwork | None:
    """The network with equal layers as one graph, to try ways with; None where no layers are equal, or there is nothing
    to choose."""
    if sum(way.tensor > 0 for way in ways) < 2:
        return None
    try:
        config = replace(asked.config(captured), device="CPU")  # elsewhere no layers are one graph
        return PlannedNetwork.read_folded(captured, config, asked.free)
    except MspcError:
        return None


def folded_tries(network: PlannedNetwork, asked: PlanRequest, ways: Sequence[Alternative]) -> FoldedTries:
    """Try pairs of products, and the batch alone being shared."""
    found: dict[str, Outcome] = {}
    for way in ways:
        if not way.tensor and way.name != DATA_PARALLEL:
            continue
        try:
            compiled = network.compiled(way)
            plan = figures(way.name, compiled, network.captured, asked)
        except MspcError:  # the table tells why
            continue
        plan = replace(plan, remarks=remarked(plan.remarks, compiled, asked, way))
        found[way.name] = Outcome.of(plan, compiled, network.captured, asked)
    best = min(found, key=lambda name: found[name].plan.step, default="")
    pairs = [way.name for way in ways if way.tensor and way.name in found]
    shared = found.get(DATA_PARALLEL)
    on_cpu = asked.config(network.captured).device == "CPU"
    if asked.memory:
        over = {name: _over(each.plan, asked.memory) for name, each in found.items() if on_cpu}
        over = {name: said for name, said in over.items() if said}
        left = [name for name in pairs if name not in over]
        return FoldedTries(over=over, pairs=sorted(left, key=lambda name: found[name].plan.step))
    far = shared if shared is not None and on_cpu and shared.plan.step > FAR * shared.plan.least > 0 else None
    if best == DATA_PARALLEL:
        return FoldedTries(dict.fromkeys(pairs, SLOWER), far)
    return FoldedTries({name: "" for name in pairs if name != best}, far)


def _over(plan: PlanResult, memory: int) -> str:
    """What is said of a plan of equal layers as one graph that is so far from any good one, and takes so much more
    memory than there is, that it would be both layer by layer, too; "" of others."""
    if not (plan.step > SURELY * FAR * plan.least > 0 and plan.memory > SURELY * memory):
        return ""
    return (
        f"with equal layers as one graph it needs {plan.memory} bytes of memory on a rank, and there are {memory}; its "
        "step is far from any good one, and nothing was tried"
    )
