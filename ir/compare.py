"""Comparison of graphs. Tests use it to prove that a printed text reads back to an equal graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.opaque import Literal

_NODE_FIELDS = (
    "type", "name", "instance", "scope", "phase", "in_strategy", "out_strategy", "strategy", "in_layouts", "place",
    "layout", "attrs", "frames",
)  # fmt: skip
_PARAMETER_FIELDS = ("name", "kind", "type", "trainable", "layout", "global_type", "attrs")


def difference(a: Graph, b: Graph) -> str:
    """Return the first difference in words, "" for equal graphs. A `forward` outside the graph counts as none."""
    mine, other = a.graphs(), b.graphs()
    places: dict[Value, str] = {}
    for graph in (*mine, *other):
        where = f"@{graph.name}: " if graph not in (a, b) else ""
        places |= {p: f"{where}parameter {i}" for i, p in enumerate(graph.parameters)}
        places |= {n: f"{where}%{i}" for i, n in enumerate(graph.nodes)}
    found = next(_differences(a, b, places), "")
    if found or len(mine) != len(other):
        return found or f"{len(mine) - 1} and {len(other) - 1} regions"
    inner = (
        f"@{left.name}: {text}"
        for left, right in zip(mine[1:], other[1:], strict=True)
        for text in _differences(left, right, places)
    )
    return next(inner, "")


def _differences(a: Graph, b: Graph, places: dict[Value, str]) -> Iterator[str]:
    if a.name != b.name:
        yield f"the names are {a.name} and {b.name}"
    if not _same(a.attrs, b.attrs):
        yield f"the attributes are {a.attrs} and {b.attrs}"
    for what in ("parameters", "nodes", "results"):
        if len(getattr(a, what)) != len(getattr(b, what)):
            yield f"{len(getattr(a, what))} and {len(getattr(b, what))} {what}"
            return
    for left, right in zip(a.parameters, b.parameters, strict=True):
        yield from _fields(f"parameter {left.name}", left, right, _PARAMETER_FIELDS)
    for i, (left, right) in enumerate(zip(a.nodes, b.nodes, strict=True)):
        yield from _nodes(f"%{i} {left.label}", left, right, places)
    for i, (left, right) in enumerate(zip(a.results, b.results, strict=True)):
        yield from _operands(f"result {i}", left, right, places)
    if a.returns_tuple != b.returns_tuple:
        yield f"returns_tuple is {a.returns_tuple} and {b.returns_tuple}"


def _nodes(where: str, left: Node, right: Node, places: dict[Value, str]) -> Iterator[str]:
    if left.op.name != right.op.name:
        yield f"{where}: the operators are {left.op.name} and {right.op.name}"
    attributes = left.op.attributes(), right.op.attributes()
    if not _same(*map(dict, attributes)):
        yield f"{where}: the operators' attributes are {dict(attributes[0])} and {dict(attributes[1])}"
    if type(left.op) is not type(right.op):
        yield f"{where}: the operators' classes are {type(left.op).__name__} and {type(right.op).__name__}"
    if len(left.inputs) != len(right.inputs):
        yield f"{where}: {len(left.inputs)} and {len(right.inputs)} operands"
        return
    for i, pair in enumerate(zip(left.inputs, right.inputs, strict=True)):
        yield from _operands(f"{where}: operand {i}", *pair, places)
    yield from _fields(where, left, right, _NODE_FIELDS)
    regions = [[region.name for region in node.regions] for node in (left, right)]
    if regions[0] != regions[1]:
        yield f"{where}: the regions are {regions[0]} and {regions[1]}"
    forwards = [(places[n.forward], n.forward_input) if n.forward in places else None for n in (left, right)]
    if forwards[0] != forwards[1]:
        yield f"{where}: gradient of {forwards[0]} and {forwards[1]}"


def _fields(where: str, left: Node | Parameter, right: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        values = getattr(left, name), getattr(right, name)
        if not _same(*values):
            yield f"{where}: {name} is {values[0]} and {values[1]}"


def _operands(where: str, left: Value, right: Value, places: dict[Value, str]) -> Iterator[str]:
    if isinstance(left, Constant) and isinstance(right, Constant):
        if left.type != right.type or left.value.tobytes() != right.value.tobytes():
            yield f"{where}: {left.type} {left.value} and {right.type} {right.value}"
    elif isinstance(left, Literal) and isinstance(right, Literal):
        if left.type != right.type or not _same(left.value, right.value):
            yield f"{where}: {left.type} {left.value} and {right.type} {right.value}"
    elif places.get(left, "outside") != places.get(right, "elsewhere"):
        yield f"{where}: {places.get(left, left)} and {places.get(right, right)}"


def _same(left: Any, right: Any) -> bool:
    """Compare two values; here NaN equals itself, True is not 1 and 1 is not 1.0."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        return left.type == right.type and left.value.tobytes() == right.value.tobytes()
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return _same_members(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return _same_members([*left.items()], [*right.items()])
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    if isinstance(left, int | float) or isinstance(right, int | float):
        return left.__class__ is right.__class__ and left == right
    return bool(left == right)


def _same_members(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(map(_same, left, right))
