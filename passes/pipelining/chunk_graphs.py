"""Splits the body of a loop over micro-batches into a graph for each chunk of the network and kind of work.

A chunk is what one stage runs in one go: operators with its number as `stage`. Kinds are `F`, its forward operators,
and `B`, those of its gradients; where a schedule has them apart `I`, what other chunks wait for of these, and `W`, the
rest: the gradients of weights, but for cheap ones. What belongs to no chunk goes into every graph that reads it, and
what costs nothing to be made again into those of gradients. What else a graph reads of another one is a parameter of
it, and a result of the other.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from mspc.analysis.cost.nodes import work_of
from mspc.ir.copies import copied_node
from mspc.ir.free_names import free_name
from mspc.ir.graph import STAGE, Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.passes.pipelining.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

_WORDS = {
    FORWARD: "forward", BACKWARD: "backward", INPUT_GRADIENT: "input_gradients", WEIGHT_GRADIENT: "weight_gradients",
}  # fmt: skip


WITH_INPUTS = "with_input_gradients"
"""Attribute of what runs with gradients of inputs, until graphs are made."""


class Key(NamedTuple):
    """kind: of the work. chunk: its number."""

    kind: str
    chunk: int


@dataclass
class ChunkGraph:
    """The work of a kind of one chunk, on one micro-batch.

    graph: its nodes. given: parameters of the body that it reads; read: values of other graphs; its own parameters
    stand for these in this order. results: values of the body that it returns.
    """

    key: Key
    graph: Graph
    given: list[Parameter] = field(default_factory=list[Parameter])
    read: list[Node] = field(default_factory=list[Node])
    results: list[Node] = field(default_factory=list[Node])


@dataclass
class Chunks:
    """The graphs of a body. made_in: where the values that graphs read of each other, and results, are made."""

    graphs: dict[Key, ChunkGraph]
    made_in: dict[Value, Key]


def chunk_graphs(body: Graph, apart: bool = False) -> Chunks:
    """The graphs of all chunks of a body. apart: gradients of weights have graphs of their own."""
    members = _members(body)
    if apart:
        members = {key: nodes for each in members.items() for key, nodes in _apart(body, *each)}
    made_in: dict[Value, Key] = {}
    for key in sorted(members):  # of a node in several graphs the forward one hands it on
        made_in |= dict.fromkeys(members[key], key)
    for key, own in members.items():
        if key.kind != FORWARD:
            _make_again(body, own)
    graphs = {
        key: ChunkGraph(key, Graph(f"{body.name}_{_WORDS[key.kind]}_{key.chunk}")) for key in sorted(members)
    }  # fmt: skip
    wanted: dict[Key, dict[Node, None]] = {key: {} for key in graphs}
    for key, chunk in graphs.items():
        own = members[key]
        given: dict[Parameter, None] = {}
        read: dict[Node, None] = {}
        for node in body.nodes:
            for value in node.inputs if node in own else ():
                if isinstance(value, Parameter):
                    given[value] = None
                elif isinstance(value, Node) and value not in own:
                    read[value] = None
                    wanted[made_in[value]][value] = None
        chunk.given, chunk.read = list(given), list(read)
    for value in body.results:
        if isinstance(value, Node):
            wanted[made_in[value]][value] = None
    for key, chunk in graphs.items():
        chunk.results = list(wanted[key])
        _fill(chunk, body, members[key])
    return Chunks(graphs, made_in)


def mark_apart(body: Graph) -> None:
    """Mark what runs with gradients of inputs, in the graph of all ranks: what one rank reads of an exchange another
    one may only send, and all ranks have to meet in one order."""
    for each in _members(body).items():
        for key, nodes in _apart(body, *each):
            for node in nodes if key.kind == INPUT_GRADIENT else ():
                node.attrs[WITH_INPUTS] = True


def _members(body: Graph) -> dict[Key, set[Node]]:
    """The nodes of each graph; those of no chunk are where they are read, ahead of all else in the forward graph."""
    readers: dict[Value, list[Node]] = {}
    for node in body.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    of: dict[Node, set[Key]] = {}
    first = Key(FORWARD, min((int(n.attrs[STAGE]) for n in body.nodes if STAGE in n.attrs), default=0))
    for node in reversed(body.nodes):
        made = _tuple_of(node)
        if STAGE in made.attrs:
            of[node] = {Key(BACKWARD if made.phase == "backward" else FORWARD, int(made.attrs[STAGE]))}
            continue
        keys = {key for reader in readers.get(node, ()) for key in of.get(reader, ())}
        if node in body.results or node.op.has_side_effect or node.op.mutates:
            keys |= {first}
        of[node] = {key for key in keys if key.kind == FORWARD or Key(FORWARD, key.chunk) not in keys}
    members: dict[Key, set[Node]] = {}
    for node in body.nodes:
        for key in of[node]:
            members.setdefault(key, set()).add(node)
    return members


def _tuple_of(node: Node) -> Node:
    """Of an element of a tuple the node that makes the tuple: graphs hand on elements, no tuples."""
    while isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node):
        node = node.inputs[0]
    return node


def _apart(body: Graph, key: Key, own: set[Node]) -> list[tuple[Key, set[Node]]]:
    """Gradients that other chunks read with all that they are made of, and the others. What is marked is decided."""
    if key.kind != BACKWARD:
        return [(key, own)]
    marked: set[Value] = {node for node in own if node.attrs.get(WITH_INPUTS)}
    needed = marked.union(v for node in body.nodes if node not in own for v in node.inputs if v in own)
    for node in reversed(body.nodes):
        if node in own and node in needed:
            needed.update(value for value in node.inputs if value in own)
    inputs = {node for node in own if _tuple_of(node) in needed or node in needed}
    if inputs and not marked:
        inputs |= _cheap(body, own - inputs)
    pairs = [(Key(INPUT_GRADIENT, key.chunk), inputs), (Key(WEIGHT_GRADIENT, key.chunk), own - inputs)]
    return [pair for pair in pairs if pair[1]]


def _cheap(body: Graph, nodes: set[Node]) -> set[Node]:
    """Of gradients of weights those that no product is made for, as of norms and biases: they take less time where
    their operands are at hand, for other gradients, than to keep these."""
    late: set[Node] = set()
    for node in body.nodes:
        if node in nodes and (node.regions or work_of(node) or any(value in late for value in node.inputs)):
            late.add(node)
    wanted: set[Value] = set(body.results)
    found: set[Node] = set()
    for node in reversed(body.nodes):
        if node in wanted and node in nodes and node not in late:
            found.add(node)
            wanted.update(node.inputs)
    return found


def _make_again(body: Graph, own: set[Node]) -> None:
    """Add to a graph of gradients what costs nothing to be made of what it is made of, and would be kept beside that:
    a view, or what one smaller tensor is cast or repeated to."""
    for node in reversed(body.nodes):
        for value in node.inputs if node in own else ():
            if isinstance(value, Node) and value not in own and _is_free(value):
                own.add(value)


def _is_free(node: Node) -> bool:
    op = node.op
    if isinstance(op, TupleGetItem) or not isinstance(op, Op) or not isinstance(node.type, TensorType):
        return False
    if op.is_view:
        return True
    made_of = [value for value in node.inputs if not isinstance(value, Constant)]
    plain = not (node.regions or op.draws or op.mutates or op.has_side_effect or op.is_collective or work_of(node))
    return plain and len(made_of) == 1 and 0 < made_of[0].type.nbytes < node.type.nbytes


def _fill(chunk: ChunkGraph, body: Graph, own: set[Node]) -> None:
    graph = chunk.graph
    graph.returns_tuple = True
    of: dict[Value, Value] = {}
    taken: set[str] = set()
    for value in (*chunk.given, *chunk.read):
        name = free_name(value.name or "received", taken)
        of[value] = parameter = Parameter(name, value.type, "input")
        graph.parameters.append(parameter)
    for node in body.nodes:
        if node in own:
            of[node] = copy = copied_node(node, [v if isinstance(v, Constant) else of[v] for v in node.inputs])
            copy.attrs.pop(WITH_INPUTS, None)
            graph.nodes.append(copy)
    graph.results = [of[value] for value in chunk.results]
