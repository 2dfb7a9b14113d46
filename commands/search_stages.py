"""`mspc search --stages` prints ways to train a network in stages side by side, and writes the plan of the quickest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.commands.report.fitting import TextTable
from mspc.commands.report.memory_notes import memory_notes
from mspc.commands.report.table import print_line, print_table
from mspc.commands.report.text import size_text, time_text
from mspc.commands.sizes import numbers_of
from mspc.search.stages.rows import StageRow
from mspc.search.stages.table import SEARCH, StagePlans

AUTO = "auto"
HEADINGS = (
    "ranks", "plan", "stages", "schedule", "micro-batches", "step", "idle", "bytes sent", "memory", "held less by",
    "units of each chunk",
)  # fmt: skip
FEW = 8
"""Different numbers of units in a row that are listed."""


def stages_of(text: str | None) -> tuple[int, ...]:
    """The numbers in `1,2,4`; () for nothing and for `auto`. Raises MspcError."""
    return () if text == AUTO else _numbers(text, "--stages", f", or {AUTO}")


def micro_batches_of(text: str | None) -> tuple[int, ...]:
    """The numbers in `4,8`; () for nothing. Raises MspcError."""
    return _numbers(text, "--micro-batches", "")


def _numbers(text: str | None, option: str, also: str) -> tuple[int, ...]:
    return () if text is None else numbers_of(text, f"{option} is {text!r:.200}, not numbers as in 4 or 2,4,8{also}")


def print_stage_plans(found: Sequence[StagePlans], target: str, top: int) -> None:
    """Print the rows of every number of ranks, and what there is to say of them."""
    if not found:
        return
    rows = [_row(row) for plans in found for row in plans.plans[:top]]
    numbers = (0, 2, 4, 5, 6, 7, 8)
    print_table(TextTable(f"plans in stages {target}", HEADINGS, rows, numbers, (10,)))
    for plans in found:
        mesh = next((row.mesh for row in plans.plans[:top] if row.mesh), "")
        if mesh:
            print_line(f"note: layouts are those that the search finds on a mesh of {mesh} in every stage")
        for row in plans.plans[:top]:
            for told in filter(None, (row.note, *_memory_notes(row))):
                print_line(f"note: {row.name} on {row.ranks} ranks {told}")
        own = next((row for row in plans.plans if row.name == SEARCH), None)
        if own is not None and own.foreseen:
            print_line(f"note: {SEARCH} on {own.ranks} ranks {_proof(plans)}")
        for why in dict.fromkeys(plans.refused):
            print_line(f"note: {why}")


def _proof(plans: StagePlans) -> str:
    of = f"of all borders between {plans.units} units, schedules and micro-batches"
    what = "is proved to be the quickest" if plans.gap < 5e-4 else f"is within {plans.gap:.1%} of the quickest"
    return f"{what} {of}, by the times of single units"


def _row(row: StageRow) -> tuple[str, ...]:
    return (
        str(row.ranks), row.name, str(row.stages), row.schedule, str(row.micro_batches), time_text(row.step),
        f"{row.idle:.1%}" if row.stages > 1 else "-", size_text(int(row.nbytes)), size_text(row.memory), _held(row),
        _cells(row.cells),
    )  # fmt: skip


def _memory_notes(row: StageRow) -> Iterator[str]:
    return memory_notes(row.recompute, row.cut_further, 0, row.offload, row.offload_states)


def _held(row: StageRow) -> str:
    ways = ["slices"] * (row.cut_further > 0) + ["cells again"] * bool(row.recompute)
    ways += ["states on host"] * row.offload_states + ["values on host"] * bool(row.offload)
    return ", ".join(ways) or "-"


def _cells(cells: Sequence[int]) -> str:
    """`4 x 8, 2 x 7`: how many chunks in a row have how many units."""
    runs: list[list[int]] = []
    for count in cells:
        if runs and runs[-1][1] == count:
            runs[-1][0] += 1
        else:
            runs.append([1, count])
    shown = [f"{times} x {count}" if times > 1 else str(count) for times, count in runs[:FEW]]
    return ", ".join([*shown, *["..."] * (len(runs) > FEW)]) or "-"
