"""Finds the layouts in which loops carry values, for graphs whose regions are open.

What is carried has one layout at every turn. At first that is the one in which it enters the loop; where a turn leaves
it otherwise, that other layout is tried, and kept where ranks send fewer bytes over all turns. Sums that begin at zero,
as gradients of what every turn reads, may be carried as partial sums: ranks then add them up once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ops.control.borders import Back, Enter
from mspc.ops.control.constraint import is_constraint
from mspc.ops.op import Op
from mspc.passes.sharding.layout_plans import State, restore, state_of
from mspc.passes.sharding.loop_turns import LoopTurns
from mspc.passes.sharding.placement import result_layouts
from mspc.passes.sharding.traffic import Traffic, sent_inside

TRIES = 4
"""How often the layouts of a graph's loops are changed at most."""


def settle_loops(graph: Graph, decide: Callable[[], None]) -> None:
    """Decide on all layouts, again while that lets loops carry values in layouts that cost less.

    What is carried in a layout that was given stays so. Where loops of the forward graph have changed, all else is
    decided on once more, so that it follows from the forward graph alone, as under a plan that gives its layouts.
    decide: gives all nodes and parameters layouts that have none.
    """
    values: list[Value] = [*graph.nodes, *graph.parameters]
    begin = [state_of(value) for value in values]
    if _settle(graph, decide, values) and any(_is_back(node) and node.phase != "forward" for node in graph.nodes):
        decided = [value for value in values if isinstance(value, Node) and value.phase == "forward"]
        found = [state_of(value) for value in decided]
        restore(values, begin)
        restore(decided, found)
        _settle(graph, decide, values)


def _settle(graph: Graph, decide: Callable[[], None], values: list[Value]) -> bool:
    """Decide on all layouts, as `settle_loops`; whether others than the first are taken."""
    begin = [state_of(value) for value in values]
    given = {node for node in graph.nodes if isinstance(node.op, Enter) and node.layout is not None}
    decide()
    if not any(map(_is_back, graph.nodes)) or any(map(is_constraint, graph.nodes)):
        return False
    best, found = step_bytes(graph), [state_of(value) for value in values]
    is_other = False
    for _ in range(TRIES):
        wanted = dict(_better(graph, given))
        if not wanted:
            break
        fixed = dict(zip(values, begin, strict=True)) | {v: ((layout,), layout) for v, layout in wanted.items()}
        _try(values, [fixed[value] for value in values], wanted, decide)
        now = step_bytes(graph)
        if now >= best:
            break
        best, found, is_other = now, [state_of(value) for value in values], True
    restore(values, found)
    return is_other


def _is_back(node: Node) -> bool:
    return isinstance(node.op, Back)


def _try(values: list[Value], states: list[State], wanted: dict[Node, Layout], decide: Callable[[], None]) -> None:
    restore(values, states)
    for enter, layout in wanted.items():
        enter.attrs["strategy_from"] = "what a turn leaves"
        value = enter.inputs[0]
        if layout.partial and isinstance(value, Node):
            value.layout = layout  # zeros are partial sums of zeros
            value.in_layouts = tuple(_whole(operand, layout.ranks) for operand in value.inputs)
    decide()


def _better(graph: Graph, given: set[Node]) -> Iterator[tuple[Node, Layout]]:
    """What is carried, and the layout in which a turn leaves it, where that is another; all that is carried as it
    enters stays so, and so does what was `given`."""
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


def step_bytes(graph: Graph) -> float:
    """Bytes that a rank sends, with those of loops as often as these turn."""
    traffic, turns = Traffic(graph), LoopTurns(graph)
    traffic.required = result_layouts(graph)
    total = sum(turns.made(parameter) * traffic.of_value(parameter) for parameter in graph.parameters)
    for node in graph.nodes:
        inside = traffic.of_sum(node) + sent_inside([node])
        total += turns.made(node) * traffic.of_value(node) + turns.runs(node) * inside
    return total
