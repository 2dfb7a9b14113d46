"""A plan in one sentence of common terms, next to the best usual plan that fits; notes below a table of plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mspc.analysis.cost.machine import PRODUCTS, ROUNDS, TF32, Machine
from mspc.analysis.cost.timeline import MissingRate, missing_rates, stand_in
from mspc.commands.report.tables import size_text, time_text
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.text.families import each_of_cells
from mspc.ir.types import dtype_of
from mspc.output.schedule_text import schedule_text
from mspc.output.stage_times import stage_times
from mspc.passes.lib.schedule_tables import write_table
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.degrees import Degrees
from mspc.search.plans.row import SEARCH, PlanResult
from mspc.search.stages.costing import StageRow

TERA = 1e12


def summary_lines(rows: Sequence[PlanResult | StageRow], machine: Machine) -> list[str]:
    """Return a line for the first row and, if that is the search's, one for the first usual plan. rows: plans for one
    number of ranks that fit into memory, the fastest first."""
    usual = [row for row in rows if row.name != SEARCH][:1]
    shown = rows[:1] if [*rows[:1]] == usual else [*rows[:1], *usual]
    return [f"{row.name} on {row.ranks} ranks: {_words(row)}; {_speed(row, machine)}" for row in shown]


def _words(row: PlanResult | StageRow) -> str:
    if isinstance(row, StageRow):
        stages, schedule, micro_batches = row.stages, row.schedule, row.micro_batches
        cells = sum(1 for name in row.offload for _ in each_of_cells(name))
    else:
        stages, schedule, micro_batches = 1, "", 0
        cells = len(row.offload)
    d = row.degrees
    found = [f"DP {d.data} x TP {d.tensor} x PP {stages} x CP {d.context}{_context_words(d)} x EP {d.expert}"]
    found += [f"{d.replicas} ranks compute the same"] * (d.replicas > 1)
    found.append(f"ZeRO {d.zero}" if d.zero else "no ZeRO")
    found += [schedule] * (stages > 1 and bool(schedule))
    found += [f"{micro_batches} micro-batch{'es' * (micro_batches > 1)}"] * bool(micro_batches)
    found.append(f"recompute of {len(row.recompute)} cells" if row.recompute else "no recompute")
    offloaded = ["optimizer states"] * row.offload_states
    offloaded += [f"activations of {cells} cell{'s' * (cells > 1)}"] * bool(cells)
    found += [f"offload of {' and '.join(offloaded)}"] * bool(offloaded)
    return ", ".join(found)


def _context_words(d: Degrees) -> str:
    """Return the method of context parallel attention in parentheses; "" without context parallelism."""
    if d.context == 1:
        return ""
    rest = d.context // d.heads
    way = "ring" if d.ring > 1 else "keys gathered"
    if d.heads == 1 or rest == 1:
        return f" ({way if rest > 1 else 'Ulysses'})"
    return f" ({way} {rest} x Ulysses {d.heads})"


def _speed(row: PlanResult | StageRow, machine: Machine) -> str:
    found = [f"{time_text(row.step)} a step"]
    d, on_host = row.degrees, row.on_host
    if row.step and d.samples:
        found.append(f"{d.samples / row.step:,.0f} {d.unit} per second")
    if row.step and d.operations:
        rate = d.operations / row.step / row.ranks
        rates = machine.under({ROUNDS: d.rounds})
        best = rates.work_rate(PRODUCTS, dtype_of(d.dtype)).best(1.0, d.operations)
        found.append(f"{rate / TERA:.3g} TFLOP/s of the model a rank, {rate / best:.0%} of the rate of its matmuls")
    host = [f"{size_text(on_host)} on its host"] * bool(on_host)
    return ", ".join([*found, f"{size_text(row.memory)} a rank", *host])


TEXT, TABLE = ".txt", ".csv"


def check_schedule_file(path: Path | None, machine: str = "") -> None:
    """Raise MspcError if the file's format or the machine does not exist."""
    machine_of(machine)
    if path is not None and path.suffix not in (TEXT, TABLE):
        raise MspcError(f"--schedule {path}: its name ends in none of {', '.join((TEXT, TABLE))}", code="E0109")


def write_schedule_file(compiled: Compiled, path: Path, machine: str = "") -> list[str]:
    """Write the schedule as a table, or its timeline with the times of a machine (its name or its file), by the file's
    suffix. Return notes on the times. Raise MspcError as `stage_times` does, and if the file cannot be written."""
    config = compiled.config
    graphs = [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]
    rates = machine_of(machine)
    times = stage_times(graphs, rates)
    text = write_table(times.schedule) if path.suffix == TABLE else schedule_text(times)
    write_atomically(path, lambda file: file.write(text.encode()))
    return missing_rate_notes(missing_rates(graphs, rates), rates)


# Notes below a table of plans -------------------------------------------------------------------------
# The measures of a plan that save memory, missing rates, doubtful measurements.


NAMED = 3
"""Most cells that a note lists."""


def memory_notes(
    recompute: Sequence[str], cut_further: int, gathered_again: int = 0, offload: Sequence[str] = (),
    offload_states: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield notes on the memory-saving measures of a plan.

    recompute, offload: cells that are recomputed, or for which values are on the host; equal ones in a row may be one
    entry. cut_further: parameters stored in smaller slices than operators read. gathered_again: those of them that
    gradients gather again. offload_states: optimizer states are on the host.
    """
    if recompute:
        yield f"computes {_counted(recompute)} again: {listed(recompute, NAMED)}"
    if offload_states:
        yield "keeps optimizer states on the host"
    if offload:
        yield f"keeps what gradients read of {_counted(offload)} on the host: {listed(offload, NAMED)}"
    if cut_further:
        again = f", {gathered_again} of them gathered again for gradients" * bool(gathered_again)
        count = f"{cut_further} parameter{'s' * (cut_further != 1)}"
        yield f"stores {count} in smaller slices than operators read{again}"


def _counted(cells: Sequence[str]) -> str:
    count = sum(1 for name in cells for _ in each_of_cells(name))
    return f"{count} cell{'s' * (count != 1)}"


def missing_rate_notes(missing: Iterable[MissingRate], machine: Machine) -> list[str]:
    """Return a note for every kind of work on a dtype that uses the rates of another one."""
    notes: list[str] = []
    for each in missing:
        other = stand_in(machine, each)
        instead = f"those of products of {other}" if other else "its other_products"
        again = "; `mspc calibrate` measures them" if each.dtype == TF32 or dtype_of(each.dtype).is_float else ""
        what = f"{each.kind} of {each.dtype}"
        why = f"{instead} stand in, so that times may be far off{again}"
        notes.append(f"the file of {machine.name} has no rates of {what}: {why}")
    return notes


LISTED = 5
"""Most doubts that are listed."""


def doubts_text(what: str, doubts: Sequence[str], do: str) -> str:
    """Return a warning with its reasons. what: the unreliable result. do: the advice."""
    more = len(doubts) - LISTED
    listed = [f"  note: {why}" for why in [*doubts[:LISTED], *([f"and {more} more"] if more > 0 else [])]]
    head = f"warning: {what} is not to be believed: the machine was busy, or ranks shared its cores"
    return "\n".join([head, *listed, f"  note: {do}"])
