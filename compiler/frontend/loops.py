"""Compiles loops whose turns only the run counts: a `While`, or a `For` where a number says how many there are.

A turn is traced with parameters in the place of what it changes (`carried.py`). A body that may be left carries a Bool
that says whether the loop goes on; where it may be left by `return`, another one that says so, and what is returned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from mspc.compiler.frontend.carried import Carried
from mspc.compiler.frontend.condition import condition_of, negation
from mspc.compiler.frontend.exits import any_flag, finished, unless_left, zeros
from mspc.compiler.frontend.operators import is_number, truth
from mspc.compiler.frontend.program_state import TraceSnapshot, apart, emitting_to
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import LEFT, MISSING, NEVER_ENDS, RETURNED, Exit, Frame, exit_of, simplest
from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, INT64, TensorType
from mspc.ops.control.regions import COUNT, For, Loop, Scan, While, captured_values, emit_regions, outlined
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op

TRIALS = 100
"""Turns that are traced until nothing new is carried."""

GOES_ON = TensorType(BOOL, ())


@dataclass
class Kept:
    """What a `Scan` reads, a row a turn, and what it keeps of every turn.

    rows, entries: the tensors, and what stands for a row of each in a turn. values: what the turn keeps. stacked: that
    of all turns, once the loop is in the graph. micro_batches: see `Scan`.
    """

    rows: Sequence[Value]
    entries: Sequence[Parameter]
    micro_batches: bool = False
    values: list[Value] = field(default_factory=list[Value])
    stacked: list[Value] = field(default_factory=list[Value])


@dataclass(frozen=True)
class LoopPlan:
    """A loop to be compiled.

    loop, place: the statement, and what its mistakes are about. test: evaluates the condition of a `while`, which comes
    ahead of every turn. body: runs a turn, whose number is a tensor in a `for`, and returns how it ends. count: how
    often a `for` turns; None for `while`. behind: runs what follows where the loop is not left. kept: of a `Scan`.
    """

    loop: ast.For | ast.While
    place: ast.expr
    test: Callable[[], Any] | None
    body: Callable[[Value | None], Any]
    count: Value | int | None
    behind: Callable[[], Any] | None
    kept: Kept | None = None


@dataclass
class Hidden:
    """A value that the loop carries for itself: what it is ahead of the loop, in a turn, and behind it."""

    before: Value
    inside: Parameter
    after: Value


@dataclass
class TracedIteration:
    """One turn: the nodes of its condition and of its body, what the condition is, and how the body ends."""

    number: Parameter
    condition: list[Node]
    holds: Any
    body: list[Node]
    end: Exit


def run_loop(tracer: Tracer, frame: Frame, turns: LoopPlan) -> Any:
    """Compile a loop from the state of the program in which it begins. Returns how it ends, None or by `return`.

    Raises:
        MspcError: what it carries changes its type, or it never ends.
    """
    surely = turns.count is None or (isinstance(turns.count, int) and turns.count > 0)
    if turns.test is not None:
        beginning = TraceSnapshot(tracer, frame)
        with apart(tracer):
            surely = not isinstance(_condition(tracer, frame, turns), Value)
        beginning.restore()
    carried = Carried(tracer, frame, turns.loop, turns.place, surely)
    try:
        traced = _settled(tracer, frame, turns, carried)
    except BaseException:
        carried.beginning.state.restore(tracer, frame)
        raise
    return _emit(tracer, frame, turns, carried, traced)


def _settled(tracer: Tracer, frame: Frame, turns: LoopPlan, carried: Carried) -> TracedIteration:
    for _ in range(TRIALS):
        carried.begin()
        number = Parameter("turn", COUNT, "input")
        tracer.weak.add(number)
        with apart(tracer) as condition:
            holds = True if turns.test is None else _condition(tracer, frame, turns)
        with apart(tracer) as body, frame.followed_by(None):
            end = exit_of(turns.body(number))
        tracer.at(frame, turns.place)
        with emitting_to(tracer, body):
            if not carried.compare([*condition, *body]):
                return TracedIteration(number, condition, holds, body, end)
    raise frame.error(turns.place, f"after {TRIALS} attempts a turn still changes more than the loop carries")


def _condition(tracer: Tracer, frame: Frame, turns: LoopPlan) -> Any:
    assert turns.test is not None
    value = turns.test()
    tracer.at(frame, turns.place)
    holds = condition_of(tracer, value)
    return truth(tracer, value, "the condition of 'while'") if holds is None else holds


def _emit(tracer: Tracer, frame: Frame, turns: LoopPlan, carried: Carried, traced: TracedIteration) -> Any:
    """Append the loop, and give names what it leaves."""
    tracer.at(frame, turns.place)
    hidden, value = _hidden(tracer, turns, traced)
    goes_on = hidden.get("goes_on")
    counted = traced.holds is True and not hidden and turns.count is not None
    with emitting_to(tracer, traced.condition):
        parts: list[Any] = [] if traced.holds is True else [traced.holds]
        if turns.count is not None and not counted:
            hidden["turn"] = _counter(tracer, turns, traced)
            count = tracer.value(turns.count)
            parts = [tracer.builder.emit(tracer.op("Less"), hidden["turn"].inside, count)]  # type: ignore[arg-type]  # an operator has types
        parts = [*([goes_on.inside] if goes_on is not None else []), *parts]
        holds: Any = parts[0] if parts else None
        for part in parts[1:]:
            holds = tracer.emit(tracer.op("LogicalAnd"), holds, part)
    if holds is None and not counted:
        raise frame.error(turns.place, NEVER_ENDS)
    slots = list(carried.slots.values())
    insides = [slot.inside or Parameter(slot.label, slot.type, "input") for slot in slots]
    afters = [inside if slot.after is None else slot.after for slot, inside in zip(slots, insides, strict=True)]
    before = [*(each.before for each in hidden.values()), *map(carried.initial, slots)]
    own = [*(each.inside for each in hidden.values()), *insides]
    after = [*(each.after for each in hidden.values()), *afters]
    if turns.test is not None and goes_on is None:
        _warn_of_constant(tracer, traced, own)
    if turns.kept is not None:
        made = _scan(tracer, turns, turns.kept, traced, before, own, after)
    elif counted:
        made = _for(tracer, turns, traced, before, own, after)
    else:
        made = _while(tracer, traced, holds, before, own, after)
    results: list[Value] = [tracer.builder.emit(TupleGetItem(index=i), made) for i in range(len(before))]
    if turns.kept is not None:
        places = range(len(before), len(before) + len(turns.kept.values))
        turns.kept.stacked += [tracer.builder.emit(TupleGetItem(index=i), made) for i in places]
    carried.finish(results[len(hidden) :])
    for slot, result in zip(slots, results[len(hidden) :], strict=True):
        if isinstance(result, Node) and slot.label.isidentifier():
            result.name = slot.label
    return _end(tracer, frame, turns, traced, dict(zip(hidden, results, strict=False)), value)


def _warn_of_constant(tracer: Tracer, traced: TracedIteration, own: Sequence[Value]) -> None:
    """Warn of a condition that every turn finds as the first one did."""
    read = {traced.holds, *(value for node in traced.condition for value in node.inputs)}
    changed = {node.inputs[index] for node in traced.body for index in node.op.mutates}
    draws = any(isinstance(node.op, Op) and node.op.seeds for node in traced.condition)
    if not draws and not read & {*own, *changed}:
        tracer.warn("the condition reads nothing that the loop changes: once it holds, the loop never ends")


def _hidden(tracer: Tracer, turns: LoopPlan, traced: TracedIteration) -> tuple[dict[str, Hidden], Any]:
    """What the loop carries to know how it ends, and what it returns, with names of what is carried for it."""
    found: dict[str, Hidden] = {}
    end = traced.end
    with emitting_to(tracer, traced.body):
        left = any_flag(tracer, end, (LEFT, RETURNED))
        if left is False:
            return found, MISSING
        stays = negation(tracer, left) if isinstance(left, Value) else Constant(False, BOOL)
        found["goes_on"] = Hidden(Constant(True, BOOL), Parameter("goes_on", GOES_ON, "input"), stays)
        if not end.may(RETURNED):
            return found, MISSING
        flag = tracer.value(end.flags[RETURNED])
        found["returned"] = Hidden(Constant(False, BOOL), Parameter("returned", GOES_ON, "input"), flag)
        leaves: list[Value] = []
        value = leaves_of(tracer, end.value, leaves)
    for i, leaf in enumerate(leaves):
        inside = Parameter("result", leaf.type, "input")
        found[f"result{i}"] = Hidden(zeros(tracer, leaf.tensor_type), inside, leaf)
    return found, value


@dataclass(frozen=True)
class LoopLeaf:
    """Takes the place of a tensor in what is returned."""

    name: str
    is_number: bool


def leaves_of(tracer: Tracer, value: Any, leaves: list[Value]) -> Any:
    """What is returned, with a `LoopLeaf` for every tensor, which is appended to `leaves`."""
    return mapped(tracer, value, lambda tensor: _leaf(tracer, tensor, leaves))


def _leaf(tracer: Tracer, tensor: Any, leaves: list[Value]) -> LoopLeaf:
    leaves.append(tracer.value(tensor))
    return LoopLeaf(f"result{len(leaves) - 1}", is_number(tracer, tensor))


def mapped(tracer: Tracer, value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        items = [mapped(tracer, item, of_leaf) for item in value]
        if isinstance(value, list):
            return tracer.own(items)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return tracer.own({key: mapped(tracer, item, of_leaf) for key, item in value.items()})
    return of_leaf(value) if isinstance(value, LoopLeaf) or tracer.is_tensor(value) else value


def _counter(tracer: Tracer, turns: LoopPlan, traced: TracedIteration) -> Hidden:
    with emitting_to(tracer, traced.body):
        after = tracer.builder.emit(tracer.op("Add"), traced.number, Constant(1, INT64))  # type: ignore[arg-type]  # as above
    return Hidden(Constant(0, INT64), traced.number, after)


def _for(
    tracer: Tracer,
    turns: LoopPlan,
    traced: TracedIteration,
    before: Sequence[Value],
    own: Sequence[Value],
    after: Sequence[Value],
) -> Node:
    tracer.regions += 1
    body, captured = outlined(f"for_{tracer.regions}_body", traced.body, after, (traced.number, *own))
    if isinstance(turns.count, int):
        return emit_regions(tracer.builder, For(carried=len(before), turns=turns.count), [*before, *captured], (body,))
    assert turns.count is not None
    return emit_regions(tracer.builder, For(carried=len(before)), [turns.count, *before, *captured], (body,))


def _scan(
    tracer: Tracer, turns: LoopPlan, kept: Kept, traced: TracedIteration, before: Sequence[Value], own: Sequence[Value],
    after: Sequence[Value],
) -> Node:  # fmt: skip
    assert isinstance(turns.count, int)
    tracer.regions += 1
    name = f"scan_{tracer.regions}_body"
    body, captured = outlined(name, traced.body, [*after, *kept.values], (*own, *kept.entries))
    op = Scan(
        carried=len(before), scanned=len(kept.rows), stacked=len(kept.values), turns=turns.count,
        micro_batches=kept.micro_batches,
    )  # fmt: skip
    return emit_regions(tracer.builder, op, [*before, *kept.rows, *captured], (body,))


def _while(
    tracer: Tracer,
    traced: TracedIteration,
    holds: Value,
    before: Sequence[Value],
    own: Sequence[Value],
    after: Sequence[Value],
) -> Node:
    tracer.regions += 1
    name = f"while_{tracer.regions}"
    read = (captured_values(traced.condition, [holds], own), captured_values(traced.body, after, own))
    captured = list(dict.fromkeys([*read[0], *read[1]]))
    condition, _ = outlined(f"{name}_condition", traced.condition, [holds], own, captured)
    body, _ = outlined(f"{name}_body", traced.body, after, own, captured)
    op: Loop = While(carried=len(before))
    return emit_regions(tracer.builder, op, [*before, *captured], (condition, body))


def _end(
    tracer: Tracer, frame: Frame, turns: LoopPlan, traced: TracedIteration, hidden: dict[str, Value], value: Any
) -> Any:
    """How the loop ends, once it has run, and what follows an end that its condition brought about."""
    behind = turns.behind
    if "goes_on" not in hidden:
        return None if behind is None else behind()
    flags: dict[str, Any] = {"continued": False, LEFT: False, RETURNED: hidden.get("returned", False)}
    if traced.end.may(LEFT) and behind is not None:
        flags[LEFT] = negation(tracer, hidden["goes_on"])
    returned: Any = MISSING
    if "returned" in hidden:
        returned = mapped(tracer, value, lambda leaf: _behind(tracer, leaf, hidden))
        if not traced.end.may(LEFT) and traced.holds is True and turns.count is None:
            flags[RETURNED] = True  # it ends in no other way
    end = Exit(flags, returned)
    if behind is not None:
        return finished(unless_left(tracer, frame, turns.loop, end, (LEFT, RETURNED), behind))
    return finished(simplest(end))


def _behind(tracer: Tracer, leaf: Any, hidden: dict[str, Value]) -> Value:
    if not isinstance(leaf, LoopLeaf):
        return leaf
    value = hidden[leaf.name]
    if leaf.is_number:
        tracer.weak.add(value)
    return value
