"""Pads dimensions that a strategy shards into a number of slices that does not divide them.

Input:  `%1 = MatMul(%x, %w) {in_strategy: ((1, 1), (1, 4))}` with `%w` of shape (8, 11), and `pad_uneven : true`
Output: the same with `%w` of shape (8, 12) `{global: (8, 11)} {padding: ...}`, and before readers that combine the
        elements of a padded dimension a `Select` that puts a value there that changes nothing

The size is rounded up to a multiple of the slices, so that a rank holds as much as PyTorch's DTensor gives the first
ones. Dimensions are padded together along operators that work on every index alone (`passes/lib/padding.py`);
others read a slice without the padding, which also results of the network have. Parameters are stored padded, with
zeros; checkpoints hold them without. Dimensions that frozen factors or parts of a dimension shard are not padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout, slice_counts, spread
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.lib.choices import rule_of
from mspc.passes.lib.padding import PaddedGraph, PaddingPlan, Place, elements_of, grouped, is_made_padded, places_of
from mspc.passes.lib.strategies import uneven_error
from mspc.sharding.rules import Rule


@dataclass(frozen=True)
class PadUneven(Pass):
    def run(self, graph: Graph) -> bool:
        if not graph.attrs.get("pad_uneven"):
            return False
        requests = list(_requests(graph))
        if not requests:
            return False
        plan = _plan(graph, requests)
        PaddedGraph(graph, plan).rewrite()
        return True


@dataclass(frozen=True)
class _Request:
    """A factor of a node's rule, of this size, that the strategy shards into so many slices. where: for messages."""

    node: Node
    rule: Rule
    factor: int
    shards: int
    where: str


def _requests(graph: Graph) -> Iterator[_Request]:
    for node in graph.nodes:
        rule = rule_of(node) if node.in_strategy is not None else None
        if rule is None:
            continue
        op, strategy = cast(Op, node.op), spread(node.in_strategy or ())
        named = any(isinstance(entry, NamedLayout) for entry in strategy)
        dims = op.layout_dims(rule) if named else op.strategy_dims(rule)
        if not dims and len(strategy) == 1 and len(rule.outputs) == 1:
            dims = (rule.outputs[0],)
        for i, (tensor, entry) in enumerate(zip(dims, strategy, strict=False)):
            counts = slice_counts(entry)
            if len(counts) != len(tensor):
                continue  # check_strategies reports it
            for d, (factors, shards) in enumerate(zip(tensor, counts, strict=True)):
                whole = len(factors) == 1 and factors[0] not in rule.frozen
                if whole and type(shards) is int and shards > 1 and rule.sizes[factors[0]] % shards:
                    yield _Request(node, rule, factors[0], shards, f"dimension {d} of input {i}")


def _plan(graph: Graph, requests: Sequence[_Request]) -> PaddingPlan:
    """Decide which dimensions are padded, and to which sizes. Raise MspcError if a requested one must not be."""
    plan, groups, places = grouped(graph, {request.rule.sizes[request.factor] for request in requests})
    shards: dict[Place, dict[int, _Request]] = {}
    mistakes: list[MspcError] = []
    for request in requests:
        node, factor = request.node, request.factor
        if factor not in plan.roles.get(node, (None, {}))[1]:
            error = uneven_error(node, request.where, request.rule.sizes[factor], request.shards)
            error.notes = (*error.notes, f"it cannot be padded either: {node.op.name} would read the padding")
            mistakes.append(error)
            continue
        place = places_of(request.rule, factor, elements_of(node), node)[0]
        shards.setdefault(groups.of(place), {}).setdefault(request.shards, request)
    raise_all(mistakes)
    for value, i, d in places:
        asked = shards.get(groups.of((value, i, d)))
        if asked is not None:
            size, count = element_types(value.type)[i].shape[d], math.lcm(*asked)
            padded = -(-size // count) * count
            plan.sizes.setdefault((value, i), {})[d] = padded
            first = next(iter(asked.values()))
            plan.reasons[value, i] = f"dimension {d} from {size} to {padded}: {first.node.label} shards it into {count}"
            if is_made_padded(value, i, d, plan):
                plan.made.setdefault((value, i), {})[d] = padded
    return plan
