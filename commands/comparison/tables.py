"""Tables of a comparison, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mspc.commands.comparison.all_differences import (
    GRADIENT_OF,
    Difference,
    Differences,
    Figure,
    RankDifferences,
    RankPair,
    RankSums,
    SentDifference,
    StageDifferences,
)
from mspc.commands.facts.graph import cell_of
from mspc.commands.report.tables import (
    ALL,
    ELLIPSIS,
    GAP,
    MAX_KINDS,
    OUTSIDE,
    TextTable,
    alike,
    clipped,
    counted,
    group,
    layer_kind,
    line_width,
    most_expensive_kinds,
    named_cells,
    print_line,
    print_shortened,
    size_text,
    sizes_text,
    time_text,
)

NOTHING = "-"
LONGEST = 30
"""Most characters of a name in a column heading; if one is longer, the headings are "first" and "second"."""


def tables(found: Differences) -> list[TextTable]:
    """Return the tables of all differences, causes before effects."""
    names = names_of(found)
    made = [
        TextTable(
            "the two are not of one kind", ("what", *names),
            [(d.name, _text(d.first), _text(d.second)) for d in found.header],
        ),
        TextTable(
            f"layouts that differ: {len(found.layouts)}", ("operator", "cell", *names),
            [(d.name, d.cell, _text(d.first), _text(d.second)) for d in found.layouts], below=(1,),
        ),
        memory_table(found.memory, names),
        *stage_tables(found.stages, names),
        TextTable(
            f"inputs, parameters and outputs that differ: {len(found.tensors)}", ("name", "kind", *names),
            [(d.name, d.cell, _text(d.first), _text(d.second)) for d in found.tensors], below=(2, 3),
        ),
    ]  # fmt: skip
    for kind in found.kinds:
        made += _tables_of(kind, names)
    return [table for table in made if table.rows]


def names_of(found: Differences) -> tuple[str, str]:
    """Return the headings of the columns of the two."""
    return found.names if max(map(len, found.names)) <= LONGEST else ("first", "second")


def memory_table(found: Sequence[Difference], names: tuple[str, str], joined: bool = False) -> TextTable:
    """Return the cells and parameters that two plans treat in different ways. joined: equal layers have one row."""
    rows = {(d.name, d.cell, _text(d.first), _text(d.second)): 1 for d in found}
    if joined:
        rows = {key: len(those) for key, those in alike(rows, lambda row: (layer_kind(row[0]), *row[1:])).items()}
    several = any(count > 1 for count in rows.values())
    columns = ("name", *(["times"] * several), "treatment", *names)
    return TextTable(
        f"cells and parameters that plans treat in different ways: {len(found)}", columns,
        [(name, *([str(count)] * several), *rest) for (name, *rest), count in rows.items()],
        (1,) if several else (), below=tuple(len(columns) - i for i in (2, 1)),
    )  # fmt: skip


def _tables_of(kind: RankDifferences, names: tuple[str, str]) -> list[TextTable]:
    where = where_of(kind.ranks, names)
    collectives = [
        (d.name, d.line or NOTHING, _text(d.first), _text(d.second), d.cell or NOTHING, " / ".join(d.why) or NOTHING)
        for d in kind.collectives
    ]
    made = [
        TextTable(
            f"operators that differ: {len(kind.operators)}; types on {where}", ("operator", "line", "cell", *names),
            [(d.name, d.line or NOTHING, d.cell or NOTHING, _text(d.first), _text(d.second)) for d in kind.operators],
            below=(2, 3, 4),
        ),
        TextTable(
            f"collectives that differ: {len(kind.collectives)}; on {where}",
            ("collective", "line", *names, "cell", "reason"), collectives, below=(5, 4, 2, 3),
        ),
    ]  # fmt: skip
    for sums in kind.sums:
        made += _tables_of_sums(sums, names)
    return made


def _tables_of_sums(sums: RankSums, names: tuple[str, str]) -> list[TextTable]:
    where = where_of(sums.ranks, names)
    scopes = [
        (
            d.cell or NOTHING, _both_text(d.first.sent, d.second.sent),
            sizes_text(d.first.bytes_sent, d.second.bytes_sent),
            _both_text(_time(d.first.seconds), _time(d.second.seconds)),
        )
        for d in sums.scopes
    ]  # fmt: skip
    return [
        TextTable(
            f"cells whose sums differ; on {where}", ("cell", "tensors sent", "bytes sent", "time of its nodes"), scopes,
            below=(0,),
        ),
        figures_table(sums, names),
    ]


def figures_table(sums: RankSums, names: tuple[str, str], only: Sequence[str] = ()) -> TextTable:
    """Return the table of the sums of the step. only: names of the figures to include, all if empty."""
    return TextTable(
        f"figures of a step; on {where_of(sums.ranks, names)}", ("figure", *names, "second - first"),
        [_figure(figure) for figure in sums.figures if not only or figure.name in only], (1, 2, 3),
    )  # fmt: skip


def where_of(ranks: RankPair, names: tuple[str, str]) -> str:
    """Return the ranks of the two that a table describes, in words."""
    if ranks[0] == ranks[1]:
        return ranks_text(ranks[0])
    return f"{ranks_text(ranks[0])} of {names[0]}, {ranks_text(ranks[1])} of {names[1]}"


def _text(text: str | None) -> str:
    return NOTHING if text is None else text or "replicated"


def _both_text(first: object, second: object) -> str:
    return str(first) if first == second else f"{first} -> {second}"


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else time_text(seconds)


def _figure(figure: Figure) -> tuple[str, ...]:
    more = figure.second - figure.first
    sign = "-" if more < 0 else "+"
    units: dict[str, Callable[[float], str]] = {"bytes": lambda n: size_text(int(n)), "seconds": time_text}
    shown = units.get(figure.unit, lambda n: str(int(n)))
    return figure.name, shown(figure.first), shown(figure.second), sign + shown(abs(more))


def stage_tables(found: StageDifferences | None, names: tuple[str, str]) -> list[TextTable]:
    """Return the tables of a pipeline's differences, settings first; tables without rows are left out."""
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
            ("stage", *(f"{figure}, {name}" for figure in ("idle", "keeps") for name in names)),
            [
                (str(d.stage), *(NOTHING if share is None else f"{share:.1%}" for share in d.idle),
                 *(NOTHING if n is None else str(n) for n in d.keeps))
                for d in found.stages
            ],
            (0, 1, 2, 3, 4),
        ),
        TextTable(
            "messages between stages, of a rank in a step",
            ("border", *(f"{figure}, {name}" for figure in ("messages", "bytes") for name in names)),
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
    """Return (cell, operators, stages in both) of the largest cells in which all moved operators moved alike."""
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
    """Return a cell and the cells that contain it, the largest first."""
    parts = cell.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return `rank 0`, `ranks 0 to 7`, or, for ranks that are not consecutive, the text of a group."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    neighbours = tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]} to {ranks[-1]}" if neighbours else f"ranks {group(tuple(ranks))}"


MAX_COLLECTIVES = 10
"""Most collectives that are listed, by the change in their bytes."""
MAX_MEMORY = 5
"""Most cells and parameters with different treatment that are listed."""
MAX_STAGES = 8
"""Most stages, boundaries and cells in another stage that are listed."""
MIN_NAME = 20
"""Fewest characters of a cell's name in narrow tables."""
MAX_RANKS = 4
"""Most kinds of ranks beside the first that are reported."""
FIGURES = ("operators", "collectives", "bytes sent", "memory: together", "memory: on the host", "time: step")
"""Figures of a step that a summary contains."""
NO_RANKS: RankPair = ((), ())


def print_differences(found: Differences) -> None:
    """Print the summary, with the programs of the first kind of ranks."""
    names = names_of(found)
    first = found.kinds[0] if found.kinds else RankDifferences(NO_RANKS, [], [], [])
    for told in found.header:
        print_line(f"{told.name}: {told.first} in {names[0]}, {told.second} in {names[1]}")
    tables = [
        *((table, MAX_STAGES) for table in stage_tables(found.stages, names)),
        (cells_table(found, first, names), MAX_KINDS),
        (memory_table(found.memory, names, joined=True), MAX_MEMORY),
        (changes_table(first.collectives), MAX_COLLECTIVES),
        *((figures_table(sums, names, FIGURES), len(FIGURES)) for sums in first.sums[:1]),
    ]
    for table, most in tables:
        if table.rows:
            print_shortened(table, most)
            print()
    if found.tensors:
        kinds = alike(found.tensors, lambda tensor: tensor.cell)
        counts = ", ".join(counted(len(those), kind) for kind, those in kinds.items())
        print_line(f"inputs, parameters and outputs that differ: {len(found.tensors)} ({counts})")
    others = _others(found, names)
    for line in others[:MAX_RANKS]:
        print_line(line)
    if (more := len(others) - MAX_RANKS) > 0:
        print_line(f"{ELLIPSIS} and {counted(more, 'more kind')} of ranks")
    print_line(f"{ALL} shows every layout, tensor, operator, collective and cell that differs; --json FILE writes them")


def cells_table(found: Differences, first: RankDifferences, names: tuple[str, str]) -> TextTable:
    """Return the number of differences of every kind for every kind of cell, and the bytes that it sends in both. If
    there are too many kinds of cells, those with the largest change in bytes come first, then those with most
    differences."""
    layouts = alike(found.layouts, lambda told: layer_kind(told.cell))
    operators = alike(first.operators, lambda told: layer_kind(told.cell))
    collectives = alike(first.collectives, lambda told: layer_kind(cell_of(told.cell)))
    scopes = [scope for sums in first.sums[:1] for scope in sums.scopes]
    sums = alike(scopes, lambda told: layer_kind(told.cell))
    sent = {
        kind: (sum(each.first.bytes_sent for each in those), sum(each.second.bytes_sent for each in those))
        for kind, those in sums.items()
    }
    numbers = {"layouts": layouts, "operators": operators, "collectives": collectives}
    numbers = {name: kinds for name, kinds in numbers.items() if kinds}

    def weight(kind: str) -> tuple[int, ...]:
        before, after = sent.get(kind, (0, 0))
        return abs(after - before), sum(len(kinds.get(kind, ())) for kinds in numbers.values())

    unequal = [kind for kind, (before, after) in sent.items() if before != after]
    inside, shown = named_cells(most_expensive_kinds([*layouts, *operators, *collectives, *unequal], weight))
    timed = f"; on {where_of(first.ranks, names)}" if first.ranks[0] else ""
    columns = ("cell", *numbers, *(["bytes sent"] if unequal else []))
    rows = [
        [
            name, *(str(len(kinds.get(kind, ())) or OUTSIDE) for kinds in numbers.values()),
            *([sizes_text(*sent[kind]) if kind in sent else OUTSIDE] if unequal else []),
        ]
        for kind, name in shown
    ]  # fmt: skip
    return _in_one_line(f"differences by kind of cell{inside}{timed}", columns, rows, tuple(range(1, len(columns))))


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
            (f"{name.removeprefix(GRADIENT_OF)} gradient" if name.startswith(GRADIENT_OF) else inside or OUTSIDE)
            + ": " + " -> ".join(operator for operator in dict.fromkeys(operators) if operator),
            str(len(those)), sizes_text(len(those) * before, len(those) * after), line or OUTSIDE,
        ]
        for (name, operators, (before, after), line, cell), those in changes
        for inside in [cell.rpartition("/")[2]]
    ]  # fmt: skip
    title = "collectives whose bytes change most in a step"
    return _in_one_line(title, ("collective", "times", "bytes sent", "line"), rows, (1, 2))


def _in_one_line(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: tuple[int, ...]
) -> TextTable:
    """Return a table with the first column clipped to the width that the others leave in a line."""
    taken = sum(len(GAP) + max(len(row[i]) for row in (columns, *rows)) for i in range(1, len(columns)))
    room = max(MIN_NAME, line_width() - taken)
    return TextTable(title, tuple(columns), [(clipped(name, room), *rest) for name, *rest in rows], numbers)


def _others(found: Differences, names: tuple[str, str]) -> list[str]:
    """Return a line for every kind of ranks, and for every group with equal sums in it, except the first."""
    lines: list[str] = []
    for kind in found.kinds:
        for sums in kind.sums:
            told = [counted(len(kind.operators), "operator"), counted(len(kind.collectives), "collective")]
            for figure in sums.figures:
                if figure.name == "bytes sent":
                    told.append(f"{sizes_text(int(figure.first), int(figure.second))} sent")
            lines.append(f"{where_of(sums.ranks, names)}: {', '.join(told)}")
    return lines[1:]
