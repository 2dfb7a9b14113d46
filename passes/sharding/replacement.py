"""Replaces operators that cannot have the strategy they were given by several that can."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OFFLOAD, Graph, Node, Value
from mspc.ir.types import TupleType
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.op import Op, RequestedSharding


def decompose_nodes(graph: Graph, sharded: bool) -> tuple[bool, dict[Node, MspcError]]:
    """(whether anything was changed, mistakes by operator); an operator with a mistake stays as it is.

    sharded: whether operators without a strategy are asked too, which may need one.
    """
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    candidates = {node for node in graph.nodes if _may_decompose(node, sharded, ranks)}
    errors: dict[Node, MspcError] = {}
    if not candidates:
        return False, errors
    nodes: list[Node] = []
    together = set(graph.results)
    for node in graph.nodes:
        if not isinstance(node.op, TupleGetItem):
            together.update(node.inputs)
    parts: dict[Value, list[Value]] = {}
    replaced: dict[Value, Value] = {}
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        found: list[Value] | None = None
        if node in candidates:
            found = _decomposed(builder, node, errors, ranks)
        elif isinstance(node.op, TupleGetItem) and node.inputs[0] in parts:
            found = [parts[node.inputs[0]][node.op.index]]
        if found is None:
            nodes.append(node)
        elif isinstance(node.type, TupleType):
            parts[node] = found
            if node in together:
                replaced[node] = builder.emit(MakeTuple(), *found)
                parts[replaced[node]] = found
        else:
            replaced[node] = found[0]
            if isinstance(found[0], Node):
                found[0].name = node.name or found[0].name
    graph.nodes = nodes
    graph.results = [replaced.get(v, v) for v in graph.results]
    return bool(replaced or parts), errors


def _may_decompose(node: Node, sharded: bool, ranks: int) -> bool:
    op = node.op
    if not isinstance(op, Op) or type(op).decompose is Op.decompose:
        return False
    if not (op.is_several or sharded or node.in_strategy is not None):
        return False
    return op.asks(_asked(node, ranks), ranks)


def _asked(node: Node, ranks: int) -> RequestedSharding:
    return RequestedSharding(node.in_strategy, node.out_strategy, node.attrs, ranks)


def _decomposed(b: Builder, node: Node, errors: dict[Node, MspcError], ranks: int) -> list[Value] | None:
    """The results of the operators in the place of `node`, which have its scope, source line and attributes."""
    assert isinstance(node.op, Op)
    start = len(b.nodes)
    b.like(node).phase = node.phase
    try:
        results = node.op.decompose(b, _asked(node, ranks), node.inputs)
    except MspcError as error:
        del b.nodes[start:]
        errors[node] = error if error.location is not None else node.error(error.message, error.notes)
        return None
    if results is None:
        return None
    for made in b.nodes[start:]:
        made.instance = made.instance or node.instance
        if type(made.op) is type(node.op):
            made.attrs |= {name: value for name, value in node.attrs.items() if name not in node.op.requests}
        else:
            made.attrs |= {name: node.attrs[name] for name in ("recompute", OFFLOAD) if name in node.attrs}
    return list(results)
