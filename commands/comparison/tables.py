"""This module makes the tables of a comparison, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mspc.commands.comparison.all_differences import (
    Differences,
    Figure,
    RankDifferences,
    RankPair,
    RankSums,
)
from mspc.commands.comparison.difference import Difference
from mspc.commands.comparison.stage_tables import stage_tables
from mspc.commands.report.fitting import TextTable
from mspc.commands.report.shortened_tables import alike, layer_kind
from mspc.commands.report.text import group, size_text, sizes_text, time_text

NOTHING = "-"
LONGEST = 30
"""Characters of a name that is above a column; where one is longer it is "first" and "second"."""


def tables(found: Differences) -> list[TextTable]:
    """All that differs, the cause before what follows from it."""
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
    """What is above the columns of the two."""
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
            _rows(kind.operators), below=(2, 3, 4),
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
            d.cell or NOTHING, both_text(d.first.sent, d.second.sent),
            sizes_text(d.first.bytes_sent, d.second.bytes_sent),
            both_text(_time(d.first.seconds), _time(d.second.seconds)),
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
    """Sums of the step; of some names alone where any are given."""
    return TextTable(
        f"figures of a step; on {where_of(sums.ranks, names)}", ("figure", *names, "second - first"),
        [_figure(figure) for figure in sums.figures if not only or figure.name in only], (1, 2, 3),
    )  # fmt: skip


def where_of(ranks: RankPair, names: tuple[str, str]) -> str:
    """Which ranks of the two a table is of."""
    if ranks[0] == ranks[1]:
        return ranks_text(ranks[0])
    return f"{ranks_text(ranks[0])} of {names[0]}, {ranks_text(ranks[1])} of {names[1]}"


def _rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    return [(d.name, d.line or NOTHING, d.cell or NOTHING, _text(d.first), _text(d.second)) for d in differences]


def _text(text: str | None) -> str:
    return NOTHING if text is None else text or "replicated"


def both_text(first: object, second: object) -> str:
    """What is in a column for the two."""
    return str(first) if first == second else f"{first} -> {second}"


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else time_text(seconds)


def _figure(figure: Figure) -> tuple[str, ...]:
    more = figure.second - figure.first
    sign = "-" if more < 0 else "+"
    units: dict[str, Callable[[float], str]] = {"bytes": lambda n: size_text(int(n)), "seconds": time_text}
    shown = units.get(figure.unit, lambda n: str(int(n)))
    return figure.name, shown(figure.first), shown(figure.second), sign + shown(abs(more))


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0 to 7`; what are no neighbours as tables have groups."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    neighbours = tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]} to {ranks[-1]}" if neighbours else f"ranks {group(tuple(ranks))}"
