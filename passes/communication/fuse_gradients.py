"""Puts the reductions of gradients over the same ranks into buckets: one AllReduce of many tensors instead of many.

Input:  `%5 = AllReduce(%3) {mirror_user_id: "w"}`, `%7 = AllReduce(%4) {mirror_user_id: "b"}` over the same axes
Output: `%5 = AllReduce(%3, %4)` as soon as the last of them is ready, and `TupleGetItem`s instead of the others.

The bytes stay the same, the messages are fewer. Gradients of another stage, and of parameters with another
`comm_fusion` (an attribute, 1 without it), go into other buckets; 0 leaves one on its own. A bucket holds at most
`gradient_bucket` bytes of a rank's slices (header attribute; 0 turns this off). Without it that is MindSpore's
default of 64 MB, or less if there are many gradients: buckets fill in the order in which gradients are ready, and
while one travels the next is computed.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mspc.ir.graph import STAGE, Builder, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import Pass
from mspc.passes.lib.collective_order import order_collectives
from mspc.passes.lib.ranks import local_type

BUCKET = 64 << 20
"""Bytes at most."""
SMALLEST = 16 << 20
"""Bytes below which a bucket is not separate for the sake of overlap: half its time on the wire is latency at 4 MB."""
PARTS = 8
"""Into how many buckets many gradients go: the last one, which nothing hides, is one of them."""


@dataclass
class _Bucket:
    """Reductions that may become one. ready: position after all operands. first_use: of the first that reads one."""

    members: list[Node] = field(default_factory=list[Node])
    nbytes: int = 0
    ready: int = 0
    first_use: int = 1 << 60


class FuseGradients(Pass):
    def run(self, graph: Graph) -> bool:
        limit = _bucket_bytes(graph)
        changed = False
        if limit:
            before = graph.nodes
            graph.nodes = _changes_last(before)
            changed = graph.nodes != before
            changed |= _fuse(graph, [b for b in _buckets(graph, limit) if len(b.members) > 1])
        return order_collectives(graph) or changed


def _bucket_bytes(graph: Graph) -> int:
    """Return the bytes of a bucket: the header's, else BUCKET or a part of all gradients."""
    if "gradient_bucket" in graph.attrs:
        return int(graph.attrs["gradient_bucket"])
    total = sum(local_type(node.type, node).nbytes for node in graph.nodes if _reduces_gradient(node))
    return min(BUCKET, max(SMALLEST, total // PARTS))


def _fuse(graph: Graph, buckets: list[_Bucket]) -> bool:
    if not buckets:
        return False
    starting: dict[int, list[_Bucket]] = {}
    for bucket in buckets:
        starting.setdefault(bucket.ready, []).append(bucket)
    gone = {member for bucket in buckets for member in bucket.members}
    nodes: list[Node] = []
    replaced: dict[Value, Value] = {}
    for position in range(len(graph.nodes) + 1):
        for bucket in starting.get(position, ()):
            _emit(Builder(graph, nodes), bucket, replaced)
        if position == len(graph.nodes):
            break
        node = graph.nodes[position]
        if node not in gone:
            node.inputs = [replaced.get(v, v) for v in node.inputs]
            nodes.append(node)
    graph.nodes = nodes
    graph.results = [replaced.get(v, v) for v in graph.results]
    return True


def _reduces_gradient(node: Node) -> bool:
    return isinstance(node.op, AllReduce) and "mirror_user_id" in node.attrs and len(node.inputs) == 1


def _changes_last(nodes: list[Node]) -> list[Node]:
    """Return the nodes with those that change parameters, and those that need them, after all others. An optimizer that
    scales one gradient after another update would otherwise separate their reductions."""
    first: list[Node] = []
    last: list[Node] = []
    waiting: set[Value] = set()
    for node in nodes:
        op = node.op
        changes = isinstance(op, Op) and op.mutates and not op.updates_aside
        widens = isinstance(op, Cast) and any(isinstance(v, Node) and _reduces_gradient(v) for v in node.inputs)
        if changes or widens or any(value in waiting for value in node.inputs):
            last.append(node)
            waiting.add(node)
            if changes and isinstance(op, Op):
                waiting.update(node.inputs[i] for i in op.mutates)
        else:
            first.append(node)
    return first + last


def _buckets(graph: Graph, limit: int) -> list[_Bucket]:
    """Return buckets of gradients in the order in which they are ready; one joins the open bucket of its group if it
    can still be in time."""
    position: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
    first_use: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            first_use.setdefault(value, i)
    own = {p.name: number for p in graph.parameters if isinstance(number := p.attrs.get("comm_fusion"), int)}
    opened: dict[Any, _Bucket] = {}
    found: list[_Bucket] = []
    for node in sorted(graph.nodes, key=lambda node: max((position.get(v, -1) for v in node.inputs), default=-1)):
        if not _reduces_gradient(node):
            continue
        names = str(node.attrs["mirror_user_id"]).split(",") if own else []
        fusion = min((own.get(name.strip(), 1) for name in names), default=1)
        if not fusion:
            continue
        key = (node.op, node.tensor_type.dtype, fusion, node.attrs.get(STAGE))
        nbytes = local_type(node.type, node).nbytes
        ready = position.get(node.inputs[0], -1) + 1
        use = first_use.get(node, len(graph.nodes))
        bucket = opened.get(key)
        in_time = bucket is not None and max(bucket.ready, ready) <= min(bucket.first_use, use)
        if bucket is None or not in_time or bucket.nbytes + nbytes > limit:
            bucket = opened[key] = _Bucket()
            found.append(bucket)
        bucket.members.append(node)
        bucket.nbytes += nbytes
        bucket.ready = max(bucket.ready, ready)
        bucket.first_use = min(bucket.first_use, use)
    return found


def _emit(b: Builder, bucket: _Bucket, replaced: dict[Value, Value]) -> None:
    first = bucket.members[0]
    b.like(first).phase = first.phase
    fused = b.emit(first.op, *(replaced.get(m.inputs[0], m.inputs[0]) for m in bucket.members), name=first.name)  # type: ignore[arg-type]  # an AllReduce
    layouts = [m.layout for m in bucket.members if isinstance(m.layout, Layout)]
    fused.layout = tuple(layouts) if len(layouts) == len(bucket.members) else None
    names = ", ".join(str(m.attrs["mirror_user_id"]) for m in bucket.members)
    fused.attrs["mirror_user_id"] = names
    fused.attrs["reason"] = f"{len(bucket.members)} gradients in one bucket, the first because " + str(
        first.attrs.get("reason", "")
    )
    for i, member in enumerate(bucket.members):
        part = b.emit(TupleGetItem(i), fused, name=member.name)
        part.layout = member.layout
        replaced[member] = part
