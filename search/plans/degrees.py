"""Degrees of parallelism of a plan: data, tensor, context (sequence) and expert parallelism.

A plan is the layout of every operator; a degree is the value with which most floating-point operations are done. The
dimensions of a matmul that do not belong to its weight are rows. Shards of rows are data parallel, and context parallel
as far as attention shards queries, or heads in place of the sequence. Shards of the weight's own dimensions are tensor
parallel. In a weight of three dimensions, the first dimension indexes experts; its shards are expert parallel, and
these also read different rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mspc.analysis.aliasing import updated_parameters
from mspc.analysis.cost.machine import ROUNDS
from mspc.analysis.cost.nodes import operations_of, work_of
from mspc.compiler.driver import Compiled
from mspc.ir.graph import (
    Constant,
    Graph,
    Node,
    Parameter,
    Value,
    Worklist,
    element_layouts,
    element_types,
    operand_types,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import nodes_with_times
from mspc.ops.control.structural import MakeTuple
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.op import Op

if TYPE_CHECKING:
    from mspc.ops.control.regions import RegionOp


class WeightValues:
    """Values that are computed only from parameters of the network and constants.

    Any value that depends on an input of the network is an activation. No operator is treated specially, so that none
    can hide a weight.
    """

    def __init__(self) -> None:
        self._known: dict[Value, Parameter] = {}

    def add(self, nodes: Iterable[Node], outside: Mapping[Value, Value]) -> None:
        """Add nodes in topological order. outside: the arguments of region parameters."""
        for node in nodes:
            computed = [v for v in node.inputs if not isinstance(v, Node) or v.inputs or v.regions]
            found = [self.of(value, outside) for value in computed if not isinstance(value, Constant)]
            known = [weight for weight in found if weight is not None]
            if known and len(known) == len(found) and not node.regions:
                self._known[node] = max(known, key=lambda weight: weight.type.nbytes)

    def of(self, value: Value, outside: Mapping[Value, Value]) -> Parameter | None:
        """Return the parameter that a value is or is computed from, the largest of several; None for an activation."""
        while value in outside:
            value = outside[value]
        if isinstance(value, Parameter):
            return value if value.kind == "parameter" else None
        return self._known.get(value)


# Levels of ZeRO: Rajbhandari et al., 2020.


STATES, GRADIENTS, WEIGHTS = 1, 2, 3
"""Levels of ZeRO: optimizer states are sharded further than operators need the weights; gradients are, too; weights are
gathered for each use."""


def zero_level(graph: Graph, weights: WeightValues, outside: Mapping[Value, Value]) -> int:
    """Return the ZeRO level of most bytes of the trained parameters; 0 if they are stored as operators need them."""
    uses = _uses(graph, weights, outside)
    updates: dict[Parameter, Node] = {}
    for number, parameters in updated_parameters(graph).items():
        updates |= {parameter: graph.nodes[number] for parameter in parameters if parameter.trainable}
    levels: Counter[int] = Counter()
    again: Counter[bool] = Counter()
    for parameter, update in updates.items():
        known = uses.get(parameter)
        if not known:
            continue
        nbytes = parameter.tensor_type.nbytes * max(known.values())
        level = _level(parameter, update, min(_parts(value) for _, value in known))
        levels[level] += nbytes
        forward, backward = (
            {gather for each, value in known if each == phase for gather in _gathers(value, outside)}
            for phase in ("forward", "backward")
        )
        if level and backward:
            again[not backward & forward] += nbytes
    most = levels.total()
    found = max((level for level in (STATES, GRADIENTS) if 2 * _from(levels, level) > most), default=0)
    return WEIGHTS if found == GRADIENTS and again[True] > again[False] else found


def _from(levels: Counter[int], level: int) -> int:
    return sum(nbytes for each, nbytes in levels.items() if each >= level)


def _uses(
    graph: Graph, weights: WeightValues, outside: Mapping[Value, Value]
) -> dict[Parameter, dict[tuple[str, Value], int]]:
    """Return, for each weight, the (phase, value) pairs by which operators on activations read it, with counts."""
    found: dict[Parameter, dict[tuple[str, Value], int]] = {}
    for node, times in nodes_with_times(graph):
        if node.phase == "update" or node.regions or weights.of(node, outside) is not None:
            continue
        for value in node.inputs:
            weight = weights.of(value, outside)
            if weight is not None and value.layout is not None:
                found.setdefault(weight, {})[node.phase, value] = times.count
    return found


def _gathers(value: Value, outside: Mapping[Value, Value]) -> Iterator[Node]:
    """Yield the gathers of a weight's slices for a value computed from it."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        while value in outside:
            value = outside[value]
        if isinstance(value, Node):
            if _changes_layout(value) and _parts(value) < _parts(value.inputs[0]):
                yield value
            waiting += value.inputs


def _level(parameter: Parameter, update: Node, used: int) -> int:
    stored = _parts(parameter)
    if stored <= used:
        return 0
    whole = any(_parts(value) <= used for value in _gradients(parameter, update))
    return STATES if whole else GRADIENTS


def _gradients(parameter: Parameter, update: Node) -> Iterator[Value]:
    """Yield the complete gradients from which an update is computed, before and after each redistribution."""
    waiting = Worklist(update.inputs)
    for value in waiting:
        if not isinstance(value, Node):
            continue
        layouts = element_layouts(value.layout) if value.layout is not None else ()
        same = len(layouts) == 1 and value.type == parameter.type
        if same and not layouts[0].is_partial:
            yield value
        if value.phase == "update" or (same and _changes_layout(value)):
            waiting.add(value.inputs)


def _changes_layout(node: Node) -> bool:
    """Return whether a node only redistributes a tensor or reduces partial sums."""
    source = node.inputs[0] if len(node.inputs) == 1 else None
    return source is not None and source.type == node.type and source.layout not in (None, node.layout)


def _parts(value: Value) -> int:
    """Return the number of slices of a sharded tensor."""
    return math.prod(element_layouts(value.layout)[0].strategy)


_HEADS_FIRST = 4
"""Dimensions of the operands of attention written as matmuls: batch, heads, queries, keys or elements."""
_EXPERTS = 3
"""Dimensions of a weight of several experts."""


@dataclass(frozen=True)
class Degrees:
    """Numbers of ranks that share the batch (`data`), each layer (`tensor`), the sequence (`context`) and the experts;
    1 if not shared. ring, heads: how the ranks that share the sequence compute attention: by exchanging keys in a ring,
    or each for some heads (Ulysses); otherwise keys are gathered. data * tensor * context * `replicas` is the number of
    ranks, where replicas compute the same; experts are shared by some of the data-parallel ranks. zero: see
    `zero_level`. operations: of all matmuls of a step on all ranks, without pairs that attention skips by a causal mask
    or a window. dtype: of most operations. samples, unit: size of a step's input: "tokens" of the first input of
    integers, or "rows" of the first input. rounds: GPUs may round matmuls of Float32 to TF32."""

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
    replicas: int = 1


class _MatmulSharding(NamedTuple):
    """Sharding of a matmul with a weight. rows: shards of the rows, also by experts. expert: 0 without experts."""

    rows: int
    tensor: int
    ranks: int
    expert: int = 0


class _Attention(NamedTuple):
    """Sharding of attention: the batch, the queries, and the keys in a ring."""

    data: int
    context: int
    ring: int = 1


def degrees_of(compiled: Compiled) -> Degrees:
    """Return the degrees of a compiled network, for the ranks of one stage.

    All degrees of one matmul are counted together. The most frequent value of each degree by itself would multiply to
    another number of ranks.
    """
    graph = compiled.graph
    outside, weights = _outside(graph), WeightValues()
    for each in graph.graphs():
        weights.add(each.nodes, outside)
    work_by: dict[type, Counter[Any]] = {_MatmulSharding: Counter(), _Attention: Counter(), str: Counter()}
    for node, times in nodes_with_times(graph):
        work = int(work_of(node) * times.count) if isinstance(node.op, Op) and node.inputs else 0
        if work:
            for shared in (operand_types(node)[0].dtype.name, _sharding(node, weights, outside)):
                if shared is not None:
                    work_by[type(shared)][shared] += work
    products, dtypes = work_by[_MatmulSharding], work_by[str]
    rows, tensor, ranks = _heaviest((each[:3], work) for each, work in products.items()) or _of_results(graph)
    expert = _heaviest((each.expert, work) for each, work in products.items() if each.expert) or 1
    fitting = [(each, work) for each, work in work_by[_Attention].items() if rows % (each.data * each.context) == 0]
    text = _heaviest(fitting) or _Attention(rows, 1)
    heads = rows // (text.data * text.context)
    samples, unit = _samples(graph)
    operations = operations_of(graph, seen=True).model
    return Degrees(
        text.data, tensor, text.context * heads, expert, zero_level(graph, weights, outside),
        operations, _heaviest(dtypes.items()) or "Float32", samples, unit,
        text.ring, heads, bool(graph.attrs.get(ROUNDS)), max(1, ranks // (rows * tensor)),
    )  # fmt: skip


def _heaviest(votes: Iterable[tuple[Any, int]]) -> Any:
    """Return the vote with the most work, the larger one of equal ones; None without votes."""
    total: Counter[Any] = Counter()
    for vote, work in votes:
        total[vote] += work
    return max(total, key=lambda vote: (total[vote], vote), default=None)


def _of_results(graph: Graph) -> tuple[int, int, int]:
    """Return (rows, tensor, ranks) of a network without matmuls: the sharding of most bytes of its results."""
    votes: list[tuple[tuple[int, int, int], int]] = []
    for node in graph.nodes:
        for layout, type in zip(element_layouts(node.layout), element_types(node.type), strict=True):
            if node.phase == "forward" and layout is not None and type.shape:
                votes.append(((layout.strategy[0], math.prod(layout.strategy[1:]), layout.ranks), type.nbytes))
    return _heaviest(votes) or (1, 1, 1)


def _sharding(node: Node, weights: WeightValues, outside: Mapping[Value, Value]) -> _MatmulSharding | _Attention | None:
    """Return the sharding of a matmul or of attention; None for other operators. outside: see `_outside`."""
    strategies = [element_layouts(value.layout)[0].strategy for value in node.inputs[:2] if value.layout]
    if isinstance(node.op, AttentionOp) and strategies:
        return _of_attention(node.op, strategies)
    if len(strategies) < 2 or not isinstance(node.op, Op):
        return None
    weight = next((i for i in (1, 0) if weights.of(node.inputs[i], outside)), None)
    if weight is None:
        of_weight = node.forward is not None and any(weights.of(value, outside) for value in node.forward.inputs)
        if of_weight or len(strategies[0]) != _HEADS_FIRST:
            return None
        return _Attention(strategies[0][0], strategies[0][2])
    other, own = strategies[1 - weight], strategies[weight]
    experts = own[0] if len(own) == _EXPERTS else 1
    rule = node.op.parsed_rule(*operand_types(node))
    of_experts = set(rule.inputs[weight][0]) if len(own) == _EXPERTS else set[int]()
    own_factors = {factor for dim in rule.inputs[weight] for factor in dim} - of_experts
    rows = math.prod(
        slices for dim, slices in zip(rule.inputs[1 - weight], other, strict=True)
        if not own_factors.intersection(dim)
    )  # fmt: skip
    ranks = element_layouts(node.inputs[weight].layout)[0].ranks
    return _MatmulSharding(rows, math.prod(own) // experts, ranks, experts if len(own) == _EXPERTS else 0)


def _of_attention(op: AttentionOp, strategies: Sequence[tuple[int, ...]]) -> _Attention:
    queries, keys = (dict(zip(op.input_layout, strategy, strict=False)) for strategy in strategies)
    return _Attention(queries["B"], queries["S"], keys["S"])


def _outside(graph: Graph) -> dict[Value, Value]:
    """Return, for every parameter of a region, the argument that the first node running the region passes."""
    found: dict[Value, Value] = {}
    for node in graph.all_nodes():
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
