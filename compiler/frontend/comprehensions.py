"""Comprehensions whose items are similar: one item is traced, and its nodes are copied for the others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from mspc.compiler.frontend.source import FunctionSource
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.mindspore_api.common import parameter as session
from mspc.ops.control.structural import Gradient

FEWEST = 4
"""Fewest items of a comprehension for which similar items are looked for."""
MOST = 8
"""Most items of one kind that are traced if each differs from the one before."""
SKIPPED = object()
"""Result of an iteration whose item does not pass the conditions."""

_PLAIN = (
    ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Starred, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Subscript, ast.Slice, ast.ListComp, ast.GeneratorExp,
    ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
    ast.Return, ast.Assign, ast.If, ast.Expr, ast.Pass, ast.Assert, ast.Raise,
)  # fmt: skip
_CHANGED = object()
_facts = attrgetter("_type.dtype.name", "_type.shape", *session.FACTS)
_NUMBERS = (bool, int, float, str, type(None))


@dataclass
class _Turn:
    """Trace of one item.

    leaves: the tensors and parameters in the item. rows, result: the nodes and the result, with places for the values
    of the iteration: an index of `leaves`, or `len(leaves)` plus the index of a node. weights: the leaves that are
    parameters of the graph since, in the order of first use. names: the names given to leaves. nodes: the nodes, each
    with the numbers and places of its operands that belong to the iteration.
    """

    leaves: list[Any]
    rows: list[tuple[Any, ...]]
    result: Any
    weights: list[int]
    names: dict[int, str]
    nodes: list[tuple[Node, list[tuple[int, int]]]]


@dataclass
class _Pattern:
    """Traces of one kind of item. turn: the last trace; None if iterations of this kind cannot be repeated. fixed:
    indices of the leaves that are the same in all; None until two traces are known to be equal. read: number of traces.
    """

    turn: _Turn | None
    fixed: list[int] | None = None
    read: int = 0


class RepeatedTurns:
    """The iterations of one comprehension."""

    def __init__(self, tracer: Tracer, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> None:
        self.tracer = tracer
        self.is_update = frame.phase == "update"
        [loop] = [node.generators[-1]]
        self.may_repeat = all(map(_is_plain, (node.elt, loop.target, *loop.ifs)))
        self.patterns: dict[Any, _Pattern] = {}

    def result(self, item: Any, read: Callable[[Any], Any]) -> Any:
        """Return the result of an iteration: `read(item)`, unless the nodes of an earlier one can be copied."""
        leaves: list[Any] = []
        key: list[Any] = []
        if not self.may_repeat or not _describe(self.tracer, item, leaves, key):
            return read(item)
        kind = (*key, *map([id(leaf) for leaf in leaves].index, map(id, leaves)))
        pattern = self.patterns.setdefault(kind, _Pattern(None))
        before = pattern.turn
        if pattern.read >= MOST or (before is None and pattern.read):
            return read(item)
        if before is not None and pattern.fixed is not None:
            if all(leaves[i] is before.leaves[i] for i in pattern.fixed):
                return self._repeat(before, leaves)
        pattern.read += 1
        result, turn, changes_state = self._read(item, leaves, read)
        pattern.turn, pattern.fixed = turn, None
        if before is None or turn is None or changes_state:
            return result
        if (before.rows, before.result) == (turn.rows, turn.result):
            pattern.fixed = [i for i, leaf in enumerate(leaves) if leaf is before.leaves[i]]
        return result

    def _read(self, item: Any, leaves: list[Any], read: Callable[[Any], Any]) -> tuple[Any, _Turn | None, bool]:
        """Return (the result, the trace, or None if it must not be repeated, whether more than nodes was created)."""
        tracer = self.tracer
        nodes, parameters = tracer.builder.nodes, tracer.graph.parameters
        first, known, state = len(nodes), len(parameters), _state(tracer)
        unnamed = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node) and not leaf.name]
        around, tracer.inlined = tracer.inlined, set()
        particulars = tracer.particulars
        try:
            result = read(item)
            inlined = tracer.inlined
        finally:
            around.update(tracer.inlined)
            tracer.inlined = around
        made = nodes[first:]
        if tracer.builder.nodes is not nodes or tracer.particulars != particulars or not self._are_plain(made, inlined):
            return result, None, True
        places: dict[Any, int] = {}
        for i, leaf in enumerate(leaves):
            value = tracer.weights.get(id(leaf)) if isinstance(leaf, session.Parameter) else leaf
            if value is not None:
                places.setdefault(value, i)
        count = len(leaves)
        weights = [places.get(parameter, count) for parameter in parameters[known:]]
        places |= {node: count + i for i, node in enumerate(made)}
        rows = [_row(node, places) for node in made]
        if count in weights:
            return result, None, True
        placed = _placed(result, places, leaves)
        if placed is _CHANGED:
            return result, None, True
        own = [[(i, place) for i, place in enumerate(row[0]) if isinstance(place, int)] for row in rows]
        # A leaf known before is a parameter of the graph if the nodes of the iteration or its result read it.
        weights += [place for each in own for _, place in each if place < count]
        weights += [place for place in _places_in(placed) if place < count]
        weights = [i for i in dict.fromkeys(weights) if isinstance(leaves[i], session.Parameter)]
        names = {i: leaves[i].name for i in unnamed if leaves[i].name}
        turn = _Turn(leaves, rows, placed, weights, names, list(zip(made, own, strict=True)))
        return result, turn, state != _state(tracer)

    def _are_plain(self, nodes: Sequence[Node], inlined: set[FunctionSource]) -> bool:
        if not all(_is_plain(source.tree) for source in inlined):
            return False
        if not self.is_update and any(node.op.mutates for node in nodes):
            return False  # a gradient may reuse the call
        if not self.is_update and any(source.file.name for source in inlined):
            return False
        return not any(node.regions or isinstance(node.op, Gradient) for node in nodes)

    def _repeat(self, turn: _Turn, leaves: list[Any]) -> Any:
        tracer = self.tracer
        found: list[Any] = list(leaves)
        for i in turn.weights:
            found[i] = tracer.weight(leaves[i])
        for i, name in turn.names.items():
            leaves[i].name = leaves[i].name or name
        count = len(leaves)
        for node, places in turn.nodes:
            inputs = list(node.inputs)
            for i, place in places:
                inputs[i] = found[place]
            made = Node(node.op, inputs, node.type, node.name, node.instance, node.scope, node.frames, node.phase)
            made.in_strategy, made.out_strategy, made.attrs = node.in_strategy, node.out_strategy, dict(node.attrs)
            found.append(made)
        tracer.builder.nodes += found[count:]
        return _filled(turn.result, found, leaves)


def _describe(tracer: Tracer, item: Any, leaves: list[Any], key: list[Any]) -> bool:
    """Add the tensors of an item to `leaves` and the facts that the program may ask about it to `key`. Return whether
    it can be repeated."""
    kind = type(item)
    if kind is tuple or kind is list:
        key += (kind, len(item))
        return all(_describe(tracer, each, leaves, key) for each in item)
    if kind is session.Parameter:
        if id(item) in tracer.parameter_readers:
            return False
        leaves.append(item)
        key += (kind, _facts(item))
        return True
    if kind is Node or kind is Parameter:
        leaves.append(item)
        is_weak = bool(tracer.weak) and item in tracer.weak
        own = item.type
        told = (own.dtype.name, own.shape) if isinstance(own, TensorType) else own  # compares faster
        key += (kind, told, is_weak, bool(item.name), getattr(item, "op", None).__class__)
        return True
    key += (kind, repr(item)) if kind in _NUMBERS else (kind, id(item))  # repr differs for 0.0 and -0.0
    return True


def _row(node: Node, places: dict[Any, int]) -> tuple[Any, ...]:
    """Return all fields of a node: operands as places or as values shared by all iterations, then the rest."""
    inputs = tuple([
        places[v] if v in places else (v.type, v.value.tobytes()) if isinstance(v, Constant) else v
        for v in node.inputs
    ])
    return (
        inputs, node.op, node.type, node.name, node.instance, node.scope, node.frames, node.phase, node.in_strategy,
        node.out_strategy, node.attrs,
    )  # fmt: skip


def _placed(result: Any, places: dict[Any, int], leaves: list[Any]) -> Any:
    """Return a result with places for the values of the iteration; `_CHANGED` if it cannot be repeated."""
    if isinstance(result, tuple):
        found = tuple(_placed(each, places, leaves) for each in result)
        return _CHANGED if type(result) is not tuple or _CHANGED in found else found
    if isinstance(result, Value) and result in places:
        return _Part("place", places[result])
    for i, leaf in enumerate(leaves):
        if leaf is result:
            return _Part("leaf", i)
    return _CHANGED if isinstance(result, list | dict | set) else _Part("same", result)


def _places_in(placed: Any) -> list[int]:
    if isinstance(placed, tuple):
        return [place for each in placed for place in _places_in(each)]
    return [placed.value] if placed.kind == "place" else []


class _Part:
    """A part of a result. kind: "place" for a value of the iteration and "leaf" for a Parameter of the item, both by
    their index, or "same" for a value that is the same in every iteration."""

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Part) or self.kind != other.kind:
            return False
        if type(self.value) in _NUMBERS:
            return type(self.value) is type(other.value) and bool(self.value == other.value)
        return self.value is other.value

    __hash__ = None  # type: ignore[assignment]  # it is compared alone


def _filled(placed: Any, found: list[Any], leaves: list[Any]) -> Any:
    if isinstance(placed, tuple):
        return tuple(_filled(each, found, leaves) for each in placed)
    if placed.kind == "same":
        return placed.value
    return (found if placed.kind == "place" else leaves)[placed.value]


def _state(tracer: Tracer) -> tuple[Any, ...]:
    """Return the counters that an iteration leaves unchanged if it only creates nodes and reads nothing for the first
    time."""
    return (
        sum(tracer.draws.values()), len(tracer.warnings), len(tracer.errors), len(tracer.attributes), tracer.regions,
        len(tracer.constants), len(tracer.ignored), len(tracer.weak), tracer.ways, len(tracer.guarded), tracer.guard,
    )  # fmt: skip


def _is_plain(tree: Any) -> bool:
    """Return whether a function or an expression consists of syntax that can be repeated."""
    roots = tree.body if isinstance(tree, ast.FunctionDef) else [tree.body if isinstance(tree, ast.Lambda) else tree]
    return all(
        isinstance(node, _PLAIN)
        and not (isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load))
        for root in roots
        for node in ast.walk(root)
    )
