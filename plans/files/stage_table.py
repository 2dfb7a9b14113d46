"""Reads and writes what a plan says of stages: how many there are, their schedule, and which cells are where.

    [stages]
    count = 4
    schedule = "1f1b"
    chunks = 2
    micro_batches = 8
    [stages.cells]
    "Default/network-Net/layers-CellList/[0..3]-Layer" = 0
    "Default/network-Net/layers-CellList/[4..7]-Layer" = 1

A cell goes by its scope, equal cells in a row together. Its number is that of the chunk that it is in: with one chunk a
stage, as without `chunks`, the stage itself; else chunks are numbered as values flow, and are on stages in rounds, or
there and back, as the schedule has them. The ranks of the plan are those of one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import check_keys, quoted
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import each_of_cells, name_of_cells

KEY = "stages"
KEYS = ("count", "schedule", "chunks", "micro_batches", "cells")


@dataclass(frozen=True)
class StagePlan:
    """The stages of a network. count: of them, 1 for none, whatever the script says. schedule: as scripts name it.
    chunks: of a stage, in rounds or there and back. cells: the chunk of each, by its scope, in the order of the
    values. tries: of a search, which cuts as many micro-batches as it says (0: as the script does), and may have more
    stages than that."""

    count: int
    schedule: str
    micro_batches: int
    chunks: int = 1
    cells: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    tries: bool = False

    @cached_property
    def _each(self) -> dict[str, int]:
        return {name: chunk for key, chunk in self.cells.items() for name in each_of_cells(key)}

    def chunk_of(self, scope: str) -> int | None:
        """The chunk of a cell, or of equal cells that are one graph; None where others decide on it."""
        return self._each.get(next(each_of_cells(scope)))

    @property
    def interleaves(self) -> bool:
        """Whether a stage has several chunks."""
        return self.chunks > 1


def together(cells: Mapping[str, int]) -> dict[str, int]:
    """The same with cells in a row that are of one chunk, and of names that count up, as one entry."""
    found: dict[str, int] = {}
    run: list[str] = []
    for name, chunk in (*cells.items(), ("", -1)):
        if run and (chunk != cells[run[0]] or not name_of_cells([*run, name])):
            found[name_of_cells(run) if len(run) > 1 else run[0]] = cells[run[0]]
            run = []
        run.append(name)
    return found


def stage_lines(plan: StagePlan) -> Iterator[str]:
    """The lines of a file that say so."""
    yield from ("", f"[{KEY}]", f"count = {plan.count}", f"schedule = {quoted(plan.schedule)}")
    if plan.chunks > 1:
        yield f"chunks = {plan.chunks}"
    yield f"micro_batches = {plan.micro_batches}"
    yield from ("", f"[{KEY}.cells]") if plan.cells else ()
    yield from (f"{quoted(name)} = {chunk}" for name, chunk in plan.cells.items())


def read_stages(shown: str, found: Any) -> StagePlan:
    """What a file's table says; `shown` names the file. Raises MspcError."""
    if not isinstance(found, dict):
        raise MspcError(f"{shown}: {KEY} is {found!r}, not a table [{KEY}]")
    table = cast("dict[str, Any]", found)
    check_keys(shown, table, KEYS, f"[{KEY}]")
    count = _number(shown, table, "count", 1)
    chunks = _number(shown, {"chunks": 1, **table}, "chunks", 1)
    schedule, cells = table.get("schedule", "1f1b"), table.get("cells", {})
    if not isinstance(schedule, str):
        raise MspcError(f"{shown}: [{KEY}] has the schedule {schedule!r}, not a name as \"1f1b\"")
    if not isinstance(cells, dict):
        raise MspcError(f"{shown}: there is no table [{KEY}.cells]")
    for name, chunk in cast("dict[str, Any]", cells).items():
        if type(chunk) is not int or not 0 <= chunk < count * chunks:
            what = "chunks" if chunks > 1 else "stages"
            raise MspcError(f"{shown}: {name!r} is of {chunk!r}, and there are {what} 0 to {count * chunks - 1}")
    return StagePlan(
        count, schedule, _number(shown, table, "micro_batches", 1), chunks, cast("dict[str, int]", cells)
    )  # fmt: skip


def _number(shown: str, table: Mapping[str, Any], key: str, least: int) -> int:
    value = table.get(key)
    if type(value) is not int or value < least:
        said = f"{key} is {value!r}" if key in table else f"[{KEY}] does not say {key}"
        raise MspcError(f"{shown}: {said}, not a number from {least}")
    return value
