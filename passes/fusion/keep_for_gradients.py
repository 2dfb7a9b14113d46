"""Decides by a minimum cut which values wait in memory for the gradients, and which are computed again for them.

Input:  `%1 = Cast(%x, dst_type=Float32)` of halves `%x`, both read by gradients of long after
Output: the gradients' `Cast` of `%x` right before its first reader; nobody holds the conversion for so long

The pass looks at the node at which most bytes are alive. Forward values that only later gradients still read either
stay, which costs their bytes once, or are made again by a pass over memory of its own, right before the first of these
readers. The cheapest choice is a minimum cut: its network has an edge of a value's bytes for every value that could
stay, and an edge of the bytes that would be moved for every one that could be made again, or of those that could be
moved in the time of its instructions, if these take longer. A byte at the peak is worth three that are moved
(`PRICE`). Values that wait in any case cost nothing to read, and so do parameters and values made of
them alone. Elementwise operators, views, joins of tensors, and one pass along rows (a softmax, a norm) can
be made again; products, convolutions, attention, collectives, reductions and all else never are: their results stay, or
nothing that needs them is made again.

The cut is taken again at the peak that is left, as long as each one lowers the peak by its price; one that does not is
taken back. Recomputation inside kernels has been decided in `recompute_elementwise`, before
this pass. In the end `join_recomputed` saves passes if kernels of the gradients read the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from mspc.analysis.aliasing import Updates, aliased_operands
from mspc.analysis.cost.nodes import cost_of_fused, instructions
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative, reached
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import along_rows, by_element, closes
from mspc.ops.fused.elementwise import FusedElementwise, space_of_steps
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import FARTHEST, MAX_LINES, MAX_OPERANDS, LineTable, NodeLines, kernel_of
from mspc.passes.fusion.rewriter import gathered, parts_of, successor

# Finds minimum cuts of networks by Dinic's algorithm.


UNBOUNDED = 1 << 62
"""The capacity of an edge that no cut goes through."""
Capacities = dict[int, dict[int, int]]
"""How much more can flow along the edges from each place, by where they lead."""


def nearest_cut(edges: Mapping[tuple[int, int], int], source: int, sink: int) -> set[int]:
    """Return the places on the sink's side of a minimum cut, of the one that leaves fewest there: from each of them
    more could flow to the sink.

    edges: their capacities, by (start, stop). source, sink: two different places.
    """
    left: Capacities = {source: {}, sink: {}}
    for (start, stop), capacity in edges.items():
        for one, other, more in ((start, stop, capacity), (stop, start, 0)):
            ways = left.setdefault(one, {})
            ways[other] = ways.get(other, 0) + more
    while source in (distance := _distances(left, sink)):
        _fill(left, distance, source, sink)
    return set(distance)


def _distances(left: Capacities, sink: int) -> dict[int, int]:
    """Return the number of edges to the sink for all places from which more can flow to it."""
    found = {sink: 0}
    waiting = deque([sink])
    while waiting:
        stop = waiting.popleft()
        for start in left[stop]:
            if start not in found and left[start][stop]:
                found[start] = found[stop] + 1
                waiting.append(start)
    return found


def _fill(left: Capacities, distance: Mapping[int, int], source: int, sink: int) -> None:
    """Send as much flow as possible along the shortest paths."""
    untried = {place: list(left[place]) for place in distance}
    path = [source]
    while path:
        place = path[-1]
        if place == sink:
            steps = list(pairwise(path))
            most = min(left[start][stop] for start, stop in steps)
            for start, stop in steps:
                left[start][stop] -= most
                left[stop][start] += most
            path = [source]
        elif not untried[place]:
            path.pop()
            if path:
                untried[path[-1]].pop()
        elif left[place][stop := untried[place][-1]] and distance.get(stop) == distance[place] - 1:
            path.append(stop)
        else:
            untried[place].pop()


# How long values of a graph wait in memory, and how many bytes wait at once.


class Alive:
    """How long the memory of every value is read.

    root: the value that a view shows. made, last: positions of the node that makes a value and of the last one that
    reads it, by root. readers: nodes that read it or a view of it, by root.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self.root: dict[Value, Value] = {}
        self.made: dict[Value, int] = {}
        self.readers: dict[Value, list[Node]] = {}
        for i, node in enumerate(graph.nodes):
            part = isinstance(node.op, TupleGetItem)
            shown = aliased_operands(node) if not part else ()
            root = self.of(node.inputs[shown[0]]) if len(shown) == 1 and node.op.is_view else node
            self.root[node] = root
            if root is node:
                self.made[node] = self.position[cast(Node, node.inputs[0])] if is_part(node) else i
            for value in node.inputs:
                self.readers.setdefault(self.of(value), []).append(node)
        end = len(graph.nodes)
        self.last = {root: max(self.position[node] for node in nodes) for root, nodes in self.readers.items()}
        self.returned = {self.of(value) for value in graph.results}
        self.last.update(dict.fromkeys(self.returned, end))

    def of(self, value: Value) -> Value:
        """Return the value whose memory this one shows."""
        return self.root.get(value, value)

    def nbytes(self, value: Value) -> int:
        """Bytes of the memory that a step takes for a value."""
        if not isinstance(value, Node) or self.of(value) is not value or not isinstance(value.type, TensorType):
            return 0
        return value.type.nbytes

    def peak(self) -> tuple[int, int]:
        """Return the first position at which most bytes are alive, and these bytes."""
        change = [0] * (len(self.graph.nodes) + 2)
        for value, start in self.made.items():
            if value in self.last:
                nbytes = self.nbytes(value)
                change[start] += nbytes
                change[self.last[value] + 1] -= nbytes
        alive = most = place = 0
        for i, more in enumerate(change):
            alive += more
            if alive > most:
                most, place = alive, i
        return place, most


def is_part(node: Node) -> bool:
    """Return whether a node is one result of several of a fused kernel."""
    return isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node)


# Lets a kernel of the gradients make what was to be made again for others, where it reads that of which it is made.
#
# Input:  `%1 = FusedElementwise(%g, %u) {body: ("SiLU(x0)", "Mul(t0, x1)")}`, made again, `%2 = MatMul(%d, %1)`, and
#         behind them `%3 = FusedElementwise(%dh, %g, %u)`, the gradients of %g and %u
# Output: `%3 = FusedElementwise(%dh, %g, %u)` with these lines and one more result, and `%2` behind it
#
# Every shared operand is read once less. Few readers (`MAX_MOVED`) move after the kernel, none over an update of what
# it reads, and no collective does.


MAX_MOVED = 8
"""Nodes that move behind a kernel."""


def join_recomputed(graph: Graph) -> int:
    """Join recomputed values to kernels before or after them; return the bytes saved."""
    joining = _Joining(graph)
    saved = at = 0
    while at < len(graph.nodes):
        node = graph.nodes[at]
        # Several results keep their kernel.
        alone = node.attrs.get("recomputed") and isinstance(node.type, TensorType) and _lines_of_kernel(node)
        found = joining.join(at) if alone else None
        saved += found[0] if found is not None else 0
        at = found[1] if found is not None else at + 1
    return saved


def _lines_of_kernel(node: Node) -> NodeLines | None:
    """Return the lines of an elementwise kernel of the gradients, or None."""
    if node.phase != "backward" or not isinstance(node.op, Op) or node.op.mutates:
        return None
    return kernel_of(node) if isinstance(node.op, FusedElementwise) or by_element(node.op) else None


class _Joining:
    """The nodes of a graph near recomputed ones. users: the current readers of every value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        graph.nodes = list(graph.nodes)  # whoever has the old one may go back to it
        self.updates = Updates(graph)
        self.users: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            self._reads(node)

    def _reads(self, node: Node) -> None:
        for value in dict.fromkeys(node.inputs):
            self.users.setdefault(value, []).append(node)

    def join(self, at: int) -> tuple[int, int] | None:
        """Join the node at this position; return the bytes saved and the position of the node after it, or None if it
        stays."""
        nodes, copy = self.graph.nodes, self.graph.nodes[at]
        begin = max(0, at - FARTHEST)
        places = range(begin, min(len(nodes), at + FARTHEST))
        shared = {place: _shared(copy, nodes[place]) for place in places}
        for place in sorted(places, key=lambda place: (-shared[place], place)):
            if not shared[place]:
                break
            moved = self._moved(at, place)
            joined = None if moved is None else _joined(copy, nodes[place])
            if moved is not None and joined is not None:
                return shared[place], self._rewrite(at, place, moved, joined)
        return None

    def _moved(self, at: int, place: int) -> list[Node] | None:
        """Return the nodes that must move after the kernel at `place`, or None if they or the copy cannot."""
        nodes = self.graph.nodes
        copy, kernel = nodes[at], nodes[place]
        if place < at:
            between = nodes[place : at + 1]
            known = set(between).isdisjoint(copy.inputs)
            return [] if known and not self._change(copy.inputs, between[1:]) else None
        behind: dict[Value, None] = {copy: None}
        for number in range(at + 1, place + 1):
            node = nodes[number]
            if behind.keys().isdisjoint(node.inputs):
                continue
            if node is kernel or node.op.mutates or (isinstance(node.op, Op) and node.op.has_side_effect):
                return None
            if self._change(node.inputs, nodes[number + 1 : place + 1]):
                return None
            behind[node] = None
        if len(behind) > MAX_MOVED + 1 or self._change(copy.inputs, nodes[at + 1 : place + 1]):
            return None
        return [cast(Node, node) for node in behind if node is not copy]

    def _change(self, values: Sequence[Value], nodes: Sequence[Node]) -> bool:
        """Return True if a node updates the memory of one of the values."""
        writing = [node for node in nodes if node.op.mutates]
        shown = {p for value in values for p in self.updates.parameters(value)} if writing else set[Value]()
        return any(not shown.isdisjoint(self.updates.written(node)) for node in writing)

    def _rewrite(self, at: int, place: int, moved: list[Node], joined: NodeLines) -> int:
        """Put both in the kernel's position; return the position of the node that followed the copy."""
        nodes, op = self.graph.nodes, joined.fused()
        copy, kernel = nodes[at], nodes[place]
        type = op.infer(*[value.tensor_type for value in joined.operands])
        labels = dict.fromkeys((*parts_of(kernel), *parts_of(copy)))
        made = gathered(op, joined.operands, type, [copy, kernel], labels)
        made.attrs.pop("recomputed", None)
        assert isinstance(type, TupleType)
        again = successor(made, len(type.elements) - 1, copy)
        parts = [again]
        for node in (copy, kernel):
            for value in dict.fromkeys(node.inputs):
                self.users[value].remove(node)
        self._reads(made)
        if isinstance(kernel.type, TensorType):
            parts.insert(0, successor(made, 0, kernel))
            self._replace(kernel, parts[0])
        else:
            self._replace(kernel, made)  # for the parts that there are
        self._replace(copy, again)
        for part in parts:
            self._reads(part)
        first, last = min(at, place), max(at, place) + 1
        gone = {copy, *moved}
        own = [made, *parts, *moved]
        nodes[first:last] = [
            new for node in nodes[first:last] if node not in gone for new in (own if node is kernel else [node])
        ]
        return at if place > at else at + len(parts)

    def _replace(self, old: Node, new: Node) -> None:
        readers = self.users.pop(old, [])
        for reader in readers:
            reader.inputs = [new if value is old else value for value in reader.inputs]
        if readers:
            self.users.setdefault(new, []).extend(readers)
        if old in self.graph.results:
            self.graph.results = [new if value is old else value for value in self.graph.results]


def _shared(copy: Node, kernel: Node) -> int:
    """Return the bytes that both read, as many elements as the copy has at least."""
    if kernel is copy or not _lines_of_kernel(kernel):
        return 0
    size = copy.tensor_type.size
    both = [v for v in dict.fromkeys(copy.inputs) if v in kernel.inputs and isinstance(v, Node)]
    return sum(value.tensor_type.nbytes for value in both if value.tensor_type.size >= size)


def _joined(copy: Node, kernel: Node) -> NodeLines | None:
    """Return the lines of both, or None if they cannot be one kernel or need more passes."""
    table, returns = LineTable(), list[int]()
    for node in (kernel, copy):
        own = _lines_of_kernel(node)
        assert own is not None
        places = table.add_all(own)
        returns += [places[line][1] for line in own.returns]
    joined = NodeLines(table.lines, tuple(returns))
    if len(joined.lines) > MAX_LINES or len(joined.operands) > MAX_OPERANDS or len(set(returns)) < len(returns):
        return None
    try:
        space = space_of_steps(joined.fused(), [value.tensor_type for value in joined.operands])
    except MspcError:
        return None
    return None if space.columns else joined


PRICE = 3
"""Bytes moved that one byte less at the peak is worth."""
INSTRUCTION = 0.1
"""Bytes that are moved in the time of an instruction of one thread: an H100 moves 3.0e12 a second and has 2.9e13 of
these, 132 multiprocessors of 128 lanes at 1.7 GHz."""
DRAW = 40
"""Instructions of a random number (SplitMix64 for four, and a place): measured, exact GELU and dropout take 92."""
MAX_ROUNDS = 8
"""Cuts of one graph."""


class KeepForGradients(Pass):
    """Recompute values that cost more to store for the gradients."""

    def run(self, graph: Graph) -> bool:
        if all(node.phase == "forward" for node in graph.nodes):
            return False
        changed, alive = False, Alive(graph)
        for _ in range(MAX_ROUNDS):
            lower = _round(graph, alive)
            if lower is None:
                break
            changed, alive = True, lower
        if changed:
            drop_unread_results(graph)
            remove_dead(graph)
            _join(graph)
        return changed


def _join(graph: Graph) -> None:
    """Let kernels with equal operands make recomputed values, if the saved bytes are worth the longer lifetimes."""
    before, nodes, results = Alive(graph).peak()[1], graph.nodes, list(graph.results)
    inputs = {node: list(node.inputs) for node in nodes}
    saved = join_recomputed(graph)
    if PRICE * (Alive(graph).peak()[1] - before) <= saved:
        return
    graph.nodes, graph.results = nodes, results
    for node, old in inputs.items():
        node.inputs = old


def _round(graph: Graph, alive: Alive) -> Alive | None:
    """Take the cut at the peak. Return the lifetimes after it if it is worth its price; else None, and restore the
    graph."""
    peak, most = alive.peak()
    choice = _Choice(graph, alive, peak)
    again, moved = choice.cheapest()
    if not again:
        return None
    nodes, inputs = graph.nodes, {node: node.inputs for node in graph.nodes}
    _make_again(graph, alive, again, peak)
    lower = Alive(graph)
    if PRICE * (most - lower.peak()[1]) >= moved:
        return lower
    graph.nodes = nodes
    for node, old in inputs.items():
        node.inputs = old
    return None


class _Choice:
    """The network of one cut.

    alive: of the step. peak: a position in it. of_parameters: values made of parameters and constants alone, which an
    optimizer may store for the next step. last_gradient: the position of the last node of the gradients. wanted:
    forward values that wait at the peak, only for later gradients, and can be recomputed.
    """

    def __init__(self, graph: Graph, alive: Alive, peak: int) -> None:
        self.alive, self.peak = alive, peak
        self.updates = Updates(graph)
        self.known: dict[Value, tuple[Value, ...] | None] = {}
        self.of_parameters: set[Value] = set()
        for node in graph.nodes:
            fed = [v for v in node.inputs if isinstance(v, Parameter) and v.kind == "input"]
            if not fed and all(not isinstance(v, Node) or v in self.of_parameters for v in node.inputs):
                self.of_parameters.add(node)
        self.last_gradient = max((i for i, n in enumerate(graph.nodes) if n.phase == "backward"), default=0)
        self.wanted = dict.fromkeys(self._wanted())

    def _wanted(self) -> list[Node]:
        found: list[Node] = []
        for value, made in self.alive.made.items():
            node = cast(Node, value)
            if made >= self.peak or self.alive.last.get(value, 0) <= self.peak or value in self.alive.returned:
                continue
            if node.phase != "forward" or not self.alive.nbytes(node) or self.sources(node) is None:
                continue
            readers = [self.alive.position[reader] for reader in self.alive.readers[value]]
            behind = [reader for reader in self.alive.readers[value] if self.alive.position[reader] > self.peak]
            if self.peak not in readers and all(reader.phase != "forward" for reader in behind):
                found.append(node)
        return found

    def cheapest(self) -> tuple[set[Value], int]:
        """Return the values that are made again, and the bytes that this moves."""
        if not self.wanted:
            return set(), 0
        read = reached(self.wanted, lambda value: self.sources(value) or ())
        number = {value: place for place, value in enumerate(read)}
        source, sink = -1, -2  # beside these a value has two places, with an edge from the first to the second
        edges: dict[tuple[int, int], int] = {}
        for value, at in number.items():
            sources = self.sources(value)
            # Of equal costs that of memory is the higher.
            edges[2 * at, 2 * at + 1] = 0 if self.waits(value) else PRICE * self.alive.nbytes(value) + 1
            edges[source, 2 * at] = UNBOUNDED if sources is None else self.moved(value)
            if value in self.wanted:
                edges[2 * at + 1, sink] = UNBOUNDED
            edges.update({(2 * number[other] + 1, 2 * at): UNBOUNDED for other in sources or ()})
        far = nearest_cut(edges, source, sink)
        again = {v for v, at in number.items() if {2 * at, 2 * at + 1} <= far and not self.waits(v)}
        again = self._reached(again)
        return again, sum(map(self.moved, again))

    def _reached(self, again: set[Value]) -> set[Value]:
        return again & {*reached(self.wanted, lambda value: (value in again and self.sources(value)) or ())}

    def waits(self, value: Value) -> bool:
        """Return whether a value is alive at the peak whatever is chosen, or takes no memory of the step."""
        if not isinstance(value, Node) or value in self.alive.returned or value in self.of_parameters:
            return True
        return value not in self.wanted and self.alive.made[value] <= self.peak <= self.alive.last.get(value, -1)

    def moved(self, value: Value) -> int:
        """Return the bytes moved to recompute a value: its operands, and itself if its first copy is read before the
        peak.

        Or those that could be moved in the time of its instructions.
        """
        read = sum(source.tensor_type.nbytes for source in self.sources(value) or ())
        readers = self.alive.readers.get(value, ())
        written = any(self.alive.position[reader] < self.peak for reader in readers)
        return max(read + written * value.tensor_type.nbytes, round(INSTRUCTION * self.instructions(value)))

    def instructions(self, value: Value) -> float:
        """Return about how many instructions make a value again."""
        maker = _maker(cast(Node, value))
        if not isinstance(maker.op, FusedElementwise):
            return instructions(cast(Op, maker.op)) * value.tensor_type.size if by_element(maker.op) else 0.0
        lines = lines_for(maker, [cast(Node, value)])
        cost = cost_of_fused(lines.fused(), tuple(each.tensor_type for each in lines.operands))
        return cost.operations + DRAW * cost.draws

    def sources(self, value: Value) -> tuple[Value, ...] | None:
        """Return the values, views seen through, that a value is recomputed from, or None if it cannot be."""
        if value not in self.known:
            self.known[value] = self._sources(value)
        return self.known[value]

    def _sources(self, value: Value) -> tuple[Value, ...] | None:
        if not isinstance(value, Node) or value.phase != "forward" or value in self.of_parameters:
            return None
        maker = _maker(value)
        if not _repeats(maker, value) or not all(isinstance(v.type, TensorType) for v in maker.inputs):
            return None
        fused = isinstance(maker.op, FusedElementwise)
        inputs = list(lines_for(maker, [value]).operands if fused else maker.inputs)
        if self.updates.between(inputs, self.alive.made[value], self.last_gradient):
            return None
        return tuple(dict.fromkeys(map(self.alive.of, inputs)))


def _maker(value: Node) -> Node:
    """Return the node that computes a value, which may be one of several results."""
    return cast(Node, value.inputs[0]) if is_part(value) else value


def _repeats(maker: Node, value: Node) -> bool:
    """Return True if one pass over memory recomputes a value."""
    op = maker.op
    if not isinstance(op, FusedElementwise):
        return maker is value and not op.mutates and (by_element(op) or along_rows(op) or isinstance(op, Concat))
    return not any(closes(op) for op, _ in lines_for(maker, [value]).lines)


def lines_for(maker: Node, values: Sequence[Node]) -> NodeLines:
    """Return the lines of a fused kernel that these results need."""
    kernel = kernel_of(maker)
    assert kernel is not None
    return kernel.part([kernel.returns[v.op.index if isinstance(v.op, TupleGetItem) else 0] for v in values])


def _make_again(graph: Graph, alive: Alive, again: set[Value], peak: int) -> None:
    """Let gradients after the peak read copies of these values, each made right before its first reader."""
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}

    @iterative
    def copy(value: Value) -> Generator[Any, Value, Value]:
        if alive.of(value) not in again:
            return value
        if value not in copies:
            node = cast(Node, value)
            maker = _maker(node)
            op, inputs = maker.op, tuple(maker.inputs)
            if isinstance(op, FusedElementwise):
                lines = lines_for(maker, [node])
                op, inputs = lines.fused(), lines.operands
            operands: list[Value] = []
            for source in inputs:
                operands.append((yield (source,)))
            made = Node(op, operands, node.type, node.name, node.instance, node.scope, node.frames, "backward")
            if "fused" in maker.attrs:
                made.attrs["fused"] = parts_of(maker)
            made.attrs["recomputed"] = True
            nodes.append(made)
            copies[value] = made
        return copies[value]

    for number, node in enumerate(graph.nodes):
        if number > peak and node.phase != "forward":
            node.inputs = [copy(value) for value in node.inputs]
        nodes.append(node)
    graph.nodes = nodes


def drop_unread_results(graph: Graph) -> None:
    """Stop fused kernels from storing results that nothing reads."""
    users, returned = graph.users(), set(graph.results)
    replaced: dict[Value, Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, FusedElementwise) or len(node.op.returns) < 2 or node in returned:
            continue
        parts = [user for user, _ in users.get(node, ())]
        if not all(isinstance(part.op, TupleGetItem) for part in parts):
            continue
        live = [part for part in parts if part in users or part in returned]
        if not live or len({cast(TupleGetItem, part.op).index for part in live}) == len(node.op.returns):
            continue
        chosen = {cast(TupleGetItem, part.op).index: part for part in live}
        values = list(chosen.values())
        place = {index: i for i, index in enumerate(chosen)}
        lines = lines_for(node, values)
        node.op, node.inputs = lines.fused(), list(lines.operands)
        node.type = values[0].type if len(values) == 1 else TupleType(tuple(v.tensor_type for v in values))
        for part in live:
            part.op = TupleGetItem(place[cast(TupleGetItem, part.op).index])
        if len(values) == 1:
            node.name = values[0].name
            for part in live:
                replaced[part] = node
    graph.replace(replaced)
