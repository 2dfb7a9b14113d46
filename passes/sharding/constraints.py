"""Removes sharding constraints once they have taken effect: who read one reads the constrained value itself."""

from __future__ import annotations

from mspc.analysis.aliasing import Updates, aliased_operands
from mspc.analysis.lifetimes import last_reads
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.constraint import is_constraint
from mspc.ops.tensor.cast import Cast


def release_constraints(graph: Graph) -> bool:
    """Let every reader of a constraint read what it constrains; True where there was any.

    The constraints stay, read by nobody, so that people see them among the operators' strategies, until a rank's graph
    is made. One that is read behind an update of the parameter that it shows becomes a copy: its readers want what
    stood there before.
    """
    if not any(map(is_constraint, graph.nodes)):
        return False
    updates = Updates(graph)
    reads = last_reads(graph, aliased_operands)
    replaced: dict[Value, Value] = {}
    for number, node in enumerate(graph.nodes):
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        if node.forward is not None and node.forward in replaced:
            source = replaced[node.forward]
            node.forward = source if isinstance(source, Node) else None
        if not is_constraint(node):
            continue
        value = node.inputs[0]
        if updates.changes(value) and updates.between((value,), number, reads.get(node, -1)):
            node.op = Cast(dst_type=value.tensor_type.dtype)
            continue
        replaced[node] = value
        node.attrs["unused"] = True
    graph.results = [replaced.get(v, v) for v in graph.results]
    return True


def is_released(value: Value) -> bool:
    """Whether a value is a constraint that nobody reads any more."""
    return is_constraint(value) and isinstance(value, Node) and "unused" in value.attrs
