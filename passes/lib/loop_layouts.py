"""Layouts in which loops carry values, and how often loops repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import StackType
from mspc.ops.control.regions import For, Loop, MakeStack, RegionOp, Scan
from mspc.ops.control.structural import (
    Back,
    Enter,
    Joined,
    Keep,
    MakeTuple,
    RegionBoundary,
    StandIn,
    TupleGetItem,
    is_constraint,
)
from mspc.ops.op import Op
from mspc.passes.lib.layout_search import restore, state_of
from mspc.passes.lib.opened_graphs import is_zero
from mspc.passes.lib.placement import Traffic, result_layouts, sent_inside

# A carried value has one layout in all iterations. At first that is the one in which it enters the loop; if an
# iteration leaves it in another layout, that one is tried, and kept if ranks send fewer bytes over all iterations. Sums
# that begin at zero, as gradients of values that every iteration reads, may be carried as partial sums: ranks then add
# them up once, after the loop.


LEFT = "what a turn leaves"
"""The source of the layout of a carried value."""
CLEARLY = 0.999
"""Most bytes of a choice, as a share of those of the one that it replaces."""
TRIES = 4
"""How often the layouts of a graph's loops are changed at most."""


def settle_loops(graph: Graph, decide: Callable[[], None]) -> None:
    """Decide on all layouts, and again while loops can carry values in cheaper layouts.

    Values with a given layout stay in it. If loops of the forward graph have changed, everything else is decided once
    more, so that it follows from the forward graph alone, as under a plan that gives its layouts. decide: gives all
    nodes and parameters layouts that have none.
    """
    values: list[Value] = [*graph.nodes, *graph.parameters]
    begin = [state_of(value) for value in values]
    is_other = _settle(graph, decide, values)
    if is_other and any(node.phase != "forward" for node in graph.nodes if isinstance(node.op, Back)):
        sums = _sums_of_gradients(graph)
        decided = [v for v in values if isinstance(v, Node) and v.phase == "forward" and v not in sums]
        found = [state_of(value) for value in decided]
        restore(values, begin)
        restore(decided, found)
        _settle(graph, decide, values)


def _sums_of_gradients(graph: Graph) -> set[Node]:
    """Return the values that loops of the forward graph, such as that over micro-batches, carry for gradients alone,
    with the zeros that they begin at: their layouts follow from those of the gradients."""
    found: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, Back):
            enter, left = node.inputs
            if isinstance(enter, Node) and isinstance(left, Node) and left.phase != "forward":
                found |= {enter, node, *(value for value in enter.inputs if isinstance(value, Node) and is_zero(value))}
    return found


def _settle(graph: Graph, decide: Callable[[], None], values: list[Value]) -> bool:
    """Decide on all layouts, as `settle_loops`, and return whether any changed."""
    begin = [state_of(value) for value in values]
    given = {node for node in graph.nodes if isinstance(node.op, Enter) and node.layout is not None}
    decide()
    if not any(isinstance(node.op, Back) for node in graph.nodes) or any(map(is_constraint, graph.nodes)):
        return False
    best, found = step_bytes(graph), [state_of(value) for value in values]
    is_other = False

    def tried(wanted: dict[Node, Layout]) -> set[Node]:
        """Decide with these layouts, and return the values that cannot be carried in them."""
        fixed = dict(zip(values, begin, strict=True)) | {v: (v.op, (layout,), layout) for v, layout in wanted.items()}
        restore(values, [fixed[value] for value in values])
        for enter, layout in wanted.items():
            enter.attrs["strategy_from"] = LEFT
            zeros = enter.inputs[0]
            if is_zero(zeros):
                zeros.layout = layout
                if isinstance(zeros, Node):
                    zeros.in_layouts = tuple(Layout.replicated(layout.ranks, len(each.shape)) for each in zeros.inputs)
        decide()
        return _impossible_values(graph)

    stored = _as_stored(graph, given)
    for turn in range(TRIES):
        wanted = (stored if turn == 0 else {}) or dict(_better_layouts(graph, given))
        if not wanted:
            break
        before = {enter: enter.layout for enter in wanted if isinstance(enter.layout, Layout)}
        no = tried(wanted)
        if no and turn == 0:
            no = tried(wanted | {enter: layout for enter, layout in before.items() if enter in no})
        now = math.inf if no else step_bytes(graph)
        if now < CLEARLY * best:
            best, found, is_other = now, [state_of(value) for value in values], True
            continue
        restore(values, found)
        if turn or not stored:
            break
    restore(values, found)
    return is_other


def _impossible_values(graph: Graph) -> set[Node]:
    """Return the values carried as a part of a sum though an iteration leaves, or adds, a complete value."""
    found: set[Node] = set()
    for node in graph.nodes:
        if not isinstance(node.op, Back):
            continue
        enter, left = node.inputs
        layout = enter.layout
        if not isinstance(enter, Node) or not isinstance(layout, Layout) or not layout.partial:
            continue
        added = left.inputs if isinstance(left, Node) and enter in left.inputs else ()
        if any(_is_complete(value, layout) for value in (left, *added)):
            found.add(enter)
    return found


def _is_complete(value: Value, layout: Layout) -> bool:
    own = value.layout
    return not isinstance(own, Layout) or (own.partial, own.mesh) != (layout.partial, layout.mesh)


def _as_stored(graph: Graph, given: set[Node]) -> dict[Node, Layout]:
    """Return layouts of all carried values, of sums that begin at zero, and of values that updates of parameters read
    after the loop: those of the parameters, added up after the loop over ranks that store the same. {} if all have
    them."""
    stored = _layouts_of_updates(graph)
    found: dict[Node, Layout] = {}
    for node in graph.nodes:
        op = node.op
        if isinstance(op, Enter) and not op.scanned and node not in given and isinstance(node.layout, Layout):
            layout = stored.get((op.owner, op.number)) if is_zero(node.inputs[0]) else None
            found[node] = node.layout if layout is None else Layout.of(layout.mesh, layout.dims, layout.unused)
    return found if any(layout != node.layout for node, layout in found.items()) else {}


def _layouts_of_updates(graph: Graph) -> dict[tuple[Node, int], Layout]:
    """Return by loop and number of a result the layout of the parameter that it updates element by element."""
    found: dict[tuple[Node, int], Layout] = {}
    wanted: dict[Value, Layout] = {}
    for node in reversed(graph.nodes):
        op = node.op
        if isinstance(op, Op) and op.mutates and node.phase == "update":
            stored = node.inputs[op.mutates[0]]
            layout = stored.layout
            if isinstance(layout, Layout):
                wanted.update((v, layout) for v in node.inputs if v.type == stored.type)
        elif node in wanted:
            layout = wanted[node]
            if isinstance(op, TupleGetItem) and isinstance(node.inputs[0], Node):
                joined = node.inputs[0]
                owner = joined.op.owner if isinstance(joined.op, Joined) else joined
                found[owner, op.index] = layout
            else:
                wanted.update((v, layout) for v in node.inputs if isinstance(v, Node) and v.type == node.type)
    return found


def _better_layouts(graph: Graph, given: set[Node]) -> Iterator[tuple[Node, Layout]]:
    """Return the carried values that an iteration leaves in another layout, with that layout; values carried as they
    enter stay so, and so do those in `given`."""
    changed = False
    found: list[tuple[Node, Layout]] = []
    for node in graph.nodes:
        if not isinstance(node.op, Back):
            continue
        enter, left = node.inputs
        if not isinstance(enter, Node) or not isinstance(enter.op, Enter) or not isinstance(enter.layout, Layout):
            continue
        if enter in given:
            continue
        layout = _final_layout(enter, left)
        if layout is None:
            layout = enter.layout
        changed |= layout != enter.layout
        found.append((enter, layout))
    return iter(found if changed else ())


def _final_layout(enter: Node, left: Value) -> Layout | None:
    """Return the layout in which an iteration leaves a value that entered in this one."""
    zeros = is_zero(enter.inputs[0])
    if zeros and isinstance(left, Node) and isinstance(left.op, Op) and left.op.additive and enter in left.inputs:
        others = [v.layout for v in left.inputs if v is not enter and isinstance(v.layout, Layout)]
        return others[0] if others else None
    if not isinstance(left.layout, Layout):
        return None
    return left.layout if zeros else left.layout.without_partial()


def step_bytes(graph: Graph) -> float:
    """Bytes that a rank sends, with those of loops as often as these turn."""
    traffic, turns = Traffic(graph), LoopTurns(graph)
    traffic.required = result_layouts(graph)
    total = sum(turns.made(parameter) * traffic.of_value(parameter) for parameter in graph.parameters)
    for node in graph.nodes:
        inside = traffic.of_sum(node) + sent_inside([node])
        total += turns.made(node) * traffic.of_value(node) + turns.runs(node) * inside
    return total


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
        found = self._made.get(value)
        if found is None:
            found = self._runs.get(value, 1) if isinstance(value, Node) else 1
        return found


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
