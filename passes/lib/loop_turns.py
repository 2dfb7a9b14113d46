"""How often the operators of loops run in a step."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import StackType
from mspc.ops.control.regions import For, Loop, MakeStack, RegionOp, Scan
from mspc.ops.control.structural import Back, Enter, Joined, Keep, MakeTuple, RegionBoundary, StandIn, TupleGetItem

UNKNOWN_TURNS = 10
"""How many turns a loop counts for that nobody has counted yet."""


class LoopTurns:
    """The iterations of one opened graph. backs: nodes that carry a value to the next iteration, or bring a branch's
    result to that of the other branch, with the Enter or the Leave that has the layout. kept: values that loops of the
    forward graph store in every iteration for gradients alone."""

    def __init__(self, graph: Graph) -> None:
        self.backs: list[tuple[Node, Node]] = []
        self.kept: set[Node] = set()
        self._runs: dict[Node, int] = {}
        self._made: dict[Value, int] = {}
        entries: dict[Value, int] = {}
        turns = {node.op.owner: turns_of(node.op.op) for node in graph.nodes if isinstance(node.op, RegionBoundary)}
        if not turns:
            return
        self.kept = _kept_for_gradients(graph)
        times = [1]
        for node in graph.nodes:
            op = node.op
            if isinstance(op, RegionBoundary):
                if op.region:
                    times.pop()
                if not op.is_end:
                    times.append(times[-1] * turns[op.owner])
            self._runs[node] = times[-1]
            if isinstance(node.type, StackType):
                entries[node] = _entries(node, entries, turns)
                self._made[node] = (times[-2] if isinstance(op, Keep) else times[-1]) * entries[node]
            elif isinstance(op, Enter):
                self._made[node] = times[-1] * turns[op.owner]
            elif isinstance(op, Keep):
                self._made[node] = times[-2]
            if isinstance(op, StandIn) and isinstance(node.inputs[0], Node):
                self._made[node.inputs[1]] = times[-1] * len(node.inputs[0].inputs)
            elif isinstance(op, Back) and isinstance(node.inputs[0], Node):
                self.backs.append((node, node.inputs[0]))

    def runs(self, node: Node) -> int:
        """Return how often a step runs a node."""
        return self._runs.get(node, 1)

    def made(self, value: Value) -> int:
        """Return how often a step makes a value, every entry of a stack by itself, or reads another one in its
        place."""
        return self._made.get(value) or (self.runs(value) if isinstance(value, Node) else 1)


def _kept_for_gradients(graph: Graph) -> set[Node]:
    users, results = graph.users(), set(graph.results)

    def is_read(node: Node, index: int) -> bool:
        """Return whether the forward graph, or the caller, reads a result of a loop."""
        shown = [user for user, _ in users.get(node, ())]
        if node in results or not all(isinstance(user.op, TupleGetItem) for user in shown):
            return True
        own = [user for user in shown if isinstance(user.op, TupleGetItem) and user.op.index == index]
        return any(each in results or any(user.phase == "forward" for user, _ in users.get(each, ())) for each in own)

    found: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, Joined) and node.phase == "forward":
            for index, value in enumerate(node.inputs):
                if isinstance(value, Node) and isinstance(value.op, Keep) and not is_read(node, index):
                    found.add(value)
    return found


def _entries(node: Node, known: Mapping[Value, int], turns: Mapping[Node, int]) -> int:
    """Return the entries of the stack that a node makes or passes on."""
    op = node.op
    if isinstance(op, MakeStack):
        return len(node.inputs)
    if isinstance(op, Keep):
        return turns[op.owner]
    value = node.inputs[0] if node.inputs else None
    if isinstance(op, TupleGetItem) and isinstance(value, Node) and isinstance(value.op, MakeTuple):
        value = value.inputs[op.index]
    return 1 if value is None else known.get(value, 1)


def turns_of(op: RegionOp) -> int:
    """Return the turns of a loop, `UNKNOWN_TURNS` if nobody has counted them; 1 of any other operator."""
    if not isinstance(op, Loop):
        return 1
    return max(1, op.turns) if isinstance(op, For | Scan) and op.turns >= 0 else UNKNOWN_TURNS
