"""The summary of a comparison fits one screen: differences by kind of cell, what changes the most bytes, the totals.

How many lines it has does not depend on how many layers a network has.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.commands.comparison.all_differences import GRADIENT_OF, Differences, RankDifferences, RankPair, SentDifference
from mspc.commands.comparison.stage_tables import stage_tables
from mspc.commands.comparison.tables import figures_table, memory_table, names_of, where_of
from mspc.commands.facts.model import cell_of
from mspc.commands.report.cells import MOST_KINDS, OUTSIDE, most_expensive_kinds, named_cells
from mspc.commands.report.fitting import GAP, TextTable
from mspc.commands.report.shortened_tables import ALL, ELLIPSIS, alike, clipped, layer_kind, print_shortened
from mspc.commands.report.table import line_width, print_line
from mspc.commands.report.text import sizes_text

MOST = 10
"""Collectives that are named, those that change the most bytes."""
MOST_MEMORY = 5
"""Cells and parameters that plans treat otherwise which are named."""
MOST_STAGES = 8
"""Stages, borders and cells in another stage that are named."""
LEAST_NAME = 20
"""Characters of a cell's name that narrow tables have at least."""
MOST_RANKS = 4
"""Kinds of ranks beside the first that are told of."""
FIGURES = ("operators", "collectives", "bytes sent", "memory: together", "memory: on the host", "time: step")
"""Figures of a step that a summary has."""
NO_RANKS: RankPair = ((), ())


def print_differences(found: Differences) -> None:
    """Print the summary, of the ranks' programs that of the first kind."""
    names = names_of(found)
    first = found.kinds[0] if found.kinds else RankDifferences(NO_RANKS, [], [], [])
    for told in found.header:
        print_line(f"{told.name}: {told.first} in {names[0]}, {told.second} in {names[1]}")
    tables = [
        *((table, MOST_STAGES) for table in stage_tables(found.stages, names)),
        (cells_table(found, first, names), MOST_KINDS),
        (memory_table(found.memory, names, joined=True), MOST_MEMORY),
        (changes_table(first.collectives), MOST),
        *((figures_table(sums, names, FIGURES), len(FIGURES)) for sums in first.sums[:1]),
    ]
    for table, most in tables:
        if table.rows:
            print_shortened(table, most)
            print()
    if found.tensors:
        kinds = alike(found.tensors, lambda tensor: tensor.cell)
        counts = ", ".join(_counted(len(those), kind) for kind, those in kinds.items())
        print_line(f"inputs, parameters and outputs that differ: {len(found.tensors)} ({counts})")
    others = _others(found, names)
    for line in others[:MOST_RANKS]:
        print_line(line)
    if (more := len(others) - MOST_RANKS) > 0:
        print_line(f"{ELLIPSIS} and {_counted(more, 'more kind')} of ranks")
    print_line(f"{ALL} shows every layout, tensor, operator, collective and cell that differs; --json FILE writes them")


def cells_table(found: Differences, first: RankDifferences, names: tuple[str, str]) -> TextTable:
    """How many of every kind of difference every kind of cell has, and the bytes that it sends in both; where there are
    too many kinds of cells those come first whose bytes change most, then those with most differences."""
    layouts = alike(found.layouts, lambda told: layer_kind(told.cell))
    operators = alike(first.operators, lambda told: layer_kind(told.cell))
    collectives = alike(first.collectives, lambda told: layer_kind(cell_of(told.cell)))
    scopes = [scope for sums in first.sums[:1] for scope in sums.scopes]
    sums = alike(scopes, lambda told: layer_kind(told.cell))
    sent = {
        kind: (sum(each.first.bytes_sent for each in those), sum(each.second.bytes_sent for each in those))
        for kind, those in sums.items()
    }
    counted = {"layouts": layouts, "operators": operators, "collectives": collectives}
    counted = {name: kinds for name, kinds in counted.items() if kinds}

    def weight(kind: str) -> tuple[int, ...]:
        before, after = sent.get(kind, (0, 0))
        return abs(after - before), sum(len(kinds.get(kind, ())) for kinds in counted.values())

    unequal = [kind for kind, (before, after) in sent.items() if before != after]
    inside, shown = named_cells(most_expensive_kinds([*layouts, *operators, *collectives, *unequal], weight))
    timed = f"; on {where_of(first.ranks, names)}" if first.ranks[0] else ""
    columns = ("cell", *counted, *(["bytes sent"] if unequal else []))
    rows = [
        [
            name, *(str(len(kinds.get(kind, ())) or OUTSIDE) for kinds in counted.values()),
            *([sizes_text(*sent[kind]) if kind in sent else OUTSIDE] if unequal else []),
        ]
        for kind, name in shown
    ]  # fmt: skip
    return _in_one_line(f"what differs, by kind of cell{inside}{timed}", columns, rows, tuple(range(1, len(columns))))


def changes_table(collectives: Sequence[SentDifference]) -> TextTable:
    """Return the collectives that differ, those that change the most bytes first, with one row for equal ones of
    repeated layers."""
    merged = alike(
        collectives,
        lambda told: (layer_kind(told.name), told.operators, told.bytes, told.line, layer_kind(told.cell)),
    )
    changes = sorted(merged.items(), key=lambda entry: -len(entry[1]) * abs(entry[0][2][1] - entry[0][2][0]))
    rows = [
        [
            _ways(operators) + (f" of the {name}" if name.startswith(GRADIENT_OF) else _inside(cell)),
            str(len(those)), sizes_text(len(those) * before, len(those) * after), line or OUTSIDE,
        ]
        for (name, operators, (before, after), line, cell), those in changes
    ]  # fmt: skip
    title = "collectives whose bytes change most in a step"
    return _in_one_line(title, ("collective", "times", "bytes sent", "line"), rows, (1, 2))


def _ways(operators: tuple[str, str]) -> str:
    """Return `AllReduce`, or `AllReduce -> AllGather` if the two have another operator each."""
    return " -> ".join(name for name in dict.fromkeys(operators) if name)


def _inside(cell: str) -> str:
    """Return ` in attention-Attention`."""
    inside = cell.rpartition("/")[2]
    return f" in {inside}" * bool(inside)


def _in_one_line(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: tuple[int, ...]
) -> TextTable:
    """A table whose first column is clipped to what the others leave of a line."""
    taken = sum(len(GAP) + max(len(row[i]) for row in (columns, *rows)) for i in range(1, len(columns)))
    room = max(LEAST_NAME, line_width() - taken)
    return TextTable(title, tuple(columns), [(clipped(name, room), *rest) for name, *rest in rows], numbers)


def _others(found: Differences, names: tuple[str, str]) -> list[str]:
    """A line for every kind of ranks, or sums of such ones, behind the first."""
    lines: list[str] = []
    for kind in found.kinds:
        for sums in kind.sums:
            told = [_counted(len(kind.operators), "operator"), _counted(len(kind.collectives), "collective")]
            for figure in sums.figures:
                if figure.name == "bytes sent":
                    told.append(f"{sizes_text(int(figure.first), int(figure.second))} sent")
            lines.append(f"{where_of(sums.ranks, names)}: {', '.join(told)}")
    return lines[1:]


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"
