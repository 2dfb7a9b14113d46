"""Samples of operators on several ranks in this process: with random legal layouts their results are one rank's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from docs.site.operator_samples import (
    RecordedSample,
    SampleOutcome,
    close,
    judged,
    scales_of,
    shown,
)
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_traced, trace_call
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.layout import Layout
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.ops.op import Op
from mspc.passes.lib.choices import composite_conflict, rule_of
from mspc.sharding.rules import Rule
from mspc.verify.many_ranks import ManyRanks

TRIALS = 4
"""Layouts that are drawn for a sample until a compile takes them all; the first half also of shards that do not divide
a dimension, which is padded."""


def random_strategy(
    op: Op, rule: Rule, ranks: int, rng: random.Random, is_uneven: bool = False
) -> tuple[tuple[int, ...], ...] | None:
    """Return a legal strategy of an operator with this rule, or None if the draw is not legal. is_uneven: shards need
    not divide a dimension."""
    cuts = [1] * len(rule.sizes)
    for f in rng.sample(range(len(cuts)), len(cuts)):
        if f in rule.frozen:
            continue
        room = ranks // math.prod(cuts)
        most = max(1, rule.sizes[f])
        legal = [
            n for n in range(1, room + 1)
            if (n <= most if is_uneven else rule.sizes[f] % n == 0) and ranks % (math.prod(cuts) * n) == 0
        ]  # fmt: skip
        cuts[f] = rng.choice(legal)
    mesh = (*cuts, ranks // math.prod(cuts))
    if composite_conflict(rule, mesh, [(i,) if c > 1 else () for i, c in enumerate(cuts)]):
        return None
    return tuple(tuple(math.prod(cuts[f] for f in dim) for dim in dims) for dims in op.strategy_dims(rule))


def compared_on_ranks(each: Any, given: Any, dtype: str, with_gradients: bool, ranks: int) -> SampleOutcome | None:
    """Compare one sample on several ranks with one rank. Return None if one rank does not run it, or if its numbers are
    drawn."""
    try:
        recorded = RecordedSample(each, given)
        if recorded.is_drawn:
            return None
        alone = [result.asnumpy() for result in recorded.results()]
    except Exception:  # the comparison with PyTorch reports it
        return None
    seed = f"{each.name} {dtype} {[array.shape for array in recorded.own]} {ranks}"

    def gradients() -> str | None:
        floats = [i for i, result in enumerate(alone) if result.dtype.kind in "fV"]
        if not floats or not recorded.sample.trained:
            return None
        request = recorded.gradient(floats[0], Tensor(scales_of(alone[floats[0]]).astype(alone[floats[0]].dtype)))
        try:
            found = request(*map(Tensor, recorded.own))
        except MspcError:  # the operator has none
            return None
        wanted = [each.asnumpy() for each in (found if isinstance(found, tuple) else (found,))]
        return _differs(request, recorded.own, wanted, ranks, seed)

    verdict, reason = judged(lambda: _differs(recorded.network, recorded.own, alone, ranks, seed))
    if verdict != "right" or not with_gradients:
        return SampleOutcome(each.name, dtype, verdict, "", reason, recorded.kinds)
    return SampleOutcome(each.name, dtype, verdict, *judged(gradients), recorded.kinds)


def _differs(target: Any, own: Sequence[np.ndarray], alone: Sequence[np.ndarray], ranks: int, seed: str) -> str:
    """Return which result of a network differs on several ranks, "" if none does."""
    for place, (found, wanted) in enumerate(zip(_results(target, own, ranks, seed), alone, strict=True)):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"result {place} is {found.dtype}{found.shape} on {ranks} ranks, not {wanted.dtype}{wanted.shape}"
        if not close(found, wanted, relative=1.0):
            return f"result {place} is {shown(found)} on {ranks} ranks, {shown(wanted)} on one"
    return ""


def _results(target: Any, own: Sequence[np.ndarray], ranks: int, seed: str) -> list[np.ndarray]:
    """Return the global results of a network whose operators have random layouts."""
    given: dict[str, Any] = {"ranks": ranks, "mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    traced = trace_call(target, describe_call([Tensor(each) for each in own], []), Config(**given))
    for trial in range(TRIALS):
        is_uneven = 2 * trial < TRIALS
        call = traced.again(Config(**given, pad_uneven=is_uneven))
        _draw(call.traced.graph, ranks, random.Random(f"{seed} {trial}"), is_uneven)
        try:
            compiled = compile_traced(call)
        except MspcError:
            if trial == TRIALS - 1:
                raise
        else:
            break
    constants = traced.traced.constants
    held = {p.name: constants[p.name] for p in compiled.graph.parameters if p.kind != "input"}
    weights = {name: each.make() if isinstance(each, InitialValue) else np.asarray(each) for name, each in held.items()}
    runs = ManyRanks(ranks, compiled.rank_graph, compiled.rank_graph, weights, [own]).executed()[0]
    return [_whole(value, [run["result", i] for run in runs]) for i, value in enumerate(compiled.results)]


def _draw(graph: Graph, ranks: int, rng: random.Random, is_uneven: bool) -> None:
    """Give operators random strategies; of those that read one parameter or constant the first alone."""
    seen = set[GraphParameter]()
    for node in graph.all_nodes():
        rule = rule_of(node)
        held = {value for value in node.inputs if isinstance(value, GraphParameter) and value.kind != "input"}
        if rule is None or held & seen:
            continue
        node.in_strategy = random_strategy(node.op, rule, ranks, rng, is_uneven)
        seen |= held


def _whole(value: Any, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return a result of which ranks have slices."""
    shape, layout = tuple(value.shape), value.layout
    if not isinstance(layout, Layout) or parts[0].shape == shape:
        return parts[0]
    found = np.zeros(shape, parts[0].dtype)
    for rank, part in enumerate(parts):
        found[layout.slices_for(rank, shape)] = part
    return found
