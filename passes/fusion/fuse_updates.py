"""Puts the updates of many parameters by one optimizer into one operator.

Input:  `%70 = ApplyMomentum(w, moments.w, rate, %61, momentum)`, the same of b and so on
Output: `%70 = GroupedUpdate(w, moments.w, rate, %61, momentum, b, ...) {update: "ApplyMomentum(...)", count: 2}`

A group takes the place of the last of its members. A gradient that a `Cast` alone widens is read before the cast.
Updates whose states live on the host have groups of their own. Copies of parameters in halves that the updates can keep
up to date get the attribute `kept`, see `analysis.shadow_weights`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import field

from mspc.analysis.aliasing import Updates
from mspc.analysis.shadow_weights import mark_shadow_weights
from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.grouped_update import GroupedUpdate, gradient_index
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.fusion.counted_in_place import count_in_place
from mspc.passes.fusion.rewriter import Rewriter, element, gathered, merged_attributes
from mspc.passes.fusion.written_updates import join_written_updates

MOST_MEMBERS = 64
HELD = 64 << 20
"""Bytes of gradients, made between the members of a group, that may wait for its last member."""
FETCHED = 8 << 20
"""Bytes of states that live on the host, and are on the device together while a group of several is updated."""

LARGE_SUM = 4 << 20
"""Bytes of a gradient that travelled alone from which on its update is one by itself: it takes longer than a launch."""
_PARTS = TupleGetItem, Cast, Split, StridedSlice, FusedElementwise
"""What takes a gradient from a sum, where it has one operand."""


@dataclass(frozen=True)
class FuseUpdates(Pass):
    """Group the updates of parameters."""

    def run(self, graph: Graph) -> bool:
        updates = Updates(graph)
        if updates.first == len(graph.nodes):
            return False
        counted = count_in_place(graph, updates)
        updates = Updates(graph) if counted else updates
        written = Rewriter(graph)
        join_written_updates(written, updates)
        joined = written.apply()
        updates = Updates(graph) if joined else updates
        rewriter = Rewriter(graph)
        for found in _groups(rewriter, updates):
            if len(found.members) > 1:
                _fuse(rewriter, found)
        changed = rewriter.apply() or joined or counted
        return mark_shadow_weights(graph) or changed


@dataclass(eq=False)
class _UpdateGroup:
    """Updates that become one. start: number of the first. casts: those of gradients, by the member that reads them.
    held: bytes of gradients that wait. fetched: those of states that live on the host. open: whether another update may
    join."""

    start: int
    members: list[Node] = field(default_factory=list[Node])
    casts: dict[Node, Node] = field(default_factory=dict[Node, Node])
    held: int = 0
    fetched: int = 0
    open: bool = True

    def takes(self, held: int, fetched: int) -> bool:
        """Whether another update may join, for which so many bytes more wait and are fetched."""
        within = self.held + held <= HELD and self.fetched + fetched <= FETCHED
        return self.open and within and len(self.members) < MOST_MEMBERS


def _groups(rewriter: Rewriter, updates: Updates) -> list[_UpdateGroup]:
    """The groups, of one member too. What may not come before a member that moves closes its group."""
    graph = rewriter.graph
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    current: dict[Hashable, _UpdateGroup] = {}
    found: list[_UpdateGroup] = []
    read: dict[Value, set[_UpdateGroup]] = {}
    written: dict[Value, set[_UpdateGroup]] = {}
    for number in range(updates.first, len(graph.nodes)):
        node = graph.nodes[number]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in written:
            written[node] = written[node.inputs[0]]  # an element of a member's result, read by nobody yet
            continue
        writes = updates.written(node)
        reads = {value for value in node.inputs if isinstance(value, Node)}
        reads = reads.union(*(updates.parameters(value) for value in node.inputs))
        for value in reads:
            _close(written.get(value, ()))
        for value in writes:
            _close(read.get(value, ()))
        if not _may_be_grouped(node, rewriter):
            continue
        cast = _widening(node, rewriter, updates)
        key = _key(node, cast)
        group = current.get(key)
        start = group.start if group is not None else number
        held = sum(v.type.nbytes for v in node.inputs if isinstance(v, Node) and numbers[v] > start)
        fetched = sum(value.type.nbytes for value in _on_host(node))
        if group is None or not group.takes(held, fetched):
            group = current[key] = _UpdateGroup(number)
            found.append(group)
        else:
            group.held += held
        group.fetched += fetched
        group.members.append(node)
        if cast is not None:
            group.casts[node] = cast
        for value in reads | writes:
            read.setdefault(value, set()).add(group)
        for value in (*writes, node):
            written.setdefault(value, set()).add(group)
    return found


def _close(groups: Iterable[_UpdateGroup]) -> None:
    for group in groups:
        group.open = False


def _may_be_grouped(node: Node, rewriter: Rewriter) -> bool:
    """Whether the node is an update of parameters whose result, where it is a tuple, is only taken apart."""
    if not isinstance(node.op, Update):
        return False
    if not all(isinstance(node.inputs[index], Parameter) for index in node.op.mutates):
        return False
    return isinstance(node.type, TensorType) or (
        node not in rewriter.results and all(isinstance(user.op, TupleGetItem) for user in rewriter.readers(node))
    )


def _key(node: Node, cast: Node | None) -> Hashable:
    """Equal for updates that one operator can do: operator, scalars and element types; and that can start together."""
    op = node.op
    assert isinstance(op, Update)
    scalars = tuple(node.inputs[index] for index in op.scalars)
    narrow = cast.inputs[0].tensor_type.dtype if cast is not None else None
    dtypes = tuple(value.tensor_type.dtype for value in node.inputs)
    return op, scalars, dtypes, narrow, _bucket(node), bool(_on_host(node))


def _on_host(node: Node) -> list[Parameter]:
    """The states that live on the host."""
    return [value for value in node.inputs if isinstance(value, Parameter) and OFFLOAD in value.attrs]


def _bucket(node: Node) -> Node | None:
    """The bucket of gradients in which the update's own travelled, or its sum where that is large: the updates behind
    one need not wait for the next. What ranks add up on the way, as a norm's sums, is small and comes early."""
    index = gradient_index(node.op)  # type: ignore[arg-type]  # an Update, as it may join
    value = node.inputs[index] if index is not None else None
    while isinstance(value, Node) and isinstance(value.op, _PARTS) and len(value.inputs) == 1:
        value = value.inputs[0]
    if not isinstance(value, Node) or not isinstance(value.op, AllReduce) or "mirror_user_id" not in value.attrs:
        return None
    return value if len(value.inputs) > 1 or value.type.nbytes >= LARGE_SUM else None


def _widening(node: Node, rewriter: Rewriter, updates: Updates) -> Node | None:
    """The Cast from 16 bits that only makes the gradient of an update, if it can be done by the update."""
    index = gradient_index(node.op)  # type: ignore[arg-type]  # an Update, as it may join
    cast = node.inputs[index] if index is not None else None
    if not isinstance(cast, Node) or not isinstance(cast.op, Cast) or cast.op.dst_type != FLOAT32:
        return None
    if cast.inputs[0].tensor_type.dtype not in (FLOAT16, BFLOAT16) or node.inputs[0].tensor_type.dtype != FLOAT32:
        return None
    if rewriter.only_reader(cast) is None or updates.changes(cast.inputs[0]):
        return None
    return cast


def _fuse(rewriter: Rewriter, found: _UpdateGroup) -> None:
    """Put one operator, and what takes its result apart, in the place of the group's last member."""
    members = found.members
    op = members[0].op
    assert isinstance(op, Update)
    inputs: list[Value] = []
    for member in members:
        cast = found.casts.get(member)
        inputs += [cast.inputs[0] if cast is not None and value is cast else value for value in member.inputs]
    types = tuple(t for member in members for t in element_types(member.type))
    labels = [f"{m.label} of {m.inputs[0].name}" for m in members]
    grouped = gathered(GroupedUpdate.of(op, len(members)), inputs, TupleType(types), members, labels)
    casts = [found.casts[member] for member in members if member in found.casts]
    grouped.attrs |= {f"cast_{key}": value for key, value in merged_attributes(casts).items()}
    nodes = [grouped]
    for index, member in enumerate(members):
        for place, read in enumerate(_parts(member, rewriter)):
            if read:
                nodes.append(element(grouped, index * op.outputs + place, member))
            for value in read:
                rewriter.replace(value, nodes[-1])
    rewriter.gone.update((*members, *casts))
    rewriter.put(members[-1], nodes)


def _parts(member: Node, rewriter: Rewriter) -> list[list[Value]]:
    """For every result of a member the values that replace it."""
    if isinstance(member.type, TensorType):
        return [[member] if member in rewriter.results or member in rewriter.users else []]
    found: list[list[Value]] = [[] for _ in element_types(member.type)]
    for user in rewriter.readers(member):
        assert isinstance(user.op, TupleGetItem)
        found[user.op.index].append(user)
    return found
