"""Printing of tables: as wide as the terminal and with bold headings on one; as JSON on request. The summary of a
compile."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mspc.commands.facts.compiled import Report
from mspc.commands.facts.graph import GRADIENTS, StepTimes
from mspc.commands.facts.memory import MemoryRow
from mspc.commands.facts.rows import CollectiveRow, OperatorRow
from mspc.commands.report.streams import columns_setting, is_terminal, terminal_columns
from mspc.ir.diagnostics import listed, shown
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.late_dataclass import dataclass

OTHERWISE = 100
"""Width of a line without a terminal and without COLUMNS, so that pipes always get the same text."""
REPORT_VERSION = 1
"""Version of the format of reports. It increases if a field is removed or changes its meaning, not if one is added."""
BOLD, PLAIN = "\033[1m", "\033[0m"


def print_table(table: TextTable) -> None:
    """Print to stdout, in lines as wide as the terminal, COLUMNS or `OTHERWISE`."""
    fitted = fit(table, line_width())
    # Escape codes are for a terminal that supports them.
    if not is_terminal(sys.stdout) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        print("\n".join(fitted.lines))
        return
    bold = [f"{BOLD}{line}{PLAIN}" for line in (*fitted.title, *fitted.headings)]
    print("\n".join([*bold, *fitted.rows]))


def print_line(text: str) -> None:
    """Print a line to stdout, wrapped at spaces on a terminal and unchanged otherwise."""
    text = shown(text)
    print("\n".join(broken(text, line_width())) if is_terminal(sys.stdout) else text)


def line_width() -> int:
    """Return the width of a line of stdout in characters."""
    return terminal_columns(sys.stdout) or columns_setting() or OTHERWISE


def write_report(path: Path, command: str, content: Mapping[str, Any], status: int = 0) -> None:
    """Write the report of a command as JSON: an object with the version of the format, the command, its exit status,
    and the command's own fields. Raise MspcError if the file cannot be written."""
    write_json({"version": REPORT_VERSION, "command": command, "status": status, **content}, path)


def write_json(content: Any, path: Path) -> None:
    """Write `content` as JSON; `-` is stdout. `write_report` writes the reports of commands. Raise MspcError if the
    file cannot be written."""
    text = json.dumps(content, indent=1) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    write_atomically(path, lambda file: file.write(text.encode()))


GAP = "  "
INDENT = 4
NARROWEST = 20
"""Least width for which a table is laid out."""
_TUPLE = re.compile(r"\([\d, -]*\)")
_MARK = re.compile(r"[-./:,_)\]]")
_PIECE = re.compile(r"[^\s./:,_)\]-]*(?:[-./:,_)\]]|(?=\s|$))")


@dataclass(frozen=True)
class TextTable:
    """Rows of text under headings.

    numbers: indexes of the columns that are right-aligned and never wrapped. below: indexes of the columns that are
    moved below their rows if the width is too small, in this order.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A table as lines of text: its title, its headings, its rows."""

    title: list[str]
    headings: list[str]
    rows: list[str]

    @property
    def lines(self) -> list[str]:
        return [*self.title, *self.headings, *self.rows]


def fit(table: TextTable, width: int) -> Fitted:
    """Return the table in lines of at most max(width, NARROWEST) characters; only a wider number or word has more.

    First the columns in `below` move below their rows. Then text is broken between words. If that is not enough, the
    last columns move below their rows with their headings: `memory 32.3 MiB, gap 88%`.
    """
    width = max(width, NARROWEST)
    table = replace(table, title=shown(table.title, lines=True), rows=[tuple(map(shown, row)) for row in table.rows])
    inside = list(range(len(table.columns)))
    below: list[int] = []
    for index in table.below:
        if _total(_natural(table, inside)) <= width:
            break
        inside.remove(index)
        below.append(index)
    least = [_longest_piece(table, i) for i in range(len(table.columns))]
    named: list[int] = []
    while len(inside) > 1 and _total([least[i] for i in inside]) > width:
        named.insert(0, inside.pop())
    widths = _narrowed(_natural(table, inside), [least[i] for i in inside], width)
    lines = [_row(table, row, inside, widths) for row in (table.columns, *table.rows)]
    for number, row in enumerate((table.columns, *table.rows)):
        further = [f"{table.columns[i]} {row[i]}" for i in named if number and row[i] not in ("", "-")]
        cells = [", ".join(further), *(row[index] for index in below)]
        lines[number] += [
            " " * INDENT + line for cell in cells if cell not in ("", "-") for line in broken(cell, width - INDENT)
        ]
    return Fitted(broken(table.title, width), lines[0], [line for group in lines[1:] for line in group])


def _longest_piece(table: TextTable, column: int) -> int:
    """Return the least width of a column in which no word is broken, except after punctuation."""
    cells = [row[column] for row in (table.columns, *table.rows)]
    if column in table.numbers:
        return max(map(len, cells))
    pieces = (piece for cell in cells for tuples in _TUPLE.split(cell) for piece in _PIECE.findall(tuples))
    tuples = (found for cell in cells for found in _TUPLE.findall(cell))
    return max(map(len, (*pieces, *tuples)), default=1)


def broken(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` characters, broken at spaces, else after punctuation, else anywhere.

    A tuple of numbers stays in one piece if possible. A break without a space adds no character.
    """
    lines: list[str] = []
    while len(text) > width:
        masked = _TUPLE.sub(lambda found: "x" * len(found[0]), text)
        space = max(masked.rfind(" ", 1, width + 1), 0) or max(text.rfind(" ", 1, width + 1), 0)
        if text[:space].strip():
            lines.append(text[:space].rstrip())
            text = text[space:].lstrip()
            continue
        marks = [mark.end() for mark in _MARK.finditer(text[:width])]
        at = marks[-1] if marks else width
        lines.append(text[:at])
        text = text[at:]
    return [*lines, text]


def _natural(table: TextTable, inside: Sequence[int]) -> list[int]:
    return [max(len(cells[i]) for cells in (table.columns, *table.rows)) for i in inside]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(widths: list[int], least: Sequence[int], width: int) -> list[int]:
    """Return the widths, with the widest reduced to one common width until all fit, but none below its least."""
    most = max(widths, default=0)
    while most > 1 and _total([max(min(w, most), n) for w, n in zip(widths, least, strict=True)]) > width:
        most -= 1
    found = [max(min(w, most), n) for w, n in zip(widths, least, strict=True)]
    for i, w in enumerate(widths):  # space left by rounding goes to the narrowed columns
        found[i] += max(0, min(w - found[i], width - _total(found)))
    return found


def _row(table: TextTable, row: Sequence[str], inside: Sequence[int], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row; the last column is not padded."""
    cells = [broken(row[i], w) for i, w in zip(inside, widths, strict=True)]
    lines: list[str] = []
    for number in range(max(map(len, cells), default=1)):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        padded = [
            part.rjust(w) if i in table.numbers else part.ljust(w)
            for i, part, w in zip(inside, parts, widths, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return lines


ALL = "--all"
"""The option that shows omitted rows."""
ELLIPSIS = "..."
SCREEN = 60
"""Most lines of tables that are printed with every row."""
Entry = TypeVar("Entry")
Kind = TypeVar("Kind", bound=Hashable)
_NUMBER = re.compile(r"(?<![^./])(?:\d+|\[\d+\.\.\d+\])(?=[./-]|$)")


def fits_screen(tables: Sequence[TextTable]) -> bool:
    """Return whether tables, with an empty line after each, fit a screen and need no summary."""
    return sum(len(fit(table, line_width()).lines) + 1 for table in tables) <= SCREEN


def print_shortened(table: TextTable, most: int) -> None:
    """Print the first rows of a table, the number of the other rows, and the option that shows them.

    A row has one line, and one for every cell that is moved below it; longer cells end in ELLIPSIS.
    """
    rows = table.rows[:most]
    print_table(replace(table, rows=[tuple(clipped(cell, line_width() - 4) for cell in row) for row in rows]))
    if more := len(table.rows) - len(rows):
        print_line(f"{ELLIPSIS} and {more} more; {ALL} shows {'it' if more == 1 else 'them'}")


def clipped(text: str, width: int) -> str:
    """Return `text` in at most `width` characters, with ELLIPSIS if it is cut, which is between words if possible."""
    return text if len(text) <= width else broken(text, max(1, width - len(ELLIPSIS)))[0].rstrip() + ELLIPSIS


def layer_kind(name: str) -> str:
    """Return the name with `*` for the numbers of layers: `layers-CellList/*-Layer`, `layers.*.norm.gamma`.

    In a sentence, only the names of cells and parameters change, not its numbers: `the gradient of *.a.weight`.
    """
    words = name.split(" ")
    if len(words) == 1:
        return _NUMBER.sub("*", name)
    return " ".join(_NUMBER.sub("*", word) if any(map(str.isalpha, word)) else word for word in words)


def alike(entries: Iterable[Entry], kind: Callable[[Entry], Kind]) -> dict[Kind, list[Entry]]:
    """Return the entries of every kind, with the kinds in the order of their first entry."""
    found: dict[Kind, list[Entry]] = {}
    for entry in entries:
        found.setdefault(kind(entry), []).append(entry)
    return found


LISTED_RANKS = 16
"""Most ranks of a group that are listed; longer groups are printed as start:stop:step."""


def print_report(report: Report, folder: Path) -> None:
    """Print the table of a compile, with every row."""
    print(heading(report, folder))
    print()
    for table in report_tables(report):
        if table.rows:
            print_table(table)
            print()
    for line in (*total_lines(report), *(f"note: {note}" for note in report.notes)):
        print_line(line)


def heading(report: Report, folder: Path) -> str:
    """Return the first line: the mode, the ranks, the id of the compile, and the folder of its files."""
    ranks = f"{report.ranks} rank{'s' if report.ranks > 1 else ''}"
    return f"{report.mode}, {ranks}, compile {report.compile_id}, in {folder}"


def total_lines(report: Report) -> list[str]:
    """Return lines with the operators, the bytes sent and the memory of a rank's step."""
    totals, memory, size = report.totals, report.memory, size_text
    runs = f" that run {totals.runs} times" if totals.runs != totals.operators else ""
    more = f" and {size(totals.bytes_a_turn)} per iteration of loops that only the run counts"
    more = more if totals.bytes_a_turn else ""
    dimensions = alike(report.collectives, lambda row: row.dimension)
    sent = ", ".join(
        f"{size(sum(row.bytes for row in rows))} over {name or 'other groups'} by {len(rows)} collectives"
        for name, rows in dimensions.items()
    )
    return [
        f"rank {report.rank}: {totals.operators} operators{runs}, {totals.collectives} collectives, "
        f"{size(totals.bytes_sent)} sent per step{more}",
        *([f"sent per dimension: {sent}"] if any(dimensions) else []),
        *_predicted(report.times),
        f"memory: weights {size(memory.weights)}, states {size(memory.states)}, inputs {size(memory.inputs)}, "
        f"step {size(memory.step)} (gradients {size(memory.gradients)}, activations {size(memory.activations)}, "
        f"temporary buffers {size(memory.temporary)} at most, each at its own time), together "
        f"{size(totals.peak_bytes)}" + on_host(memory),
    ]


def _predicted(times: StepTimes | None) -> list[str]:
    if times is None:
        return []
    parts = f"computation {time_text(times.compute)}, communication that nothing hides {time_text(times.exposed)}"
    return [f"predicted for H200s: step {time_text(times.step)}, {parts}"]


def on_host(memory: MemoryRow) -> str:
    """Return the bytes in host memory as text; "" if there are none."""
    parts = {"states": memory.states_on_host, "activations": memory.values_on_host}
    told = [f"{name} {size_text(nbytes)}" for name, nbytes in parts.items() if nbytes]
    return f"; on the host {', '.join(told)}" if told else ""


def report_tables(report: Report) -> list[TextTable]:
    """Return the tables of operators, parameters, collectives and slices."""
    operators = TextTable(
        "operators (forward)",
        ("operator", "instance", "strategy", "from", "line"),
        [(o.operator, o.instance or "-", strategy_text(o.strategy), o.origin or "-", o.line) for o in report.operators],
        below=(3,),
    )
    operators = with_times(operators, 5, [o.times for o in report.operators])
    parameters = TextTable(
        f"inputs and parameters, with the slice of rank {report.rank}",
        ("name", "kind", "type", "shape", "slice", "bytes"),
        [(p.name, p.kind, p.dtype, str(p.shape), str(p.slice), size_text(p.bytes)) for p in report.parameters],
        (5,),
    )
    collectives = TextTable(
        f"collectives of rank {report.rank}, with the bytes it sends in one step",
        ("operator", "group", "bytes", "line", "reason"),
        [
            (c.operator, f"{c.dimension} {group(c.ranks)}".strip(), size_text(c.bytes), c.line or "-", c.reason or "-")
            for c in report.collectives
        ],
        (2,),
        below=(4,),
    )
    collectives = with_times(collectives, 3, [c.times for c in report.collectives])
    slices = TextTable(
        "slices that were inserted; nothing is sent",
        ("before", "after", "line", "reason"),
        [(str(s.shape), str(s.slice), s.line or "-", s.reason or "-") for s in report.slices],
        below=(3,),
    )
    return [operators, parameters, collectives, slices]


def with_times(table: TextTable, place: int, times: Sequence[str]) -> TextTable:
    """Return the table with a column "runs" at index `place`. times: how often a step runs each row, "" for once; if
    all are "", the table is unchanged."""
    if not any(times):
        return table
    rows = [(*row[:place], text or "once", *row[place:]) for row, text in zip(table.rows, times, strict=True)]
    columns = (*table.columns[:place], "runs", *table.columns[place:])
    numbers, below = (tuple(i + (i >= place) for i in those) for those in (table.numbers, table.below))
    return replace(table, columns=columns, rows=rows, numbers=numbers, below=below)


def group(ranks: tuple[int, ...]) -> str:
    """Return `0-1-2-3`, or start:stop:step for many ranks with one stride."""
    if len(ranks) <= LISTED_RANKS:
        return "-".join(map(str, ranks)) or "-"
    step = ranks[1] - ranks[0]
    if step > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}:{ranks[-1] + step}:{step}"
    return f"{len(ranks)} ranks from {ranks[0]}"


def strategy_text(strategy: tuple[tuple[int, ...], ...]) -> str:
    """Return `(2, 1) (1, 4)`, one tuple per input."""
    return " ".join(str(entry).replace(",)", ")") for entry in strategy) or "-"


def time_text(seconds: float) -> str:
    """Return a time in us below one ms, else in ms."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit in which it is at least 1."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]  # a float from here on
    return f"{count:.1f} GiB"


def exact_text(count: int) -> str:
    """Return an exact number of bytes, from one KiB on followed by a rounded one: `2,503 B (2.4 KiB)`."""
    exact = f"{count:,} B"
    return exact if count < 1024 else f"{exact} ({size_text(count)})"


def sizes_text(first: int, second: int) -> str:
    """Return two numbers of bytes as `1.6 MiB -> 1.8 MiB`: only one if they are equal, and exact numbers if rounding
    hides the difference."""
    texts = size_text(first), size_text(second)
    if first != second and texts[0] == texts[1]:
        texts = f"{first:,} B", f"{second:,} B"
    return " -> ".join(dict.fromkeys(texts))


def counted(count: int, name: str) -> str:
    """Return a count with a noun: `1 stage`, `2 stages`."""
    return f"{count} {name}{'s' * (count != 1)}"


MAX_KINDS = 14
LONGEST_NAME = 30
"""Most characters in the name of a kind of cell."""
OUTSIDE = "-"
"""Name for work outside of cells: the optimizer, a function of the script."""


def most_expensive_kinds(kinds: Iterable[str], weight: Callable[[str], tuple[int, ...]]) -> list[str]:
    """Return the distinct kinds in order; if there are more than MAX_KINDS, those of largest weight come first."""
    found = [*dict.fromkeys(kinds)]
    if len(found) <= MAX_KINDS:
        return found
    chosen = {*sorted(found, key=lambda kind: tuple(-number for number in weight(kind)))[:MAX_KINDS]}
    return [kind for kind in found if kind in chosen] + [kind for kind in found if kind not in chosen]


def named_cells(kinds: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the common path of all kinds (" in Default/network", or ""), and each kind with its displayed name.

    The first MAX_KINDS are a tree, each kind below the one that contains it; the rest is a second tree.
    """
    order = {name: place for place, name in enumerate(kinds)}
    top = os.path.commonpath([kind for kind in kinds if kind]) if any(kinds) else ""
    top = os.path.dirname(top) if top in kinds else top

    def place(kind: str) -> tuple[int, ...]:
        """Return a key that sorts a kind after its ancestors: their first positions, then its own."""
        parts = kind.split("/")
        ancestors = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return tuple(min(p for k, p in order.items() if k == a or k.startswith(f"{a}/")) for a in ancestors)

    shown: list[tuple[str, str]] = []
    for kind, name in [*_tree(sorted(kinds[:MAX_KINDS], key=place), top), *_tree(kinds[MAX_KINDS:], top)]:
        if len(name) > LONGEST_NAME and "/" in name:  # the last part of a path identifies it best
            indent = name[: len(name) - len(name.lstrip())]
            name = f"{indent}{ELLIPSIS}/{name.rpartition('/')[2]}"
        shown.append((kind, clipped(name, LONGEST_NAME)))
    return f" in {top}" if top else "", shown


def _tree(kinds: Sequence[str], top: str) -> list[tuple[str, str]]:
    """Return the kinds with their displayed names: indented, without the path of the nearest ancestor listed."""
    shown: list[tuple[str, str]] = []
    above: list[str] = []
    for kind in kinds:
        while above and not kind.startswith(f"{above[-1]}/"):
            above.pop()
        base = above[-1] if above else top
        name = kind[len(base) + 1 :] if base and kind.startswith(f"{base}/") else kind.rpartition("/")[2]
        shown.append((kind, "  " * len(above) + (name or "outside of cells")))
        if kind:
            above.append(kind)
    return shown


# Summary of a compile that fits one screen ------------------------------------------------------------
# A row for every kind of layer, and the most expensive collectives.
# The number of its lines does not depend on the number of layers.


MAX_COLLECTIVES = 10
MAX_LINES = 4
"""Most source lines that are listed for inserted slices."""
MAX_NOTES = 4
MIN_STRATEGIES = 22
"""Least width, in characters, of the column with the strategies of operators."""


def print_summary(report: Report, folder: Path) -> None:
    """Print the table of a compile if it fits a screen, else its summary."""
    if fits_screen([table for table in report_tables(report) if table.rows]):
        print_report(report, folder)
        return
    print(heading(report, folder))
    print()
    print_shortened(kinds_table(report), MAX_KINDS)
    print()
    if report.collectives:
        title = f"most expensive collectives of rank {report.rank}, with the bytes it sends in one step"
        print_shortened(collectives_table(report.collectives, title), MAX_COLLECTIVES)
        print()
    if report.slices:
        print_line(_slices(report))
    for line in total_lines(report):
        print_line(line)
    print_line(f"{ALL} shows every operator, parameter, collective and slice; --json FILE writes them")
    for note in report.notes[:MAX_NOTES]:
        print_line(f"note: {note}")
    if (more := len(report.notes) - MAX_NOTES) > 0:
        print_line(f"{ELLIPSIS} and {more} more notes; {ALL} shows them")


def kinds_table(report: Report) -> TextTable:
    """Return a row for every kind of cell, below the kind that contains it. If there are too many, the kinds that send
    most come first, then those with most operators."""
    operators = alike(report.operators, lambda row: layer_kind(row.scope))
    sent = alike(report.collectives, lambda row: layer_kind(row.scope.removeprefix(GRADIENTS)))
    numbers = {name: sum(row.bytes for row in rows) for name, rows in sent.items()}
    kinds = most_expensive_kinds((*operators, *sent), lambda k: (numbers.get(k, 0), len(operators.get(k, ()))))
    inside, shown = named_cells(kinds)
    rows: list[tuple[str, ...]] = []
    strategies: list[list[str]] = []
    for kind, name in shown:
        own, mine = operators.get(kind, []), sent.get(kind, [])
        cells = len({row.scope.removeprefix(GRADIENTS) for row in (*own, *mine)}) if kind else 0
        numbers_of = (str(cells or OUTSIDE), str(len(own)), str(len(mine)), size_text(numbers.get(kind, 0)))
        rows.append((name, *numbers_of))
        strategies.append(_strategies(own))
    columns = ("cell", "cells", "operators", "collectives", "bytes sent")
    width = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    rest = max(MIN_STRATEGIES, line_width() - sum(width) - 2 * len(width))
    rows = [(*row, _listed(own, rest)) for row, own in zip(rows, strategies, strict=True)]
    return TextTable(
        f"kinds of cells{inside}, forward operators, collectives of rank {report.rank}",
        (*columns, "how they are sharded"), rows, (1, 2, 3, 4),
    )  # fmt: skip


def collectives_table(rows: Sequence[CollectiveRow], title: str) -> TextTable:
    """Return the collectives that send most first, with one row for equal ones of repeated layers. Reasons that
    differ in the numbers of layers have `*` for them."""
    merged = alike(rows, lambda row: (
        row.operator, row.ranks, row.bytes, row.line, row.times, layer_kind(row.reason or ""), layer_kind(row.scope)
    ))  # fmt: skip
    ordered = sorted(merged.values(), key=lambda those: -sum(row.bytes for row in those))
    return TextTable(
        title, ("operator", "group", "times", "bytes", "line", "reason"),
        [
            (
                those[0].operator, f"{those[0].dimension} {group(those[0].ranks)}".strip(),
                f"{sum(row.runs for row in those)}{' an iteration' * those[0].a_turn}",
                size_text(sum(row.bytes for row in those)), those[0].line or "-",
                (reasons[0] if len(reasons) == 1 else layer_kind(reasons[0])) or "-",
            )
            for those in ordered
            for reasons in [list(dict.fromkeys(row.reason for row in those))]
        ],
        (2, 3), below=(5,),
    )  # fmt: skip


def _strategies(operators: list[OperatorRow]) -> list[str]:
    """Return the distinct strategies of a kind's operators, those with most operands first: they matter most."""
    texts: dict[str, int] = {}
    for row in operators:
        if any(part > 1 for shards in row.strategy for part in shards):
            texts[f"{row.operator} {strategy_text(row.strategy)}"] = len(row.strategy)
    not_sharded = "replicated" if any(row.strategy for row in operators) else "-"
    return sorted(texts, key=lambda text: -texts[text]) or [not_sharded]


def _listed(texts: list[str], width: int) -> str:
    """Return as many of the texts as fit into the width, at least one, and the number of the others."""
    for count in range(len(texts), 0, -1):
        more = f" +{len(texts) - count}" if count < len(texts) else ""
        found = ", ".join(texts[:count]) + more
        if len(found) <= width:
            return found
    more = f" +{len(texts) - 1}" if len(texts) > 1 else ""
    return clipped(texts[0], width - len(more)) + more


def _slices(report: Report) -> str:
    lines = [*alike(report.slices, lambda row: row.line or "-")]
    count = len(report.slices)
    places = listed(lines, MAX_LINES)
    if count == 1:
        return f"1 slice was inserted, which sends nothing, at {places}"
    return f"{count} slices were inserted, which send nothing, at {places}"
