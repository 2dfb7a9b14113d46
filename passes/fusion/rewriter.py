"""Record the changes of a pass that joins nodes: the new nodes, the removed ones, and the replacements.

A pass walks over the nodes and records the joins; `Rewriter.apply` then changes the graph at once, so that positions
and readers stay those of the graph as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import STAGE, Builder, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.facts import SWITCHES
from mspc.ir.types import DType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import part_of
from mspc.passes.base import rewrite_nodes
from mspc.passes.cleanup.simplify import remove_dead


class Rewriter:
    """The planned changes of one graph. replaced: the replacement of values. gone: nodes to remove."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.replaced: dict[Value, Value] = {}
        self.gone: set[Node] = set()
        self._made: dict[Node, list[Node]] = {}
        self._places: dict[Node, Node] = {}
        self._stood_for: dict[Value, list[Value]] = {}

    # The graph as it was

    @cached_property
    def users(self) -> dict[Value, list[tuple[Node, int]]]:
        """The readers of all values, as `Graph.users` lists them."""
        return self.graph.users()

    @cached_property
    def results(self) -> set[Value]:
        """The results of the graph."""
        return set(self.graph.results)

    def readers(self, value: Value) -> list[Node]:
        """Return the nodes that read a value, in run order, one as often as it does."""
        return [user for user, _ in self.users.get(value, ())]

    def only_reader(self, value: Value) -> Node | None:
        """Return the one that reads a value which is read once and not returned."""
        users = self.users.get(value, ())
        return users[0][0] if len(users) == 1 and value not in self.results else None

    # What changes

    def now(self, value: Value) -> Value:
        """Return the current replacement of a value."""
        return self.replaced.get(value, value)

    def taken(self, node: Node) -> bool:
        """Return whether something is made in the place of a node, or replaces it."""
        return node in self._made or node in self.replaced

    def put(self, place: Node, nodes: Iterable[Node]) -> None:
        """Add nodes at the position of one that is removed, after those already added there."""
        held = self._made.setdefault(place, [])
        for node in nodes:
            held.append(node)
            self._places[node] = place
        self.gone.add(place)

    def put_ahead(self, place: Node, nodes: Iterable[Node]) -> None:
        """Add nodes before one that stays, unless something replaces or drops it."""
        goes = place in self.gone
        self.put(place, nodes)
        if not goes:
            self.gone.discard(place)

    def put_for(self, old: Node, nodes: Iterable[Node]) -> None:
        """Make nodes in the place of `old`, which may be one of those that were made."""
        place = self._places.pop(old, None)
        if place is None:
            self.put(old, nodes)
            return
        held = self._made[place]
        at = held.index(old)
        held[at : at + 1] = nodes = list(nodes)
        self._places.update(dict.fromkeys(nodes, place))

    def drop(self, node: Node) -> None:
        """Remove a node, of the graph or made."""
        place = self._places.pop(node, None)
        if place is None:
            self.gone.add(node)
        else:
            self._made[place].remove(node)

    def replace(self, old: Value, new: Value) -> None:
        """`new` replaces `old`, and all that `old` replaced."""
        for value in (*self._stood_for.pop(old, ()), old):
            self.replaced[value] = new
            self._stood_for.setdefault(new, []).append(value)

    def apply(self) -> bool:
        """Change the graph; return False if there is nothing to do."""
        if not self._made:
            return False
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self._made.get(node, ())
            if node not in self.gone and node not in self.replaced:
                nodes.append(node)
        self.graph.nodes = nodes
        if self.replaced:
            self.graph.replace(self.replaced)
        return True


class NodeWalk:
    """A walk over the nodes of a graph that makes the list of nodes anew. users: the readers of values in the graph as
    it was. replaced: values by their replacements. nodes: the new list. index: of the node that is visited."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.results = set(graph.results)
        self.updates = Updates(graph)
        self.replaced: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        self.index = 0

    def run(self) -> None:
        """Visit all nodes, whose operands are replaced before."""
        for index, node in enumerate(self.graph.nodes):
            self.index = index
            node.inputs = [self.replaced.get(value, value) for value in node.inputs]
            self.visit(node)
        self.graph.nodes = self.nodes
        self.graph.results = [self.replaced.get(value, value) for value in self.graph.results]

    def visit(self, node: Node) -> None:
        """Add a node to the new list, or others in its place."""
        raise NotImplementedError

    def readers(self, value: Value) -> list[Node]:
        """Return the readers of a value in the graph as it was."""
        return [user for user, _ in self.users.get(value, ())]

    def make(self, like: Node, op: Op, inputs: Iterable[Value], type: Type, takes: bool = False) -> Node:
        """Add a new node, see `node_like`."""
        self.nodes.append(node_like(like, op, inputs, type, takes))
        return self.nodes[-1]


class Emitter(Rewriter):
    """A rewriter that makes nodes one by one."""

    def emit(
        self, place: Node, op: Op, inputs: Sequence[Value], like: Node, parts: Sequence[Node] = (), takes: bool = False
    ) -> Node:
        """Return a new node before `place`, at the lines of `like`.

        It replaces all of `parts`, or `takes` the names and facts of `like`.
        """
        type = op.infer(*[value.type for value in inputs])  # type: ignore[misc]  # structural operators take tuples
        made = node_like(like, op, inputs, type, takes)
        if STAGE in like.attrs:
            made.attrs[STAGE] = like.attrs[STAGE]
        if parts:
            made.attrs["fused"] = tuple(part.label for part in parts)
        self.put_ahead(place, [made])
        return made

    def cast(self, place: Node, value: Node, dtype: DType, like: Node) -> Node:
        """Return the value in this element type."""
        return value if value.tensor_type.dtype == dtype else self.emit(place, Cast(dtype), [value], like)

    def shaped(self, place: Node, value: Value, shape: tuple[int, ...], like: Node) -> Value:
        return value if value.shape == shape else self.emit(place, Reshape(shape), [value], like)

    def take_apart(self, joined: Node, axis: int, sizes: Sequence[int], parts: Sequence[Node], place: Node) -> None:
        """Put slices of a tensor, in their shapes, in the place of the nodes that gave them one by one."""
        split = self.emit(place, Split(axis, len(sizes)), [joined], parts[0]) if len(set(sizes)) == 1 else None
        last = 0
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            first, last = last, last + size
            shaped = (*joined.shape[:axis], size, *joined.shape[axis + 1 :]) != part.shape
            op = part_of(joined.shape, axis, first, last) if split is None else TupleGetItem(index)
            made = self.emit(place, op, [split or joined], part, takes=not shaped)
            self.replace(part, self.emit(place, Reshape(part.shape), [made], part, takes=True) if shaped else made)


def node_like(like: Node, op: Op, inputs: Iterable[Value], type: Type, takes: bool = False) -> Node:
    """Return a new node at the lines and in the phase of `like`; it `takes` the names and facts of `like`, too."""
    made = Node(op, inputs, type, scope=like.scope, frames=like.frames, phase=like.phase)
    made.provenance = f"/{like.op.name}"
    if takes:
        made.name, made.instance, made.attrs = like.name, like.instance, dict(like.attrs)
    return made


def fused(op: Op, inputs: Iterable[Value], type: Type, first: Node, last: Node, parts: Iterable[str]) -> Node:
    """Return the node of an operator to which others were joined: it has the name and the place in the network of
    `first`, the lines of `last` and the facts of both; it lists the labels `parts`."""
    made = Node(op, inputs, type, first.name, first.instance, first.scope, last.frames, last.phase)
    made.attrs = {key: value for key, value in (first.attrs | last.attrs | first.attrs).items() if key != "fused"}
    made.attrs["fused"] = tuple(dict.fromkeys(parts))
    return made


def gathered(op: Op, inputs: Iterable[Value], type: Type, members: Sequence[Node], parts: Iterable[str]) -> Node:
    """Return a node that does the work of several members, at the lines of the last, with the labels `parts` and all
    members' facts."""
    made = node_like(members[-1], op, inputs, type)
    made.attrs = {"fused": tuple(parts), **merged_attributes(members)}
    return made


def element(several: Node, index: int, like: Node) -> Node:
    """Return one of several results, at the lines of the node `like` that gave it before."""
    assert isinstance(several.type, TupleType)
    return node_like(like, TupleGetItem(index), [several], several.type.elements[index])


def successor(several: Node, index: int, like: Node) -> Node:
    """Return the same as `element`, with the names and the facts of `like`."""
    made = element(several, index, like)
    made.name, made.instance = like.name, like.instance
    made.attrs = {key: value for key, value in like.attrs.items() if key != "fused"}
    return made


def parts_of(node: Node) -> tuple[str, ...]:
    """Return the labels of the nodes that a node was made of; its own if none."""
    return tuple(node.attrs.get("fused", (node.label,)))


def merged_attributes(members: Sequence[Node]) -> dict[str, Any]:
    """Return the members' further facts, each as a tuple with an entry for every member, None if it has none.

    Reasons become one text, and a switch is set if any member has it.
    """
    keys = dict.fromkeys(key for node in members for key in node.attrs if key != "fused")
    found: dict[str, Any] = {key: tuple(node.attrs.get(key) for node in members) for key in keys}
    found |= {key: any(found[key]) for key in SWITCHES.intersection(keys)}
    if "reason" in found:
        found["reason"] = "; ".join(dict.fromkeys(filter(None, found["reason"])))
    return found


# Finds nodes that one operator can do together, in the place of the last of them.


MAX_MEMBERS = 64
HELD = 64 << 20
"""Bytes of operands, made between the members of a group, that may wait for its last member."""


@dataclass(eq=False)
class _Group:
    """Nodes that become one. start: number of the first. held: bytes of operands that wait. open: whether another may
    join."""

    start: int
    members: list[Node] = field(default_factory=list[Node])
    held: int = 0
    open: bool = True


def groups_of_alike(
    graph: Graph, key_of: Callable[[Node], Hashable], followers: Mapping[Node, Node]
) -> list[list[Node]]:  # fmt: skip
    """Return groups of several nodes. Readers of a member and changes of its operands close a group. key_of: equal for
    nodes that can be one; None for those that stay. followers: a member's only reader that becomes a part of it."""
    updates = Updates(graph)
    numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
    current: dict[Hashable, _Group] = {}
    group_of: dict[Value, _Group] = {}
    found: list[_Group] = []
    for number, node in enumerate(graph.nodes):
        for value in node.inputs:
            group = group_of.get(value)
            if group is None:
                continue
            if isinstance(value, Node) and followers.get(value) is node:
                group_of[node] = group
            else:
                group.open = False
        key = key_of(node)
        if key is None:
            continue
        group = current.get(key)
        if group is None or not _takes(group, node, number, updates, numbers):
            group = current[key] = _Group(number)
            found.append(group)
        group.held += _waiting(group, node, numbers)
        group.members.append(node)
        group_of[node] = group
    return [group.members for group in found if len(group.members) > 1]


def _takes(group: _Group, node: Node, number: int, updates: Updates, numbers: Mapping[Value, int]) -> bool:
    """Return True if a node may join: the members' operands are unchanged, and not too many bytes wait."""
    if not group.open or len(group.members) == MAX_MEMBERS or group.held + _waiting(group, node, numbers) > HELD:
        return False
    return not updates.between([value for member in group.members for value in member.inputs], group.start, number)


def _waiting(group: _Group, node: Node, numbers: Mapping[Value, int]) -> int:
    """Return the bytes of the node's operands made after the group's first member."""
    return sum(value.type.nbytes for value in node.inputs if numbers.get(value, -1) > group.start)


# Takes operators of a rank's graph apart into several, which later passes join to their neighbours.


Maker = Callable[[Builder, Node], Sequence[Value] | None]
"""Emits what a node is, and returns its results; None: it stays."""


def split(graph: Graph, make: Maker) -> bool:
    """Replace nodes by the nodes `make` emits for them; return True if there were any.

    The new nodes name the old one in their attribute `fused`.
    """

    def visit(b: Builder, node: Node) -> Sequence[Value] | None:
        b.like(node)
        b.phase, b.forward = node.phase, node.forward
        begin = len(b.nodes)
        made = make(b, node)
        for each in b.nodes[begin:] if made is not None else ():
            each.attrs["fused"] = (node.label,)
        return made

    if not rewrite_nodes(graph, visit):
        return False
    remove_dead(graph)
    return True
