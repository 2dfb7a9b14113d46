"""This module makes the tables of what two pipelines differ in."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.commands.comparison.difference import Difference
from mspc.commands.comparison.stages import StageDifferences
from mspc.commands.report.fitting import TextTable
from mspc.commands.report.text import size_text, time_text

NOTHING = "-"


def stage_tables(found: StageDifferences | None, names: tuple[str, str]) -> list[TextTable]:
    """Settings first, then what follows from them; tables without rows are left out."""
    if found is None:
        return []
    settings = [(d.name, str(d.first), str(d.second)) for d in found.settings]
    if found.step is not None:
        settings.append(("a step, with all waits", *(time_text(seconds) for seconds in found.step)))
    cells = [(cell or NOTHING, str(count), *texts) for cell, count, texts in moved_cells(found.moved)]
    made = [
        TextTable("the pipeline", ("what", *names), settings),
        TextTable(
            "stages: idle part of a step, and micro-batches that they keep",
            ("stage", *(f"{what}, {name}" for what in ("idle", "keeps") for name in names)),
            [
                (str(d.stage), *map(_share, d.idle), *(NOTHING if n is None else str(n) for n in d.keeps))
                for d in found.stages
            ],
            (0, 1, 2, 3, 4),
        ),
        TextTable(
            "messages between stages, of a rank in a step",
            ("border", *(f"{what}, {name}" for what in ("messages", "bytes") for name in names)),
            [
                (f"{d.source} to {d.target}", *map(str, d.messages), *map(size_text, d.bytes))
                for d in found.borders
            ],
            (1, 2, 3, 4),
        ),
        TextTable(
            f"operators in another stage: {len(found.moved)}", ("cell", "operators", *names), cells, (1,), below=(0,)
        ),
    ]  # fmt: skip
    return [table for table in made if table.rows]


def moved_cells(moved: Sequence[Difference]) -> list[tuple[str, int, tuple[str, str]]]:
    """(cell, operators, stages in both) of the largest cells whose operators that moved have all moved alike."""
    told = [(d.cell, ((d.first or "").partition(":")[0], (d.second or "").partition(":")[0])) for d in moved]
    ways: dict[str, set[tuple[str, str]]] = {}
    for cell, texts in told:
        for outer in _around(cell):
            ways.setdefault(outer, set()).add(texts)
    counts: dict[tuple[str, tuple[str, str]], int] = {}
    for cell, texts in told:
        largest = next((outer for outer in _around(cell) if len(ways[outer]) == 1), cell)
        counts[largest, texts] = counts.get((largest, texts), 0) + 1
    return [(cell, count, texts) for (cell, texts), count in counts.items()]


def _around(cell: str) -> list[str]:
    """A cell and those around it, the largest first."""
    parts = cell.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _share(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
