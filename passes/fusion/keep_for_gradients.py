"""Decides by a minimum cut which values wait in memory for the gradients, and which are computed again for them.

Input:  `%1 = Cast(%x, dst_type=Float32)` of halves `%x`, both read by gradients of long after
Output: the gradients' `Cast` of `%x` right before its first reader; nobody holds the conversion for so long

The pass looks at the node at which most bytes are alive. Forward values that only gradients behind it still read either
stay, which costs their bytes once, or are made again by a pass over memory of its own, right before the first of these
readers. The cheapest choice is a minimum cut: its network has an edge of a value's bytes for every value that could
stay, and an edge of the bytes that would be moved for every one that could be made again, or of those that could be
moved in the time of its instructions, where these take longer. A byte at the peak is worth three that are moved
(`PRICE`). What waits in any case costs nothing to read, and so do parameters and what is made of
them alone. What is elementwise, a view, a join of tensors, or computed along rows in one pass (a softmax, a norm) can
be made again; products, convolutions, attention, collectives, reductions and all else never are: their results stay, or
nothing that needs them is made again.

The cut is taken again at the peak that is left, as long as each one lowers the peak by its price; one that does not is
taken back. What kernels compute again without a pass of their own has been decided in `recompute_elementwise`, ahead of
this pass. In the end `join_recomputed` spares passes where kernels of the gradients read the same.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, cast

from mspc.analysis.aliasing import Updates
from mspc.analysis.cost.fused_lines import cost_of_fused, instructions
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import BodyLine, along_rows, by_element
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.alive import Alive, is_part
from mspc.passes.fusion.join_recomputed import join_recomputed
from mspc.passes.fusion.minimum_cut import UNBOUNDED, nearest_cut
from mspc.passes.fusion.rewriter import parts_of

PRICE = 3
"""Bytes moved that one byte less at the peak is worth."""
INSTRUCTION = 0.1
"""Bytes that are moved in the time of an instruction of one thread: an H100 moves 3.0e12 a second and has 2.9e13 of
these, 132 multiprocessors of 128 lanes at 1.7 GHz."""
DRAW = 40
"""Instructions of a random number (SplitMix64 for four, and a place): measured, exact GELU and dropout take 92."""
MOST_ROUNDS = 8
"""Cuts of one graph."""


@dataclass(frozen=True)
class KeepForGradients(Pass):
    """Compute again what costs more to keep for the gradients."""

    def run(self, graph: Graph) -> bool:
        if all(node.phase == "forward" for node in graph.nodes):
            return False
        changed, alive = False, Alive(graph)
        for _ in range(MOST_ROUNDS):
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
    """Let kernels that read the same make what is made again, where the bytes that this saves are worth what they hold
    for longer."""
    before, nodes, results = Alive(graph).peak()[1], graph.nodes, list(graph.results)
    inputs = {node: list(node.inputs) for node in nodes}
    saved = join_recomputed(graph)
    if PRICE * (Alive(graph).peak()[1] - before) <= saved:
        return
    graph.nodes, graph.results = nodes, results
    for node, old in inputs.items():
        node.inputs = old


def _round(graph: Graph, alive: Alive) -> Alive | None:
    """Take the cut at the peak. What is alive then, where it is worth its price; else None, and the graph is as it
    was."""
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

    alive: of the step. peak: a position in it. of_parameters: what is made of parameters and constants alone, which an
    optimizer may keep for the next step. last_gradient: the position of the last node of the gradients. wanted: forward
    values that wait at the peak, only for gradients behind it, and can be made again.
    """

    def __init__(self, graph: Graph, alive: Alive, peak: int) -> None:
        self.alive, self.peak = alive, peak
        self.updates = Updates(graph)
        self.known: dict[Value, tuple[Value, ...] | None] = {}
        self.of_parameters: set[Value] = set()
        for node in graph.nodes:
            if all(v in self.of_parameters if isinstance(v, Node) else _lasts(v) for v in node.inputs):
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
        """The values that are made again, and the bytes that this moves."""
        if not self.wanted:
            return set(), 0
        number: dict[Value, int] = {}
        waiting: list[Value] = list(self.wanted)
        while waiting:
            value = waiting.pop()
            if value not in number:
                number[value] = len(number)
                waiting += self.sources(value) or ()
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
        """Those of the values that gradients read, or others that are made again."""
        found: set[Value] = set()
        waiting: list[Value] = list(self.wanted)
        while waiting:
            value = waiting.pop()
            if value in again and value not in found:
                found.add(value)
                waiting += self.sources(value) or ()
        return found

    def waits(self, value: Value) -> bool:
        """Whether a value is alive at the peak whatever is chosen, or takes no memory of the step."""
        if not isinstance(value, Node) or value in self.alive.returned or value in self.of_parameters:
            return True
        return value not in self.wanted and self.alive.made[value] <= self.peak <= self.alive.last.get(value, -1)

    def moved(self, value: Value) -> int:
        """Bytes that are moved where a value is made again: what it reads, and itself where its first making is read
        ahead of the peak; or those that could be moved in the time of its instructions."""
        read = sum(source.tensor_type.nbytes for source in self.sources(value) or ())
        readers = self.alive.readers.get(value, ())
        written = any(self.alive.position[reader] < self.peak for reader in readers)
        return max(read + written * value.tensor_type.nbytes, round(INSTRUCTION * self.instructions(value)))

    def instructions(self, value: Value) -> float:
        """About how many instructions make a value again."""
        maker = _maker(cast(Node, value))
        if not isinstance(maker.op, FusedElementwise):
            return instructions(cast(Op, maker.op)) * value.tensor_type.size if by_element(maker.op) else 0.0
        op, operands = _slice_of(maker, [cast(Node, value)])
        cost = cost_of_fused(op, tuple(each.tensor_type for each in operands))
        return cost.operations + DRAW * cost.draws

    def sources(self, value: Value) -> tuple[Value, ...] | None:
        """The values, views seen through, that a value is made again of; None where it cannot be."""
        if value not in self.known:
            self.known[value] = self._sources(value)
        return self.known[value]

    def _sources(self, value: Value) -> tuple[Value, ...] | None:
        if not isinstance(value, Node) or value.phase != "forward" or value in self.of_parameters:
            return None
        maker = _maker(value)
        if not _repeats(maker, value) or not all(isinstance(v.type, TensorType) for v in maker.inputs):
            return None
        inputs = _slice_of(maker, [value])[1] if isinstance(maker.op, FusedElementwise) else list(maker.inputs)
        if self.updates.between(inputs, self.alive.made[value], self.last_gradient):
            return None
        return tuple(dict.fromkeys(map(self.alive.of, inputs)))


def _lasts(value: Value) -> bool:
    """Whether an operand that no node makes is the same at every step but for updates."""
    return not isinstance(value, Parameter) or value.kind != "input"


def _maker(value: Node) -> Node:
    """The node that computes a value, which may be one of several results."""
    return cast(Node, value.inputs[0]) if is_part(value) else value


def _repeats(maker: Node, value: Node) -> bool:
    """Whether a pass over memory makes a value again."""
    op = maker.op
    if not isinstance(op, FusedElementwise):
        return maker is value and not op.mutates and (by_element(op) or along_rows(op) or isinstance(op, Concat))
    steps, lines = _lines(maker, [value])
    return not any(step.reduces for i, step in enumerate(steps) if i in lines)


def _lines(maker: Node, values: Sequence[Node]) -> tuple[Sequence[BodyLine], list[int]]:
    """All lines of a fused kernel, and the numbers of those that these results of it are computed from."""
    op = cast(FusedElementwise, maker.op)
    steps, found = steps_of(op), set[int]()
    waiting = [_line_of(op, value) for value in values]
    while waiting:
        line = waiting.pop()
        if line not in found:
            found.add(line)
            waiting += [i for kind, i in steps[line].operands if kind == "t"]
    return steps, sorted(found)


def _line_of(op: FusedElementwise, value: Node) -> int:
    return op.returns[value.op.index if isinstance(value.op, TupleGetItem) else 0]


def _slice_of(maker: Node, values: Sequence[Node]) -> tuple[FusedElementwise, list[Value]]:
    """The operator of those lines of a fused kernel that these results need, and its operands."""
    steps, lines = _lines(maker, values)
    number = {line: i for i, line in enumerate(lines)}
    operands: dict[int, int] = {}
    kept = [
        BodyLine(steps[line].op, tuple(
            ("x", operands.setdefault(i, len(operands))) if kind == "x" else ("t", number[i])
            for kind, i in steps[line].operands
        ))
        for line in lines
    ]  # fmt: skip
    returns = [number[_line_of(cast(FusedElementwise, maker.op), value)] for value in values]
    return FusedElementwise.of(kept, returns), [maker.inputs[i] for i in operands]


def _make_again(graph: Graph, alive: Alive, again: set[Value], peak: int) -> None:
    """Let gradients behind the peak read copies of these values, each made right before the first of them."""
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}

    @iterative
    def copy(value: Value) -> Generator[Any, Value, Value]:
        if alive.of(value) not in again:
            return value
        if value not in copies:
            node = cast(Node, value)
            maker = _maker(node)
            op, inputs = maker.op, list(maker.inputs)
            if isinstance(op, FusedElementwise):
                op, inputs = _slice_of(maker, [node])
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
    """Fused kernels no longer store what nobody reads."""
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
        node.op, node.inputs = _slice_of(node, values)
        node.type = values[0].type if len(values) == 1 else TupleType(tuple(v.tensor_type for v in values))
        for part in live:
            part.op = TupleGetItem(place[cast(TupleGetItem, part.op).index])
        if len(values) == 1:
            node.name = values[0].name
            for part in live:
                replaced[part] = node
    graph.replace(replaced)
