"""A plan in the words of the field: by how many ranks it shares the batch, each layer, the text and the experts.

Layouts are the plan, operator by operator; a degree is what most of the floating-point operations are done with. What a
product shares of the dimensions that are no weight's are rows: of the batch, and of the text (context parallel) as far
as attention shares queries, or heads in place of pieces of the text. What it shares of a weight's own are tensor
parallel ranks, and of the first of three dimensions, whose entries are experts, expert parallel ones. These read other
rows than each other, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from mspc.analysis.cost.machine import ROUNDS
from mspc.analysis.cost.nodes import work_of
from mspc.analysis.cost.operations import operations_of
from mspc.compiler.driver import Compiled
from mspc.ir.cell_names import each_of_cells
from mspc.ir.graph import Graph, Node, Value, element_layouts, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import MakeTuple
from mspc.ops.control.times import nodes_with_times
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.op import Op
from mspc.passes.sharding.parallel_optimizer import EVERYTHING, why_not_sharded
from mspc.search.plans.weights import Weights

if TYPE_CHECKING:
    from mspc.ops.control.regions import RegionOp

_HEADS_FIRST = 4
"""Dimensions of what is attention written out: batch, heads, queries, keys or elements."""
_VOTES = ("rows", "tensor", "expert", "context", "data", "ring")
_EXPERTS = 3
"""Dimensions of a weight of several experts."""


@dataclass(frozen=True)
class Degrees:
    """Ranks that share the batch (`data`), each layer (`tensor`), the text (`context`) and the experts; 1: none do.
    ring, heads: of those that share the text how many exchange pieces of it in a ring, and among how many each has all
    of it for some heads (Ulysses) while attention is computed; keys are gathered where it is neither.
    zero: the level of ZeRO (Rajbhandari et al., 2020) that comes nearest: 2 where optimizer states and sums of
    gradients of most of the parameters' bytes are sharded further than operators ask for, 3 where weights are gathered
    again for gradients besides, else 0. operations: of matrix products that the network asks for in a step, on all
    ranks, without pairs that a causal mask or a window hides from attention; dtype: of most of them. samples, unit:
    what a step reads: "tokens" of the first input of integers, or "rows" of the first input. rounds: GPUs may round
    products of Float32."""

    data: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    zero: int = 0
    operations: float = 0.0
    dtype: str = "Float32"
    samples: int = 0
    unit: str = "rows"
    ring: int = 1
    heads: int = 1
    rounds: bool = False


def degrees_of(compiled: Compiled) -> Degrees:
    """The degrees of a compiled network, of one stage's ranks."""
    graph, plan = compiled.graph, compiled.strategies
    outside, weights = _outside(graph), Weights()
    for each in graph.graphs():
        weights.add(each.nodes, outside)
    votes: dict[str, Counter[int]] = {name: Counter() for name in _VOTES}
    dtypes: Counter[str] = Counter()
    for node, times in nodes_with_times(graph):
        work = work_of(node) * times.count if isinstance(node.op, Op) and node.inputs else 0.0
        if not work:
            continue
        dtypes[operand_types(node)[0].dtype.name] += int(work)
        for name, degree in _shared(node, weights, outside).items():
            votes[name][degree] += int(work)
    most = {name: max(found, key=lambda degree: (found[degree], degree)) for name, found in votes.items() if found}
    context = most.get("context", 1)
    rows = most.get("rows", 1)
    data = most.get("data", rows)
    heads = max(1, rows // (data * context)) if "context" in most else 1
    most_are = are_most({*plan.parameters, *plan.gathered}, graph)
    sharded = most_are or (compiled.config.parallel_optimizer and not why_not_sharded(graph))
    again = plan.gathered or graph.attrs.get("optimizer_level") == EVERYTHING
    samples, unit = _samples(graph)
    operations = operations_of(graph, seen=True).model
    return Degrees(
        data, most.get("tensor", 1), context * heads, most.get("expert", 1), 2 + bool(again) if sharded else 0,
        operations, max(dtypes, key=lambda dtype: dtypes[dtype], default="Float32"), samples, unit,
        most.get("ring", 1), heads, bool(graph.attrs.get(ROUNDS)),
    )  # fmt: skip


def are_most(names: Iterable[str], graph: Graph) -> bool:
    """Whether parameters of these names, of which one may stand for those of equal layers, have more than half of the
    bytes of all that are trained."""
    sizes = {p.name: p.tensor_type.nbytes for p in graph.parameters if p.kind == "parameter" and p.trainable}
    found = {each for name in names for each in ((name,) if name in sizes else each_of_cells(name))}
    return 2 * sum(sizes.get(name, 0) for name in found) > sum(sizes.values())


def _shared(node: Node, weights: Weights, outside: Mapping[Value, Value]) -> dict[str, int]:
    """The degrees by which a matmul or attention is sharded, by the names of votes. outside: see `_outside`."""
    strategies = [element_layouts(value.layout)[0].strategy for value in node.inputs[:2] if value.layout]
    if isinstance(node.op, AttentionOp) and strategies:
        return _of_attention(node.op, strategies)
    if len(strategies) < 2 or not isinstance(node.op, Op):
        return {}
    weight = next((i for i in (1, 0) if weights.of(node.inputs[i], outside)), None)
    if weight is None:
        of_weight = node.forward is not None and any(weights.of(value, outside) for value in node.forward.inputs)
        return {} if of_weight else _of_scores(node, strategies[0])
    other, own = strategies[1 - weight], strategies[weight]
    experts = own[0] if len(own) == _EXPERTS else 1
    rule = node.op.parsed_rule(*operand_types(node))
    own_factors = {factor for dim in rule.inputs[weight] for factor in dim}
    rows = math.prod(
        slices for dim, slices in zip(rule.inputs[1 - weight], other, strict=True)
        if not own_factors.intersection(dim)
    )  # fmt: skip
    return {"rows": rows, "tensor": math.prod(own) // experts} | ({"expert": experts} if len(own) == _EXPERTS else {})


def _of_attention(op: AttentionOp, strategies: Sequence[tuple[int, ...]]) -> dict[str, int]:
    queries, keys = (dict(zip(op.input_layout, strategy, strict=False)) for strategy in strategies)
    return {"data": queries["B"], "context": queries["S"], "ring": keys["S"]}


def _of_scores(node: Node, strategy: tuple[int, ...]) -> dict[str, int]:
    if len(strategy) != _HEADS_FIRST:
        return {}
    return {"data": strategy[0], "context": strategy[2]}


def _outside(graph: Graph) -> dict[Value, Value]:
    """By parameter of every region what the first node that runs it gives it."""
    found: dict[Value, Value] = {}
    for each in graph.graphs():
        for node in each.nodes:
            for number, region in enumerate(node.regions):
                places = cast("RegionOp", node.op).places(number, [value.type for value in node.inputs])
                for value, inside in zip(node.inputs, places, strict=True):
                    is_tuple = isinstance(value, Node) and isinstance(value.op, MakeTuple)
                    for at, place in enumerate(inside):
                        given = cast(Node, value).inputs[at] if is_tuple else value
                        found.setdefault(region.parameters[place], given)
    return found


def _samples(graph: Graph) -> tuple[int, str]:
    inputs = [each.type for each in graph.parameters if each.kind == "input"]
    words = next((type for type in inputs if type.dtype.is_integer and len(type.shape) > 1), None)
    if words is not None:
        return words.size, "tokens"
    return (inputs[0].shape[0] if inputs and inputs[0].shape else 0), "rows"
