"""Conditions known only at run time: `if`, `and`, `or`, early exits, and chosen elements and functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from mspc.analysis.aliasing import source
from mspc.compiler.frontend.operators import is_number, reshape, truth
from mspc.compiler.frontend.state import INLINE_LIMIT, Tracer, number_dtype
from mspc.compiler.frontend.values import (
    END,
    KINDS,
    LEFT,
    MISSING,
    POISON,
    Exit,
    Frame,
    OneOf,
    OnlyInLoop,
    Returned,
    Undecided,
    exit_of,
    on_way,
    simplest,
    way_of,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Value, element_types
from mspc.ir.temporary import temporarily
from mspc.ir.types import BOOL, INT64, DType, TensorType
from mspc.mindspore_api.common.parameter import Parameter
from mspc.ops.control.regions import If, While, captured_values, emit_regions, outlined
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Select
from mspc.ops.math.reduce import ReductionOp
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast


def condition_of(tracer: Tracer, value: Any, only_bool: bool = False) -> Value | None:
    """Return `value` as a Bool of shape () known only at run time. Return None if it is no tensor of one element, or,
    with `only_bool`, no Bool."""
    if not isinstance(value, Value | Parameter):
        return None
    tensor = tracer.value(value)
    if not isinstance(tensor.type, TensorType) or tensor.type.size != 1:
        return None
    if tensor.type.dtype != BOOL:
        if only_bool:
            return None
        tensor = tracer.emit(tracer.op("NotEqual"), tensor, 0)
    return reshape(tracer, tensor, ())


def negation(tracer: Tracer, condition: Value) -> Value:
    """Return `not condition`."""
    return tracer.emit(tracer.op("LogicalNot"), condition)


class ProgramState:
    """Snapshot of the names of the running function, the contents of the program's lists, dicts and sets, and the
    attributes it set. foreign: identities of lists, dicts and sets created on another path than the one that led here.
    """

    def __init__(self, tracer: Tracer, frame: Frame, foreign: Collection[int] = ()) -> None:
        self.names = dict(frame.locals)
        self.containers: dict[int, Any] = {
            key: value
            for key, value in tracer.owned.items()
            if isinstance(value, list | dict | set) and key not in foreign
        }
        self.contents: dict[int, Any] = {key: value.copy() for key, value in self.containers.items()}
        self.attributes = dict(tracer.attributes)

    def restore(self, tracer: Tracer, frame: Frame) -> None:
        frame.locals.clear()
        frame.locals.update(self.names)
        for key, contents in self.contents.items():
            fill(tracer.own(self.containers[key]), contents)
        tracer.attributes = dict(self.attributes)

    def foreign(self, tracer: Tracer) -> set[int]:
        """Return the identities of the objects created since the snapshot, on another path than the one that continues
        here."""
        return tracer.owned.keys() - self.containers.keys()


NOTED = (
    "parameters", "constants", "errors", "warnings", "ignored", "owned", "draws", "runs", "attributes_read", "weak",
    "weights", "_tensors",
)  # fmt: skip
"""Attributes of the Tracer that a trace adds to."""


class TraceSnapshot:
    """All state that a trace changes, saved so that a trace can be tried and undone."""

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        self.state = ProgramState(tracer, frame)
        self.noted = {name: getattr(tracer, name).copy() for name in NOTED}
        self.parameters = [(parameter, parameter.name) for parameter in tracer.graph.parameters]
        self.regions = tracer.regions
        self.nodes = len(tracer.builder.nodes)

    def restore(self) -> None:
        """Undo the trace since the snapshot."""
        tracer = self.tracer
        tracer.names.clear()
        for name, noted in self.noted.items():
            setattr(tracer, name, noted.copy())
        self.state.restore(tracer, self.frame)
        for parameter, name in self.parameters:
            parameter.name = name
        tracer.graph.parameters = [parameter for parameter, _ in self.parameters]
        tracer.regions = self.regions
        del tracer.builder.nodes[self.nodes :]


def fill(container: Any, contents: Any) -> None:
    """Replace the elements of a list, dict or set of the program."""
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)


@contextmanager
def apart(tracer: Tracer) -> Generator[list[Node]]:
    """Emit the nodes of the context into a new list. Gradients do not include calls across its boundary."""
    with emitting_to(tracer, []), temporarily(tracer, runs={}):
        yield tracer.builder.nodes


def emitting_to(tracer: Tracer, nodes: list[Node]) -> AbstractContextManager[None]:
    """Append the nodes emitted in the context to `nodes`."""
    return temporarily(tracer.builder, nodes=nodes)


Contents = Sequence[Mapping[int, Any]]
"""Contents of the program's lists and dicts after each branch, by identity."""


class Selecting:
    """Join of two computed branches: each value is chosen by a `Select`."""

    within = False
    """Whether a value computed in a branch can be read only in that branch."""

    def __init__(self, tracer: Tracer, holds: Value, contents: Contents) -> None:
        self.tracer, self.holds, self.contents = tracer, holds, contents

    def operand(self, branch: int, value: Any, like: DType | None) -> Value:
        return value if isinstance(value, Value) else self.tracer.value(value, like)

    def apart(self, left: Any, right: Any) -> Undecided:
        return Undecided(left, right, False, self.holds)

    def pick(self, left: Value, right: Value) -> Value:
        return self.tracer.emit(self.tracer.op("Select"), self.holds, left, right)


class Choosing(Selecting):
    """Join in which only one branch runs: each value is a result of an `If`, which `emit` appends once all are known.

    nodes: of the branch taken if the condition holds, and of the other.
    """

    within = True

    def __init__(self, tracer: Tracer, holds: Value, contents: Contents, nodes: tuple[list[Node], list[Node]]) -> None:
        super().__init__(tracer, holds, contents)
        self.nodes = nodes
        self.picked: dict[tuple[Value, Value], Node] = {}

    def operand(self, branch: int, value: Any, like: DType | None) -> Value:
        with emitting_to(self.tracer, self.nodes[branch]):
            return value if isinstance(value, Value) else self.tracer.value(value, like)

    def pick(self, left: Value, right: Value) -> Value:
        found = self.picked.get((left, right))
        if found is None:
            b = self.tracer.builder
            found = Node(TupleGetItem(index=len(self.picked)), [], left.type, "", "", b.scope, b.frames, b.phase)
            self.picked[left, right] = found
        return found

    def apart(self, left: Any, right: Any) -> Undecided:
        """Return two values that cannot be one tensor as Undecided, known after the branches. Tensors in each are
        results of the `If` that are zeros in the other branch."""
        if not (_is_plain(self.tracer, left) and _is_plain(self.tracer, right)):
            return Undecided(left, right, True, self.holds)
        return Undecided(self._leaving(0, left), self._leaving(1, right), False, self.holds)

    def _leaving(self, way: int, value: Any) -> Any:
        def leaf(tensor: Any) -> Any:
            pair = [self.operand(way, tensor, None)] * 2
            with emitting_to(self.tracer, self.nodes[1 - way]):
                pair[1 - way] = zeros(self.tracer, pair[way].tensor_type)
            return self.pick(*pair)

        return mapped(self.tracer, value, leaf)

    def emit(self) -> None:
        """Append the `If` and the nodes that take its results, unless nothing reads them and it has no other effect."""
        if not self.picked and not any(node.op.has_side_effect for nodes in self.nodes for node in nodes):
            return
        self.tracer.regions += 1
        name = f"if_{self.tracer.regions}"
        results = [[pair[branch] for pair in self.picked] for branch in (0, 1)]
        sides = list(zip(self.nodes, results, strict=True))
        captured = list(dict.fromkeys(value for side in sides for value in captured_values(*side)))
        words = If.region_names
        regions = [
            outlined(f"{name}_{word}", *side, captured=captured)[0] for word, side in zip(words, sides, strict=True)
        ]
        b = self.tracer.builder
        made = emit_regions(b, If(), [self.holds, *captured], regions)
        for item in self.picked.values():
            item.inputs = [made]
            b.nodes.append(item)


Join = Selecting | Choosing


def merged(join: Join, left: Any, right: Any) -> Any:
    """Return the value that is `left` if the condition holds and `right` otherwise; `Undecided` if no single tensor can
    represent both."""
    if left is MISSING or right is MISSING:
        return MISSING
    for value in (left, right):
        if value is POISON or isinstance(value, OnlyInLoop):
            return value
    if left is right or source(left) is source(right):  # an order after an update does not make it another value
        return source(left) if join.within else left
    if isinstance(left, Undecided) or isinstance(right, Undecided):
        sides = [_behind(side) if join.within else side for side in (left, right)]
        return Undecided(*sides, join.within, join.holds)
    left, right = (join.contents[way].get(id(value), value) for way, value in enumerate((left, right)))
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and len(left) == len(right):
        items = [merged(join, a, b) for a, b in zip(left, right, strict=True)]
        return join.tracer.own(items) if isinstance(left, list) else tuple(items)
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return join.tracer.own({key: merged(join, left[key], right[key]) for key in left})
    return _selected(join, left, right)


def merged_flag(join: Join, left: Any, right: Any) -> Any:
    """Return the same as `merged` for two values that are True, False or Bool tensors."""
    if left is True and right is False:
        return join.holds
    if left is False and right is True:
        return negation(join.tracer, join.holds)
    return merged(join, left, right)


def _selected(join: Join, left: Any, right: Any) -> Any:
    tracer = join.tracer
    tensors = [tracer.is_tensor(value) for value in (left, right)]
    numbers = [isinstance(value, bool | int | float | np.generic) for value in (left, right)]
    if all(numbers) and type(left) is type(right):
        if left == right:
            return left
    elif not all(tensors) and not (any(tensors) and any(numbers)):
        same = not any(tensors) and type(left) is type(right) and left == right
        return left if same else join.apart(left, right)
    like = next((tracer.value(v).tensor_type.dtype for v, t in zip((left, right), tensors, strict=True) if t), None)
    one, other = (join.operand(branch, v, like) for branch, v in enumerate((left, right)))
    if one.type != other.type:
        return join.apart(left, right)
    if any(tensors) and any(numbers):
        number = left if numbers[0] else right
        if isinstance(number, bool | np.bool_) != (like == BOOL) or number_dtype(number, like) != like:
            return join.apart(left, right)
    found = join.pick(one, other)
    if tracer.weak and is_number(tracer, left) and is_number(tracer, right):
        tracer.weak.add(found)
    return found


def _is_plain(tracer: Tracer, value: Any) -> bool:
    """Return whether a value consists of tensors, numbers, text and None only, in unnamed tuples, lists and dicts."""
    if isinstance(value, list | tuple):
        return all(_is_plain(tracer, item) for item in value) and not hasattr(value, "_fields")
    if isinstance(value, dict):
        return all(_is_plain(tracer, item) for item in value.values())
    return tracer.is_tensor(value) or value is None or isinstance(value, bool | int | float | str | np.generic)


def _behind(value: Any) -> Any:
    """Mark the value, and all values in it, as known only inside the branch that decides them."""
    return Undecided(_behind(value.left), _behind(value.right), True) if isinstance(value, Undecided) else value


def zeros(tracer: Tracer, type: TensorType) -> Value:
    """Return a tensor of zeros: a constant if it is small."""
    if type.size <= INLINE_LIMIT:
        return Constant(np.zeros(type.shape, type.dtype.numpy), type.dtype)
    return tracer.emit(tracer.op("Zeros", shape=type.shape, dtype=type.dtype))


def mapped(tracer: Tracer, value: Any, leaf: Callable[[Any], Any], kinds: type | tuple[type, ...] = ()) -> Any:
    """Return `value`, in nested tuples, lists and dicts, with `leaf` of every tensor and of every object of `kinds` in
    its place."""
    if isinstance(value, tuple | list):
        items = [mapped(tracer, item, leaf, kinds) for item in value]
        if isinstance(value, list):
            return tracer.own(items)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return tracer.own({key: mapped(tracer, item, leaf, kinds) for key, item in value.items()})
    return leaf(value) if tracer.is_tensor(value) or isinstance(value, kinds) else value


class Ways:
    """The two paths of a condition, traced separately and in pieces.

    ends: the program state at the end of each path. nodes: the nodes of each path. pieces: (path, number of its nodes
    so far), in the order of tracing.
    """

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        state = ProgramState(tracer, frame)
        self.ends = [state, state]
        self.nodes: tuple[list[Node], list[Node]] = ([], [])
        self.pieces: list[tuple[int, int]] = []

    @contextmanager
    def along(self, way: int) -> Generator[None]:
        """Trace the code of the context on a path, continuing from where that path ended."""
        begun = self.ends[way]
        begun.restore(self.tracer, self.frame)
        foreign = begun.foreign(self.tracer)
        try:
            with apart(self.tracer), emitting_to(self.tracer, self.nodes[way]):
                yield
        except BaseException:
            begun.restore(self.tracer, self.frame)
            raise
        self.ends[way] = ProgramState(self.tracer, self.frame, foreign)
        self.pieces.append((way, len(self.nodes[way])))

    def contents(self) -> list[dict[int, Any]]:
        """Return the contents of lists and dicts after each path."""
        return [end.contents for end in self.ends]


class GuardedWays(Ways):
    """Two paths that are both computed, one after the other. Updates of a path have no effect if its condition does not
    hold."""

    def __init__(self, tracer: Tracer, frame: Frame, test: ast.AST, holds: Value) -> None:
        super().__init__(tracer, frame)
        tracer.at(frame, test)
        self.test = test
        self.conditions = (holds, negation(tracer, holds))

    @contextmanager
    def along(self, way: int) -> Generator[None]:
        tracer, own = self.tracer, self.conditions[way]
        runs = dict(tracer.runs)
        self.ends[way].restore(tracer, self.frame)
        foreign = self.ends[way].foreign(tracer)
        tracer.at(self.frame, self.test)
        outer = tracer.guard
        with temporarily(tracer, guard=own if outer is None else tracer.emit(tracer.op("LogicalAnd"), outer, own)):
            yield
        self.ends[way] = ProgramState(tracer, self.frame, foreign)
        tracer.runs = runs

    def put(self, traced: Ways) -> None:
        """Append the nodes that were traced separately, with each path's guard."""
        begun = [0, 0]
        for way, end in traced.pieces:
            with self.along(way):
                self.tracer.builder.nodes += traced.nodes[way][begun[way] : end]
            begun[way] = end


Trace = Callable[[Ways], Sequence[Any]]
"""Traces both paths of a condition. Returns the result of each."""


def each_way(sides: Mapping[int, Callable[[], Any]]) -> Trace:
    """Return a trace that runs one function for each path, in the order of `sides`."""

    def trace(ways: Ways) -> list[Any]:
        found: dict[int, Any] = {}
        for way, run in sides.items():
            with ways.along(way):
                found[way] = run()
        return [found[0], found[1]]

    return trace


def choose(
    tracer: Tracer, frame: Frame, test: ast.AST, whole: ast.AST, holds: Value, trace: Trace,
    join: Callable[[Join, Any, Any], Any] = merged,
) -> Any:  # fmt: skip
    """Trace both paths of a condition, and join them.

    Cheap paths, and paths with updates that can be masked, are both computed; otherwise an `If` runs one of them.

    test, whole: the condition, and the statement or expression that depends on it. join: joins the two results.
    """
    key = (whole, frame.call_frames)
    if key not in tracer.guarded:
        beginning = TraceSnapshot(tracer, frame)
        ways = Ways(tracer, frame)
        given = trace(ways)
        nodes = [*ways.nodes[0], *ways.nodes[1]]
        if any(node.op.mutates and not node.regions for node in nodes) and not any(map(_must_not_run, nodes)):
            beginning.restore()
            tracer.guarded.add(key)
        elif all(map(is_cheap, nodes)):
            if isinstance(whole, ast.stmt):
                GuardedWays(tracer, frame, test, holds).put(ways)
            else:
                tracer.builder.nodes += nodes
            return _joined(tracer, frame, whole, Selecting(tracer, holds, ways.contents()), ways, given, join)
        else:
            choosing = Choosing(tracer, holds, ways.contents(), ways.nodes)
            found = _joined(tracer, frame, whole, choosing, ways, given, join)
            choosing.emit()
            return found
    both = GuardedWays(tracer, frame, test, holds)
    given = trace(both)
    return _joined(tracer, frame, whole, Selecting(tracer, holds, both.contents()), both, given, join)


def _joined(
    tracer: Tracer, frame: Frame, whole: ast.AST, join: Join, ways: Ways, given: Sequence[Any],
    of_results: Callable[[Join, Any, Any], Any],
) -> Any:  # fmt: skip
    """Merge the names, list and dict elements, and attributes that the two paths left, and the two results."""
    tracer.at(frame, whole)
    left, right = ways.ends
    frame.locals.clear()
    for name in {**left.names, **right.names}:
        value = merged(join, left.names.get(name, MISSING), right.names.get(name, MISSING))
        if value is not MISSING:
            frame.locals[name] = value
    for key in left.contents.keys() & right.contents.keys():
        fill(tracer.own(left.containers[key]), _joined_contents(join, left.contents[key], right.contents[key]))
    attributes: dict[Any, Any] = {}
    for key in {**left.attributes, **right.attributes}:
        before = tracer.attributes_before.get(key, MISSING)
        value = merged(join, left.attributes.get(key, before), right.attributes.get(key, before))
        if value is not MISSING:
            attributes[key] = value
    same = len(attributes) == len(left.attributes)
    if not same or any(attributes.get(key, MISSING) is not value for key, value in left.attributes.items()):
        tracer.runs.clear()
    tracer.attributes = attributes
    return of_results(join, *given)


def _joined_contents(join: Join, left: Any, right: Any) -> Any:
    if isinstance(left, list) and len(left) == len(right):
        return [merged(join, a, b) for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict) and left.keys() == right.keys():
        return {key: merged(join, left[key], right[key]) for key in left}
    if isinstance(left, set) and left == right:
        return left
    raise join.tracer.error(f"a {type(left).__name__} has other elements, depending on the contents of a tensor")


def _must_not_run(node: Node) -> bool:
    """Return whether a node must not run on the path not taken, because a guard cannot disable its effect."""
    op = node.op
    if node.regions:
        loops = (inner for region in node.regions for graph in region.graphs() for inner in graph.nodes)
        return op.has_side_effect or any(isinstance(each.op, While) for each in (node, *loops))
    if op.mutates:
        return not getattr(op, "neutral", None)
    return op.has_side_effect and not op.is_collective


def is_cheap(node: Node) -> bool:
    """Return whether a node may run even if its result is not needed: it moves, casts, adds, negates, compares or
    selects, and its gradient does not depend on values."""
    op = node.op
    if not isinstance(op, Op) or not _is_free(node):
        return False
    if op.is_view or op.moves or op.additive or isinstance(op, Cast | Select) or op.uniform() is not None:
        return True
    if all(element.dtype == BOOL for element in element_types(node.type)):
        return True
    return len(node.inputs) == 1 and op.linear_in == (0,) and (bool(op.cuda) or isinstance(op, ReductionOp))


def decides_cheaply(node: Node) -> bool:
    """Return the same for a node that only leads to a Bool, through which no gradient passes: it may also be
    elementwise or a reduction."""
    op = node.op
    return is_cheap(node) or (isinstance(op, Op) and _is_free(node) and (bool(op.cuda) or isinstance(op, ReductionOp)))


def _is_free(node: Node) -> bool:
    """Return whether running a node has no effect other than its result."""
    op = node.op
    if not isinstance(op, Op) or node.regions or op.mutates or op.has_side_effect:
        return False
    return not op.is_collective and not op.draws


def branch(tracer: Tracer, frame: Frame, node: ast.If, holds: Value, rest: list[ast.stmt]) -> Any:
    """Run both branches of an `if`. `rest` is the statements that follow it in its block.

    A branch that ends in `raise` checks the contents of a tensor, which is unknown at compile time: it is left out,
    with a warning. Return None, or how the block ends if a branch leaves it: then `rest` and all that follows it have
    been run, too.
    """
    bodies = (node.body, node.orelse)
    for body, other in (bodies, bodies[::-1]):
        if body and isinstance(body[-1], ast.Raise):
            tracer.at(frame, node.test)
            tracer.warn("this check depends on the contents of a tensor, and is left out")
            with frame.followed_by(rest):
                return tracer.block(frame, other)

    def trace(ways: Ways) -> list[Any]:
        signals: list[Any] = [None, None]
        for way in (0, 1):
            with frame.followed_by(rest), ways.along(way):
                signals[way] = tracer.block(frame, bodies[way])
        if signals != [None, None]:
            for way in (0, 1):
                if signals[way] is None:
                    with ways.along(way):
                        signals[way] = remainder(tracer, frame, rest)
        return signals

    return choose(tracer, frame, node.test, node, holds, trace, joined_signals)


def remainder(tracer: Tracer, frame: Frame, rest: list[ast.stmt]) -> Any:
    """Run the rest of this block and of the blocks around it, up to the end of the innermost loop or `with`, or else of
    the function. Return how they end."""
    outer = frame.following
    signal = tracer.block(frame, rest)
    with temporarily(frame, following=outer):
        for depth in range(len(outer) - 1, -1, -1):
            following = outer[depth]
            if signal is not None:
                break
            if following is None:
                return END
            frame.following = outer[:depth]
            signal = tracer.block(frame, following)
    return Returned(None) if signal is None else signal


def unless_left(
    tracer: Tracer, frame: Frame, node: ast.stmt, left: Exit, kinds: tuple[str, ...], run: Callable[[], Any]
) -> Any:
    """Return how the block ends: with `left` if that is an exit of one of `kinds`, else with the result of `run`."""
    tracer.at(frame, node)
    holds = any_flag(tracer, left, kinds)
    if holds is False:
        return run()
    others = {kind: flag for kind, flag in left.flags.items() if kind not in kinds}
    assert not any(others.values()), "the end of an iteration was removed"
    possible = [kind for kind in kinds if left.may(kind)]
    as_left = left
    if len(possible) == 1:
        as_left = simplest(Exit({kind: kind == possible[0] for kind in KINDS}, left.value))
    if holds is True:
        return as_left
    return choose(tracer, frame, node, node, holds, each_way({0: lambda: as_left, 1: run}), joined_signals)


def any_flag(tracer: Tracer, left: Exit, kinds: tuple[str, ...]) -> Any:
    """Return whether the exit is of one of these kinds: True, False, or a Bool of shape ()."""
    flags = [left.flags[kind] for kind in kinds if left.may(kind)]
    if not flags or any(flag is True for flag in flags):
        return bool(flags)
    found = flags[0]
    for flag in flags[1:]:
        found = tracer.emit(tracer.op("LogicalOr"), found, flag)
    return found


def joined_signals(join: Join, left: Any, right: Any) -> Any:
    """Return the exit of a block that ends in one of two ways."""
    if isinstance(left, Returned) and isinstance(right, Returned):
        return Returned(merged(join, left.value, right.value))
    if left is right:
        return left
    one, other = exit_of(left), exit_of(right)
    flags = {kind: merged_flag(join, one.flags[kind], other.flags[kind]) for kind in KINDS}
    values = [one.value, other.value]

    def zeros_like(tensor: Any) -> Any:
        type = join.tracer.value(tensor).type
        return zeros(join.tracer, type) if isinstance(type, TensorType) else tensor

    for way in (0, 1):
        if values[way] is MISSING and values[1 - way] is not MISSING:
            with emitting_to(join.tracer, join.nodes[way] if join.within else join.tracer.builder.nodes):
                values[way] = mapped(join.tracer, values[1 - way], zeros_like)
    return Exit(flags, merged(join, *values))


def finished(signal: Any) -> Any:
    """Return how a loop ends if its last iteration ended with `signal`: by `return`, or None."""
    if isinstance(signal, Exit):
        signal = simplest(Exit({**signal.flags, "continued": False, LEFT: False}, signal.value))
    return signal if isinstance(signal, Exit | Returned) else None


def conditional(tracer: Tracer, frame: Frame, node: ast.IfExp, holds: Value) -> Any:
    """Evaluate `body if holds else orelse`."""
    sides = {way: partial(tracer.evaluate, frame, operand) for way, operand in enumerate((node.body, node.orelse))}
    return choose(tracer, frame, node.test, node, holds, each_way(sides))


def all_of(tracer: Tracer, frame: Frame, node: ast.BoolOp, place: int, met: Value, is_test: bool) -> Any:
    """Evaluate the operands from `place` on, whose own condition is `met`, as one Bool. Return False or True if an
    operand known at compile time decides.

    is_test: only the truth of the result is used, so an operand may be a number.
    """
    word, stop, name = ("or", True, "LogicalOr") if isinstance(node.op, ast.Or) else ("and", False, "LogicalAnd")
    for operand in node.values[place + 1 :]:
        value, condition, is_whole = _under(tracer, frame, operand, met, stop, is_test)
        if condition is not None:
            met = condition if is_whole else tracer.emit(tracer.op(name), met, condition)
        elif truth(tracer, value, f"an operand of '{word}'") is stop:
            return value
    return met


def _under(
    tracer: Tracer, frame: Frame, operand: ast.expr, met: Value, stop: bool, is_test: bool
) -> tuple[Any, Value | None, bool]:
    """Evaluate an operand that is needed only if the operands before it, together `met`, are not `stop`. Return its
    value; the same as a Bool of shape () if it is one known only at run time, or None; and whether this Bool already
    includes `met`. An expensive operand is computed only on demand."""
    beginning = TraceSnapshot(tracer, frame)
    evaluate = tracer.evaluate_test if is_test else tracer.evaluate
    with apart(tracer) as nodes:
        value = evaluate(frame, operand)
        tracer.at(frame, operand)
        condition = condition_of(tracer, value, not is_test)
    if condition is None or all(map(decides_cheaply, nodes)):
        tracer.builder.nodes += nodes
        return value, condition, False
    beginning.restore()
    sides = {
        1 - stop: lambda: stop, int(stop): lambda: condition_of(tracer, evaluate(frame, operand), not is_test)
    }  # fmt: skip
    found = choose(tracer, frame, operand, operand, met, each_way(sides))
    return found, found, True


def one_of(tracer: Tracer, frame: Frame, node: ast.BoolOp, place: int, value: Any) -> Any:
    """Evaluate operand `place`, whose value is a number known only at run time, or else the operands after it."""
    holds = condition_of(tracer, value)
    assert holds is not None
    behind = node.values[place + 1 :]
    rest = behind[0] if len(behind) == 1 else ast.copy_location(ast.BoolOp(node.op, behind), behind[0])
    way = int(isinstance(node.op, ast.Or))
    sides = {1 - way: lambda: value, way: lambda: tracer.evaluate(frame, rest)}
    return choose(tracer, frame, node.values[place], node.values[place], holds, each_way(sides))


def element_at(tracer: Tracer, base: Sequence[Any], index: Value) -> Any:
    """Evaluate `base[index]`: a tensor if the elements are numbers or tensors of one type, otherwise a choice that can
    be called. Raise MspcError if the index is not an integer of one element, or there are no elements."""
    type = index.tensor_type
    if type.size != 1 or type.dtype.kind not in "iu":
        message = f"an index of a {base.__class__.__name__} is an integer of one element, not {type}"
        raise tracer.error(message, kind=TypeError)
    place = reshape(tracer, tracer.cast(index, INT64), ())
    below = tracer.emit(tracer.op("Less"), place, 0)
    place = tracer.emit(tracer.op("Select"), below, tracer.emit(tracer.op("Add"), place, len(base)), place)
    items = list(base)
    if not items:
        raise tracer.error(f"the {base.__class__.__name__} has no elements", kind=IndexError)
    if all(tracer.is_tensor(item) or isinstance(item, bool | int | float | np.generic) for item in items):
        values = [tracer.value(item) for item in items]
        if len({value.type for value in values}) == 1:
            return tracer.emit(tracer.op("Gather", axis=0), tracer.emit(tracer.op("Stack", axis=0), *values), place)
    return OneOf(tuple(items), place)


def call_chosen(
    tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a function chosen at run time, or a function with arguments chosen at run time. Raise MspcError if one of
    the choices is no function or cell."""
    if isinstance(fn, OneOf):
        if len(fn.items) == 1:
            return tracer.call(frame, node, fn.items[0], args, kwargs)
        half = len(fn.items) // 2
        holds = tracer.emit(tracer.op("Less"), fn.place, fn.first + half)
        left = OneOf(fn.items[:half], fn.place, fn.first)
        fn = Undecided(left, OneOf(fn.items[half:], fn.place, fn.first + half), False, holds)
    else:
        found = way_of(fn, *args, *kwargs.values())
        assert found is not None
        holds = found

    def run(way: int) -> Any:
        given = [on_way(arg, holds, way) for arg in args]
        named = {name: on_way(arg, holds, way) for name, arg in kwargs.items()}
        return tracer.call(frame, node, on_way(fn, holds, way), given, named)

    return choose(tracer, frame, node, node, holds, each_way({way: partial(run, way) for way in (0, 1)}))


def either(tracer: Tracer, function: Callable[..., Any], *operands: Any) -> Any:
    """Apply `function`, which has no effects, to operands some of which are chosen at run time."""
    holds = way_of(*operands)
    assert holds is not None
    nodes: tuple[list[Node], list[Node]] = ([], [])
    made: list[Any] = []
    for way in (0, 1):
        with emitting_to(tracer, nodes[way]):
            try:
                made.append(function(*(on_way(value, holds, way) for value in operands)))
            except MspcError as error:
                which = next(value for value in operands if isinstance(value, Undecided) and value.holds is holds)
                raise MspcError(error.message, notes=[*error.notes, f"an operand is {which}"], frames=error.frames,
                                kind=error.kind or RuntimeError, code="E0205") from None  # fmt: skip
    if all(map(is_cheap, (*nodes[0], *nodes[1]))):
        tracer.builder.nodes += [*nodes[0], *nodes[1]]
        return merged(Selecting(tracer, holds, ({}, {})), *made)
    join = Choosing(tracer, holds, ({}, {}), nodes)
    found = merged(join, *made)
    join.emit()
    return found
