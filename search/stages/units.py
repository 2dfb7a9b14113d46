"""Finds the units of a network, its cells in a row that stages are made of.

A unit is what lies between two places where few values cross. Cells are opened until they stand beside others of their
class, as equal layers do, or have no cells inside; lists of cells are opened always. Operators of no unit's cells
belong to the unit ahead of them, as `assign_stages` gives them to the latest of what they read. Layers that are one
graph are as many units as the loop has turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any

from mspc.ir.graph import OFFLOAD, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import CELLS, each_of_cells
from mspc.ops.control.regions import body_of, runs_layers
from mspc.ops.control.structural import TupleGetItem

FEW = 4
"""Values that may cross a place between two units at most."""
MARKS = ("recompute", "keeps_communication", "gathers_again", "strategy_gen_mode")
"""Attributes that say what the script asks of the cell of an operator."""
CONTAINERS = ("CellList", "SequentialCell")
"""Cells that are only what is in them."""


@dataclass(frozen=True)
class Unit:
    """Cells that stay on one stage, by their scopes. kind: equal for units whose operators are equal, of which the
    script asks the same, and of whose parameters the same are trained."""

    cells: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class _Part:
    """Operators in a row of a body. scopes: of its cells; first, end: places of its operators."""

    scopes: tuple[str, ...]
    first: int
    end: int


def units_of(loop: Node, free: bool = False) -> list[Unit]:
    """The units of a loop over micro-batches, read but not compiled yet. free: the script's strategies do not
    count."""
    body = body_of(loop)
    given = zip(body.parameters, loop.inputs, strict=True)
    frozen = {inside for inside, p in given if isinstance(p, Parameter) and p.kind == "parameter" and not p.trainable}
    nodes = [node for node in body.nodes if node.phase == "forward"]
    places = [scope_of_node(node) for node in nodes]
    parts = _joined_by_name([*_parts(places, 0, len(nodes), _root(places))])
    parts = _joined_by_crossings(parts, nodes)
    units: list[Unit] = []
    for part in parts:
        own = nodes[part.first : part.end]
        kind = repr([(node.op, [(str(v.type), v in frozen) for v in node.inputs], _asked(node, free)) for node in own])
        cells = [tuple(each_of_cells(scope)) for scope in part.scopes]
        if len(part.scopes) == 1 and len(cells[0]) > 1:
            units += [Unit((cell,), kind) for cell in cells[0]]
        else:
            units.append(Unit(tuple(name for each in cells for name in each), kind))
    return units


def _asked(node: Node, free: bool) -> list[Any]:
    """What the script asks of an operator and of those inside of it: strategies, and marks without the cells' names."""
    marks = {key: bool(node.attrs[key]) for key in MARKS if key in node.attrs}
    marks |= {OFFLOAD: str(node.attrs[OFFLOAD]).partition(", ")[2]} if OFFLOAD in node.attrs else {}
    strategies = () if free else (node.in_strategy, node.out_strategy)
    return [marks, strategies, [_asked(inner, free) for region in node.regions for inner in region.nodes]]


def scope_of_node(node: Node) -> str:
    """The scope of an operator; of a loop over layers that of the layers."""
    if not runs_layers(node):
        return node.scope
    scopes = [inner.scope for inner in node.regions[-1].nodes if CELLS.search(inner.scope)]
    if not scopes:
        return node.scope
    found = CELLS.search(scopes[0])
    assert found is not None
    return scopes[0][: found.end()] + scopes[0][found.end() :].partition("/")[0]


def _root(places: Sequence[str]) -> str:
    """The longest scope that all operators are in."""
    common = [*places[0].split("/")] if places else []
    for place in places:
        own = place.split("/")
        common = [a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(common, own, strict=False))]
    return "/".join(common)


def _child(place: str, scope: str) -> str:
    """The cell right inside of `scope` that a place is in; "" where it is in none."""
    inside = place[len(scope) + 1 :] if place.startswith(f"{scope}/") else ""
    return f"{scope}/{inside.partition('/')[0]}" if inside else ""


def _parts(places: Sequence[str], first: int, end: int, scope: str) -> Iterator[_Part]:
    """The cells of a cell whose operators are those from `first` to `end`, or the cell itself."""
    runs: list[tuple[str, int, int]] = []
    at = first
    for child, group in groupby(places[first:end], lambda place: _child(place, scope)):
        count = len([*group])
        if child:
            runs.append((child, at, at + count))
        at += count
    alike = Counter(_class(child) for child in dict.fromkeys(child for child, *_ in runs))
    if not runs:
        yield _Part((scope,), first, end)
    for child, start, stop in runs:
        if _class(child) not in CONTAINERS and alike[_class(child)] > 1:
            yield _Part((child,), start, stop)
        else:
            yield from _parts(places, start, stop, child)


def _class(scope: str) -> str:
    """The class of a cell, which its scope ends in."""
    return scope.rpartition("-")[2].rpartition("/")[2]


def _joined_by_name(parts: Sequence[_Part]) -> list[_Part]:
    """A cell that is called again is one unit with all that lies between."""
    found: list[_Part] = []
    for part in parts:
        same = next((i for i, each in enumerate(found) if set(each.scopes) & set(part.scopes)), None)
        if same is None:
            found.append(part)
        else:
            found[same:] = [_join([*found[same:], part])]
    return found


def _joined_by_crossings(parts: Sequence[_Part], nodes: Sequence[Node]) -> list[_Part]:
    """Units between which too many values cross are one."""
    place: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            while isinstance(value, Node) and isinstance(value.op, TupleGetItem):
                value = value.inputs[0]
            if value in place:
                last[value] = i
        place[node] = i
    found: list[_Part] = []
    for part in parts:
        crossing = sum(place[value] < part.first <= end for value, end in last.items())
        if found and crossing > FEW:
            found[-1] = _join([found[-1], part])
        else:
            found.append(part)
    return found


def _join(parts: Sequence[_Part]) -> _Part:
    scopes = dict.fromkeys(scope for part in parts for scope in part.scopes)
    return _Part(tuple(scopes), parts[0].first, parts[-1].end)
