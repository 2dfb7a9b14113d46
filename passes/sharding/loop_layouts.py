"""Finds the layouts in which loops carry values, for graphs whose regions are open.

What is carried has one layout at every turn. At first that is the one in which it enters the loop; where a turn leaves
it otherwise, that other layout is tried, and kept where ranks send fewer bytes over all turns. Sums that begin at zero,
as gradients of what every turn reads, may be carried as partial sums: ranks then add them up once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ops.control.borders import Back, Border, Enter
from mspc.ops.control.constraint import is_constraint
from mspc.ops.control.loops import For, Loop, Scan
from mspc.ops.op import Op
from mspc.passes.sharding.layout_plans import State, restore, state_of
from mspc.passes.sharding.traffic import Traffic, sent_inside

UNKNOWN_TURNS = 10
"""How many turns a loop counts for that nobody has counted yet."""
TRIES = 4
"""How often the layouts of a graph's loops are changed at most."""


def settle_loops(graph: Graph, decide: Callable[[], None]) -> None:
    """Decide on all layouts, again while that lets loops carry values in layouts that cost less.

    decide: gives all nodes and parameters layouts that have none.
    """
    values: list[Value] = [*graph.nodes, *graph.parameters]
    begin = [state_of(value) for value in values]
    decide()
    if not any(isinstance(node.op, Back) for node in graph.nodes) or any(map(is_constraint, graph.nodes)):
        return
    best, found = _bytes(graph), [state_of(value) for value in values]
    for _ in range(TRIES):
        wanted = dict(_better(graph))
        if not wanted:
            break
        fixed = dict(zip(values, begin, strict=True)) | {v: ((layout,), layout) for v, layout in wanted.items()}
        _try(values, [fixed[value] for value in values], wanted, decide)
        now = _bytes(graph)
        if now >= best:
            break
        best, found = now, [state_of(value) for value in values]
    restore(values, found)


def _try(values: list[Value], states: list[State], wanted: dict[Node, Layout], decide: Callable[[], None]) -> None:
    restore(values, states)
    for enter, layout in wanted.items():
        enter.attrs["strategy_from"] = "what a turn leaves"
        value = enter.inputs[0]
        if layout.partial and isinstance(value, Node):
            value.layout = layout  # zeros are partial sums of zeros
            value.in_layouts = tuple(_whole(operand, layout.ranks) for operand in value.inputs)
    decide()


def _better(graph: Graph) -> Iterator[tuple[Node, Layout]]:
    """What is carried, and the layout in which a turn leaves it, where that is another; all that is carried as it
    enters stays so."""
    changed = False
    found: list[tuple[Node, Layout]] = []
    for node in graph.nodes:
        if not isinstance(node.op, Back):
            continue
        enter, left = node.inputs
        if not isinstance(enter, Node) or not isinstance(enter.op, Enter) or not isinstance(enter.layout, Layout):
            continue
        layout = _left(enter, left)
        if layout is None:
            layout = enter.layout
        changed |= layout != enter.layout
        found.append((enter, layout))
    return iter(found if changed else ())


def _left(enter: Node, left: Value) -> Layout | None:
    """The layout in which a turn leaves what entered it so."""
    zeros = _is_zero(enter.inputs[0])
    if zeros and isinstance(left, Node) and isinstance(left.op, Op) and left.op.additive and enter in left.inputs:
        others = [v.layout for v in left.inputs if v is not enter and isinstance(v.layout, Layout)]
        return others[0] if others else None
    if not isinstance(left.layout, Layout):
        return None
    return left.layout if zeros else left.layout.without_partial()


def _is_zero(value: Value) -> bool:
    """Whether a value is a tensor of zeros that is made where it is needed."""
    if isinstance(value, Constant):
        return False
    if not isinstance(value, Node) or not isinstance(value.op, Op) or not value.inputs:
        return False
    zero = value.inputs[0]
    return value.op.follows_neighbours and isinstance(zero, Constant) and zero.value.size == 1 and not zero.value.any()


def _whole(value: Value, ranks: int) -> Layout:
    return Layout.replicated(ranks, len(value.shape))


def _bytes(graph: Graph) -> float:
    """Bytes that a rank sends, with those of loops as often as these turn."""
    traffic = Traffic(graph)
    turns = {node.op.owner: _turns(node.op) for node in graph.nodes if isinstance(node.op, Border)}
    total, times = 0.0, [1]
    for parameter in graph.parameters:
        total += traffic.of_value(parameter)
    for node in graph.nodes:
        if isinstance(node.op, Border):
            if node.op.region:
                times.pop()
            if not node.op.is_end:
                times.append(times[-1] * turns[node.op.owner])
        within = times[-1]
        if isinstance(node.op, Enter):
            within *= turns[node.op.owner]
        total += within * (traffic.of_value(node) + traffic.of_sum(node) + sent_inside([node]))
    return total


def _turns(border: Border) -> int:
    op = border.op
    if not isinstance(op, Loop):
        return 1
    return max(1, op.turns) if isinstance(op, For | Scan) and op.turns >= 0 else UNKNOWN_TURNS
