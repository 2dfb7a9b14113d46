"""Bounds of the integers of a graph, derived from its operators.

Bounds are those of exact arithmetic; if they may exceed the element type, nothing is known. Values carried by a loop
are bounded by induction: an iteration that begins within the bounds ends within them. The condition of a `While` holds
when an iteration begins, so that `i < 256` bounds `i` there from above (Cousot and Cousot, "Abstract interpretation",
1977, with a widening of one step).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, Worklist
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.regions import For, Loop, While, body_of
from mspc.ops.math.arithmetic import Add, Greater, GreaterEqual, Less, LessEqual, LogicalAnd, Maximum, Minimum, Mul, Sub
from mspc.ops.op import Op
from mspc.ops.tensor.creation import Fill, Ones, Range, Zeros
from mspc.ops.tensor.reshape import Cast

BOUNDS = "bounds"
"""Attribute of a graph's parameter: its least and its largest number."""


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """Range from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf

    def within(self, other: IntegerRange) -> bool:
        """Return whether this range is a part of the other."""
        return other.low <= self.low and self.high <= other.high


def note_bounds(graph: Graph) -> None:
    """Set the attribute `bounds` of parameters of loop graphs whose bounds are known."""
    for node in graph.nodes:
        if isinstance(node.op, Loop):
            _note_loop(node, node.op)
        for region in node.regions:
            note_bounds(region)


def _note_loop(node: Node, op: Loop) -> None:
    body = body_of(node)
    if isinstance(op, For) and op.turns > 0:
        body.parameters[0].attrs[BOUNDS] = (0, op.turns - 1)
    for operand in range(op.scanned_operands.stop, len(node.inputs)):
        found = bounds_of(node.inputs[operand])
        for region_number, region in enumerate(node.regions):
            inside = op.inside(region_number, operand)
            if found is not None and inside is not None and operand not in op.mutates:
                _write(region.parameters[inside], found)
    for number, operand in enumerate(op.carried_operands):
        begin = bounds_of(node.inputs[operand])
        parameter = body.parameters[op.leading + number]
        if begin is None or begin.low == -math.inf:
            continue
        above = _held(node.regions[0], number) if isinstance(op, While) else math.inf
        assumed = IntegerRange(begin.low, above)
        _write(parameter, assumed)
        end = bounds_of(body.results[number])
        if end is None or end.low < begin.low:
            parameter.attrs.pop(BOUNDS, None)
        elif isinstance(op, While):
            _write(node.regions[0].parameters[number], IntegerRange(begin.low))


def _write(parameter: Parameter, bounds: IntegerRange) -> None:
    limits = _limits(parameter.tensor_type.dtype.numpy)
    parameter.attrs[BOUNDS] = (int(max(bounds.low, limits.low)), int(min(bounds.high, limits.high)))


def _held(condition: Graph, number: int) -> float:
    """Return the most that a carried number can be while the condition holds; infinity if unknown."""
    most = math.inf
    for value in _all_of(condition.results[0]):
        if not isinstance(value, Node) or not isinstance(value.op, Less | LessEqual | Greater | GreaterEqual):
            continue
        left, right = value.inputs if isinstance(value.op, Less | LessEqual) else reversed(value.inputs)
        limit = bounds_of(right)
        if _shown(left) is condition.parameters[number] and limit is not None:
            most = min(most, limit.high - isinstance(value.op, Less | Greater))
    return most


def _all_of(value: Value) -> list[Value]:
    """Return the Bool values that must all hold for `value` to hold."""
    found: list[Value] = []
    waiting = Worklist([value])
    for each in waiting:
        if isinstance(each, Node) and isinstance(each.op, LogicalAnd):
            waiting.add(each.inputs)
        elif isinstance(each, Node) and each.op.is_view and each.inputs:
            waiting.add(each.inputs[:1])
        else:
            found.append(each)
    return found


def _shown(value: Value) -> Value:
    while isinstance(value, Node) and value.inputs and (value.op.is_view or _widens(value)):
        if not isinstance(value.inputs[0].type, TensorType):
            break
        value = value.inputs[0]
    return value


def _widens(node: Node) -> bool:
    """Return whether a node converts integers to a type that includes all of them."""
    before, after = node.inputs[0].tensor_type.dtype if node.inputs else None, node.type
    if not isinstance(node.op, Cast) or before is None or not isinstance(after, TensorType):
        return False
    return before.is_integer and after.dtype.is_integer and _limits(before.numpy).within(_limits(after.dtype.numpy))


def _limits(dtype: np.dtype) -> IntegerRange:
    found = np.iinfo(dtype)
    return IntegerRange(int(found.min), int(found.max))


@iterative
def bounds_of(value: Value) -> Generator[Any, IntegerRange | None, IntegerRange | None]:
    """Return the bounds of a tensor of integers, or None for other values and if nothing is known."""
    type = value.type
    if not isinstance(type, TensorType) or not type.dtype.is_integer:
        return None
    if isinstance(value, Constant):
        return IntegerRange(int(np.min(value.value)), int(np.max(value.value))) if type.size else None
    if isinstance(value, Parameter):
        noted = value.attrs.get(BOUNDS)
        return None if noted is None else IntegerRange(*noted)
    assert isinstance(value, Node)
    given: list[IntegerRange | None] = []
    for operand in value.inputs:
        given.append((yield (operand,)))
    found = _of_node(value, given)
    return found if found is not None and found.within(_limits(type.dtype.numpy)) else None


def _of_node(node: Node, given: Sequence[IntegerRange | None]) -> IntegerRange | None:
    op = node.op
    if isinstance(op, Fill | Ones | Zeros):
        uniform = op.uniform()
        return None if uniform is None else IntegerRange(int(uniform), int(uniform))
    if isinstance(op, Range):
        ends = int(op.start), int(op.start) + (op.length() - 1) * int(op.delta)
        return IntegerRange(min(ends), max(ends))
    known = [each for each in given if each is not None]
    if not isinstance(op, Op) or len(known) != len(given) or not known:
        return None
    if op.is_view or op.moves or isinstance(op, Cast):
        return IntegerRange(min(each.low for each in known), max(each.high for each in known))
    if len(known) != 2:
        return None
    x, y = known
    if isinstance(op, Add):
        return IntegerRange(x.low + y.low, x.high + y.high)
    if isinstance(op, Sub):
        return IntegerRange(x.low - y.high, x.high - y.low)
    if isinstance(op, Mul) and min(x.low, y.low) >= 0:
        return IntegerRange(x.low * y.low, x.high * y.high)
    if isinstance(op, Minimum | Maximum):
        best = min if isinstance(op, Minimum) else max
        return IntegerRange(best(x.low, y.low), best(x.high, y.high))
    return None


# Finds the range of integers that an input of a graph may have: indices into a table, classes, segments. Operators
# declare the number of entries (`Op.index_limits`), and the analysis follows the input to them through the operators
# between.


def index_limits(graph: Graph, computed: bool = False) -> dict[Parameter, int]:
    """Return, for inputs of indices, the number of entries; the least if several operators read them.

    The integers are in [0, limit) if only operators that move elements are between. With `computed`, inputs from which
    the indices are computed are found too.
    """
    found: dict[Parameter, int] = {}
    for parameter, limit, _ in _limits_of_inputs(graph, _inputs(graph), computed):
        found[parameter] = min(limit, found.get(parameter, limit))
    return found


def refused_indices(graph: Graph) -> dict[Parameter, tuple[int, Node]]:
    """Return, for inputs of indices, the number of entries and the operator for which other indices are an error, of
    several operators that with the fewest entries."""
    found: dict[Parameter, tuple[int, Node]] = {}
    for parameter, limit, node in _limits_of_inputs(graph, _inputs(graph), False, refused=True):
        if parameter not in found or limit < found[parameter][0]:
            found[parameter] = limit, node
    return found


def _inputs(graph: Graph) -> dict[Value, frozenset[Parameter]]:
    return {p: frozenset((p,)) for p in graph.parameters if p.kind == "input"}


def _limits_of_inputs(
    graph: Graph, held: dict[Value, frozenset[Parameter]], computed: bool, refused: bool = False
) -> Iterator[tuple[Parameter, int, Node]]:  # fmt: skip
    """Yield (input, limit, reader) in a graph, and in the graphs that its nodes run. held: for parameters of the graph
    the inputs that they derive from. refused: only limits beyond which indices are an error."""
    for node in graph.nodes:
        if computed or _only_moves(node):
            held[node] = frozenset(p for value in node.inputs for p in held.get(value, ()))
        for number, region in enumerate(node.regions):
            places = node.op.places(number, [v.type for v in node.inputs])  # type: ignore[attr-defined]  # runs graphs
            for value, inside in zip(node.inputs, places, strict=True):
                for place in inside if value in held else ():
                    held[region.parameters[place]] = held[value]
            yield from _limits_of_inputs(region, held, computed, refused)
        types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
        if len(types) < len(node.inputs):
            continue
        limits = node.op.refused_indices(*types) if refused else node.op.index_limits(*types)
        for index, limit in limits.items():
            yield from ((parameter, limit, node) for parameter in held.get(node.inputs[index], ()))


def distributions(graph: Graph) -> set[Parameter]:
    """Return the inputs whose rows sum to 1, as declared by an operator that reads them (`Op.distributions`)."""
    shown: dict[Value, Parameter] = {p: p for p in graph.parameters if p.kind == "input"}
    found: set[Parameter] = set()
    for node in graph.nodes:
        read = [node.inputs[index] for index in node.op.distributions]
        found.update(shown[value] for value in read if value in shown)
        source = node.inputs[0] if node.inputs else None
        if source in shown and _only_moves(node) and getattr(node.type, "shape", None) == source.shape:
            shown[node] = shown[source]
    return found


def _only_moves(node: Node) -> bool:
    return node.op.is_view or node.op.may_alias or node.op.follows_neighbours
