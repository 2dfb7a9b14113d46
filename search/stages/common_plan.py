"""Lets equal units have the layouts of one of them: a plan of all stages, wherever their borders are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.text.families import each_of_cells
from mspc.plans.files.plan_file import PlanFile
from mspc.search.stages.units import Unit


def common_plan(plan: PlanFile, units: Sequence[Unit], like: Sequence[int]) -> PlanFile:
    """The plan with what it says of unit like[i] said of unit i. Loops are left out, as others turn and carry more, and
    with them what takes partial sums of micro-batches."""
    cells: dict[str, list[str]] = {}
    own: set[str] = set()
    for unit, other in zip(units, like, strict=True):
        for name, model in zip(unit.cells, units[other].cells, strict=True):
            cells.setdefault(model, []).append(name)
            own.add(name)
    paths = {_path(model): [_path(name) for name in names] for model, names in cells.items()}
    known = {_path(name) for name in own}

    def of_operators(found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for key, value in found.items() for name in _names(key, cells, own, "/")}

    operators = {
        name: layouts for name, layouts in of_operators(plan.operators).items()
        if not any(layout.partial for layout in layouts) or any(name[:at] in own for at in _ends(name, "/"))
    }  # fmt: skip
    strategies = None if plan.strategies is None else of_operators(plan.strategies)
    return replace(
        plan, operators=operators, results=of_operators(plan.results), strategies=strategies,
        parameters={n: v for key, v in plan.parameters.items() for n in _names(key, paths, known, ".")},
        recompute=tuple(dict.fromkeys(n for key in plan.recompute for n in _names(key, cells, own, "/"))),
        offload=tuple(dict.fromkeys(n for key in plan.offload for n in _names(key, cells, own, "/"))),
        gather_again=tuple(dict.fromkeys(n for key in plan.gather_again for n in _names(key, paths, known, "."))),
        loops={},
    )  # fmt: skip


def _names(key: str, models: Mapping[str, Sequence[str]], cells: set[str], mark: str) -> Iterator[str]:
    """What a name of the plan becomes: of a cell that others are like the names in all of them, nothing in those."""
    for name in each_of_cells(key):
        cell = next((name[:at] for at in _ends(name, mark) if name[:at] in cells), None)
        if cell is None:
            yield name
        else:
            yield from (f"{each}{name[len(cell) :]}" for each in models.get(cell, ()))


def _ends(name: str, mark: str) -> Iterator[int]:
    yield len(name)
    at = name.rfind(mark)
    while at > 0:
        yield at
        at = name.rfind(mark, 0, at)


def _path(scope: str) -> str:
    """The beginning of the names of a cell's parameters, by the names of the lists and of the cell itself."""
    found: list[str] = []
    for part in reversed(scope.split("/")):
        name, _, kind = part.rpartition("-")
        found.insert(0, name)
        if not (len(found) == 1 and name.isdigit()) and kind not in ("CellList", "SequentialCell"):
            break
    return ".".join(found)
