"""Attention reads every head of keys and values once, where several heads of the query look at copies of one.

Input:  `%1 = ExpandDims(%k) {axis: 2}`, `%2 = BroadcastTo(%1)`, `%3 = Reshape(%2) {shape: (8, 16, 1024, 64)}`, and the
        same of %v, as operands of `FlashAttentionScore(%q, %3, %6)`
Output: `FlashAttentionScore(%q, %k, %v)`, whose keys and values have 4 heads
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import NamedLayout
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.tensor.reshape import Cast
from mspc.passes.fusion.attention_operands import HEADS, LAYOUTS, OperandSource, source_in, sources_of

KEY, VALUE = 1, 2
"""Places of the operands whose heads may serve several of the query."""


def without_repeats(graph: Graph) -> bool:
    """Let attentions read keys and values whose heads are not repeated; whether there was one."""
    found = {node: sources for node in graph.nodes if (sources := _once(node)) is not None}
    if not found:
        return False
    nodes: list[Node] = []
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        for place, source in zip((KEY, VALUE), found.get(node, ()), strict=False):
            node.inputs[place] = _in_type(builder.like(node), source)
        nodes.append(node)
    graph.nodes = nodes
    return True


def _once(node: Node) -> tuple[OperandSource, OperandSource] | None:
    """What the keys and values of an attention are repeated of, as many times both."""
    op = node.op
    if not isinstance(op, FlashAttentionScore) or op.packed or op.input_layout not in LAYOUTS:
        return None
    roles = LAYOUTS[op.input_layout]
    if HEADS not in roles or _shards(node.in_strategy, roles.index(HEADS)) or node.out_strategy is not None:
        return None
    sides = [list(sources_of(node.inputs[place], roles, False)) for place in (KEY, VALUE)]
    shared = {each.group for each in sides[0]} & {each.group for each in sides[1]}
    key, value = (source_in(side, op.input_layout, max(shared)) for side in sides)
    if max(shared) == 1 or key is None or value is None:
        return None
    if any(each.in_strategy is not None for source in (key, value) for each, _ in source.passed):
        return None
    types = [operand.tensor_type for operand in node.inputs]
    for place, source in ((KEY, key), (VALUE, value)):
        types[place] = types[place].with_shape(source.value.shape)
    try:
        return (key, value) if op.infer(*types) == node.type else None
    except MspcError:
        return None


def _shards(strategy: Sequence[Any] | None, heads: int) -> bool:
    """Whether the heads are sharded: ranks need not have heads of the query with those that they look at."""
    for entry in strategy or ():
        if isinstance(entry, NamedLayout):
            return True
        if isinstance(entry, tuple) and len(entry) > heads and entry[heads] != 1:
            return True
    return False


def _in_type(builder: Builder, source: OperandSource) -> Value:
    return source.value if source.cast is None else builder.emit(Cast(source.cast), source.value)
