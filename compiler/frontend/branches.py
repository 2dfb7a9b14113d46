"""Compiles what depends on a condition that only the run knows.

Both ways are traced, each from the same state of the program. What a name refers to behind them is chosen:

- by operators `Select`, where both ways are cheap: they move, cast, add, negate and compare;
- by operators `Select` too, where a way updates parameters: both are computed, and updates of the way that is not taken
  change nothing;
- else by an `If`, which runs one way alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from mspc.compiler.frontend.condition import negation
from mspc.compiler.frontend.merging import Choosing, Join, Selecting, merged
from mspc.compiler.frontend.program_state import ProgramState, TraceSnapshot, apart, emitting_to, fill
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import MISSING, Frame
from mspc.ir.graph import Node, Value, element_types
from mspc.ir.types import BOOL
from mspc.ops.control.regions import While
from mspc.ops.math.arithmetic import Select
from mspc.ops.math.reduce import ReductionOp
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast


class Ways:
    """The two ways of a condition, which are traced apart, in pieces.

    ends: the state in which each leaves the program. nodes: what each emits. pieces: (way, its nodes up to here), in
    the order in which they were traced.
    """

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        state = ProgramState(tracer, frame)
        self.ends = [state, state]
        self.nodes: tuple[list[Node], list[Node]] = ([], [])
        self.pieces: list[tuple[int, int]] = []

    @contextmanager
    def along(self, way: int) -> Generator[None]:
        """What is traced inside belongs to a way, and goes on where that ended."""
        begun = self.ends[way]
        begun.restore(self.tracer, self.frame)
        foreign = begun.foreign(self.tracer)
        self.tracer.ways += 1
        try:
            with apart(self.tracer), emitting_to(self.tracer, self.nodes[way]):
                yield
        except BaseException:
            begun.restore(self.tracer, self.frame)
            raise
        finally:
            self.tracer.ways -= 1
        self.ends[way] = ProgramState(self.tracer, self.frame, foreign)
        self.pieces.append((way, len(self.nodes[way])))

    def contents(self) -> list[dict[int, Any]]:
        """What lists and dicts hold behind either way."""
        return [end.contents for end in self.ends]


class GuardedWays(Ways):
    """Both ways are computed one behind the other; updates of one change nothing where its condition does not hold."""

    def __init__(self, tracer: Tracer, frame: Frame, test: ast.AST, holds: Value) -> None:
        super().__init__(tracer, frame)
        tracer.at(frame, test)
        self.test = test
        self.conditions = (holds, negation(tracer, holds))

    @contextmanager
    def along(self, way: int) -> Generator[None]:
        runs = dict(self.tracer.runs)
        self.ends[way].restore(self.tracer, self.frame)
        foreign = self.ends[way].foreign(self.tracer)
        self.tracer.at(self.frame, self.test)
        with _guarded(self.tracer, self.conditions[way]):
            yield
        self.ends[way] = ProgramState(self.tracer, self.frame, foreign)
        self.tracer.runs = runs

    def put(self, traced: Ways) -> None:
        """Take over what was traced apart."""
        begun = [0, 0]
        for way, end in traced.pieces:
            with self.along(way):
                self.tracer.builder.nodes += traced.nodes[way][begun[way] : end]
            begun[way] = end


@contextmanager
def _guarded(tracer: Tracer, condition: Value) -> Generator[None]:
    """Updates change nothing where `condition` does not hold."""
    outer = tracer.guard
    tracer.guard = condition if outer is None else tracer.emit(tracer.op("LogicalAnd"), outer, condition)
    tracer.ways += 1
    try:
        yield
    finally:
        tracer.guard = outer
        tracer.ways -= 1


def choose(
    tracer: Tracer,
    frame: Frame,
    test: ast.AST,
    whole: ast.AST,
    holds: Value,
    trace: Callable[[Ways], Sequence[Any]],
    join: Callable[[Join, Any, Any], Any] = merged,
) -> Any:
    """Trace both ways of a condition, and join them.

    test, whole: the condition, and what depends on it. trace: traces the ways, and returns what each gives. join: makes
    one of the two.
    """
    key = (whole, frame.call_frames)
    if key not in tracer.guarded:
        beginning = TraceSnapshot(tracer, frame)
        ways = Ways(tracer, frame)
        given = trace(ways)
        if _is_guarded(ways.nodes):
            beginning.restore()
            tracer.guarded.add(key)
        elif all(map(is_cheap, (*ways.nodes[0], *ways.nodes[1]))):
            if isinstance(whole, ast.stmt):
                GuardedWays(tracer, frame, test, holds).put(ways)
            else:
                tracer.builder.nodes += [*ways.nodes[0], *ways.nodes[1]]
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
    tracer: Tracer,
    frame: Frame,
    whole: ast.AST,
    join: Join,
    ways: Ways,
    given: Sequence[Any],
    of_results: Callable[[Join, Any, Any], Any],
) -> Any:
    """Every name, every element of a list or dict and every attribute refers to what either way left there."""
    tracer.at(frame, whole)
    left, right = ways.ends
    frame.locals.clear()
    for name in {**left.names, **right.names}:
        value = merged(join, left.names.get(name, MISSING), right.names.get(name, MISSING))
        if value is not MISSING:
            frame.locals[name] = value
    for key in left.contents.keys() & right.contents.keys():
        fill(tracer.own(left.held[key]), _joined_contents(join, left.contents[key], right.contents[key]))
    _join_attributes(tracer, join, left.attributes, right.attributes)
    return of_results(join, *given)


def _joined_contents(join: Join, left: Any, right: Any) -> Any:
    if isinstance(left, list) and len(left) == len(right):
        return [merged(join, a, b) for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict) and left.keys() == right.keys():
        return {key: merged(join, left[key], right[key]) for key in left}
    if isinstance(left, set) and left == right:
        return left
    raise join.tracer.error(f"a {type(left).__name__} has other elements, depending on the contents of a tensor")


def _join_attributes(tracer: Tracer, join: Join, left: dict[Any, Any], right: dict[Any, Any]) -> None:
    found: dict[Any, Any] = {}
    for key in {**left, **right}:
        before = tracer.attributes_before.get(key, MISSING)
        value = merged(join, left.get(key, before), right.get(key, before))
        if value is not MISSING:
            found[key] = value
    if any(found.get(key, MISSING) is not value for key, value in left.items()) or len(found) != len(left):
        tracer.runs.clear()
    tracer.attributes = found


def _is_guarded(ways: Sequence[Sequence[Node]]) -> bool:
    """Whether parameters are updated, by operators that all can be made to change nothing."""
    nodes = [node for way in ways for node in way]
    return any(node.op.mutates and not node.regions for node in nodes) and not any(map(_must_not_run, nodes))


def _must_not_run(node: Node) -> bool:
    """Whether a node may not run where the program does not come by it, for all that a guard can do."""
    op = node.op
    if node.regions:
        loops = (inner for region in node.regions for graph in region.graphs() for inner in graph.nodes)
        return op.has_side_effect or any(isinstance(each.op, While) for each in (node, *loops))
    if op.mutates:
        return not getattr(op, "neutral", None)
    return op.has_side_effect and not op.is_collective


def is_cheap(node: Node) -> bool:
    """Whether a node may as well run where nobody needs it: it moves, casts, adds, negates, compares or decides, with
    gradients that do not depend on values."""
    op = node.op
    if not isinstance(op, Op) or not _is_free(node):
        return False
    if op.is_view or op.moves or op.additive or isinstance(op, Cast | Select) or op.uniform() is not None:
        return True
    if all(element.dtype == BOOL for element in element_types(node.type)):
        return True
    return len(node.inputs) == 1 and op.linear_in == (0,) and (bool(op.cuda) or isinstance(op, ReductionOp))


def decides_cheaply(node: Node) -> bool:
    """The same of a node on the way to a Bool alone, through which no gradient passes: it may work element by element,
    or reduce."""
    op = node.op
    return is_cheap(node) or (isinstance(op, Op) and _is_free(node) and (bool(op.cuda) or isinstance(op, ReductionOp)))


def _is_free(node: Node) -> bool:
    """Whether nothing but its result tells that a node ran."""
    op = node.op
    if not isinstance(op, Op) or node.regions or op.mutates or op.has_side_effect:
        return False
    return not op.is_collective and not op.draws
