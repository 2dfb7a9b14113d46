"""Makes one operator of attention that is written out: product, scale, mask, softmax, product.

Input:  `%1 = BatchMatMul(%q, %k) {transpose_b: true}`, `%2 = Mul(%1, 0.125)`, `%3 = Softmax(%2)`,
        `%4 = BatchMatMul(%3, %v)`
Output: `%1 = FlashAttentionScore(%q, %k, %v) {head_num: 8, scale_value: 0.125, input_layout: "BNSD"}` and its last
        element in the place of %4

If query, key and value are transposed from (batch, sequence, heads, depth) and the result is transposed back,
these transposes go too: the operator takes that layout. (Casts between them and the products stay.) The scale may be
a factor of the scores, of the query or of the key; `Dropout` may follow the softmax: the operator takes its seeds
and drops the same weights; addends, of which it takes the sum, and one mask (MaskedFill or Select with a number that
the softmax makes 0) may follow, and casts between floating-point types may be around the softmax. Every value in
between must have no other reader. Strategies of the users must agree and shard batch, heads and queries only; else the
original stays. If they shard the queries, keys and values are sharded along their sequence, too, and the operator
is replaced by its `decompose`. It comes before differentiation, so that the backward operators are those of the
fused one. Numbers change by rounding. A query with all keys masked attends to all keys alike when written out, or
is NaN if a masked score is minus infinity, but to none in the operator: its row is corrected after it, unless the
graph shows that every row has a key. A mask beside an addend that may hide keys too cannot be corrected and stays as
it is written.

An addend or a mask that is a constant triangle and hides from every query the keys after its position becomes the
operator's `sparse_mode`: 2 if positions are counted from the beginnings of both sequences, 3 if from their ends.
An addend must be 0 for visible keys and MASKED or lower elsewhere: as long as a query's scores differ by less than
9000, the weights there are exactly 0 in every floating-point type. A triangle that leaves a query without keys, and one
beside a mask or an addend that may hide keys, too, stays an operand.

An operator that reads keys and values of repeated heads, also one that a network has itself, reads each head once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ir.layout import NamedLayout
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import LogicalNot
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.op import RequestedSharding
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.attention_masks import forget_causal_masks, forget_rows, with_hidden_rows, with_infinite_rows
from mspc.passes.fusion.attention_match import (
    AttentionMatch,
    fused_operator,
    match_attention,
    operands_of,
    shards_queries,
    without_repeats,
)
from mspc.passes.fusion.attention_scores import may_be_attention, may_shard_queries


class FuseAttention(Pass):
    def run(self, graph: Graph) -> bool:
        return fuse_written(graph, 0) | without_repeats(graph)


def fuse_written(graph: Graph, least: int) -> bool:
    """Put the operator in the place of every attention with as many scores of a head; whether the graph changes."""
    changed = remove_dead(graph)  # among others masks of dropouts that nobody reads
    users = graph.users()
    results = set(graph.results)
    few = any(map(may_shard_queries, graph.nodes))  # then any may be wanted that has few scores
    matches: list[AttentionMatch] = []
    gone: set[Value] = set()
    for node in graph.nodes:
        wanted = may_be_attention(node, least)
        match = match_attention(node, users, results) if wanted or (few and may_be_attention(node, 0)) else None
        if match is not None and not (wanted or shards_queries(match)):
            continue
        if match is not None and not gone.intersection(operands_of(match)):
            matches.append(match)
            gone.update(match.nodes)
    changed |= forget_causal_masks(graph) | forget_rows(graph)
    if not matches:
        return changed
    _replace(graph, {match.last: match for match in matches})
    return True


def _replace(graph: Graph, matches: Mapping[Node, AttentionMatch]) -> None:
    gone = {node for match in matches.values() for node in match.nodes}
    nodes: list[Node] = []
    replaced: dict[Value, Value] = {}
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        match = matches.get(node)
        if match is not None:
            replaced[node] = _emit(builder.like(node), match, replaced)
        elif node not in gone:
            nodes.append(node)
    graph.results = [replaced.get(v, v) for v in graph.results]
    between = dict.fromkeys(node for match in matches.values() for node in match.between)
    read = set(graph.results)
    remaining: list[Node] = []
    for node in reversed(nodes):
        if node in read or node not in between:
            remaining.append(node)
            read.update(node.inputs)
    graph.nodes = remaining[::-1]


def _emit(builder: Builder, match: AttentionMatch, replaced: Mapping[Value, Value]) -> Node:
    product, last = match.nodes[0], match.last
    operands = [replaced.get(v, v) for v in operands_of(match)]
    made = len(builder.nodes)
    for node in match.added.made:
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        builder.nodes.append(node)
    if match.inverted:
        operands[-1] = builder.emit(LogicalNot(), operands[-1])
    for index, dtype in enumerate(match.cast):
        if dtype is not None:
            operands[index] = builder.emit(Cast(dtype), operands[index])
    builder.like(product)
    fused = builder.emit(fused_operator(match), *operands, instance=product.instance)
    if match.shards:
        fused.in_strategy = tuple(_strategies(match, operands))
    result = _in_context(builder, fused, product) if shards_queries(match) else None
    result = result or builder.emit(TupleGetItem(3), fused, name=last.name)
    if match.filled is not None:
        result = with_hidden_rows(builder, result, operands[-1], operands[2], match.layout, match.filled)
    if match.infinite:
        result = with_infinite_rows(builder, result, operands[-1], match.layout)
    if result.type != last.type:
        result = builder.emit(Cast(last.tensor_type.dtype), result, name=last.name)
    for node in builder.nodes[made:]:
        node.attrs.update(product.attrs)
    return result


def _in_context(builder: Builder, fused: Node, product: Node) -> Node | None:
    """Return the decomposed attention of a fused operator with sharded queries, or None if it stays."""
    assert isinstance(fused.op, FlashAttentionScore)
    attrs = builder.graph.attrs
    ranks = int(attrs.get("strategies_for", attrs.get("ranks", 1)))
    asked = RequestedSharding(fused.in_strategy, None, product.attrs, ranks)
    first = len(builder.nodes)
    try:
        found = fused.op.decompose(builder, asked, fused.inputs)
    except MspcError as error:
        raise product.error(error.message, error.notes, error.kind or ValueError) from None
    if found is None:
        return None
    for node in builder.nodes[first:]:
        node.instance = fused.instance
    builder.nodes.remove(fused)
    result = found[3]
    assert isinstance(result, Node)
    return result


def _strategies(match: AttentionMatch, operands: Sequence[Value]) -> Iterator[Any]:
    roles = {"BNSD": ("b", "n", "s", ""), "BSND": ("b", "s", "n", ""), "BSH": ("b", "s", "")}[match.layout]
    single = 1 if match.mesh is None else -1
    for index, operand in enumerate(operands):
        mine = roles if index < 3 else ("b", "n" if match.layout != "BSH" else "", "s", "")[4 - len(operand.shape) :]
        entry = tuple(
            match.shards.get(role, single) if n > 1 else single for role, n in zip(mine, operand.shape, strict=True)
        )
        if match.mesh is None:
            yield entry
        else:
            matrix, names, interleaved = match.mesh
            yield NamedLayout(matrix, names, entry, interleaved)
