"""Writes the timeline of a pipeline as a picture, and the order of its work that is quickest by it as a table."""

from __future__ import annotations

from pathlib import Path

from mspc.analysis.cost.missing_rates import missing_rates
from mspc.commands.report.missing_rates import missing_rate_notes
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import write_atomically
from mspc.output.schedule_svg import schedule_svg
from mspc.output.schedule_text import schedule_text
from mspc.output.stage_times import predicted_work
from mspc.passes.lib.schedule_tables import write_table
from mspc.passes.lib.timed_order import ordered_by_times
from mspc.search.calibration.machine_file import machine_of

PICTURES, TABLE = (".svg", ".txt"), ".csv"


def check_picture(path: Path, machine: str = "", keep_more: int = 0) -> None:
    """Raises MspcError where a file is to be written in a form that there is not, there is no such machine, or more is
    to be kept where no order is written."""
    machine_of(machine)
    if path.suffix not in (*PICTURES, TABLE):
        raise MspcError(f"--schedule {path}: its name ends in none of {', '.join((*PICTURES, TABLE))}")
    if keep_more < 0 or (keep_more and path.suffix != TABLE):
        raise MspcError(f"--keep-more {keep_more}: a number from 0 on is right, for an order (FILE{TABLE})")


def write_picture(compiled: Compiled, path: Path, machine: str = "", keep_more: int = 0) -> list[str]:
    """Write the timeline, by the times of a machine (its name or its file), in the form that the file's name asks for;
    as a table the quickest order of the same work that is found, in which stages keep at most `keep_more` micro-batches
    of chunks beyond their schedule's. Notes on the times.
    Raises MspcError as `stage_times` does, and where the file cannot be written."""
    config = compiled.config
    graphs = [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]
    rates = machine_of(machine)
    schedule, work = predicted_work(graphs, rates)
    if path.suffix == TABLE:
        text = write_table(ordered_by_times(schedule, work, keep_more))
    else:
        times = work.line(schedule)
        text = schedule_svg(times) if path.suffix == ".svg" else schedule_text(times)
    write_atomically(path, lambda file: file.write(text.encode()))
    return missing_rate_notes(missing_rates(graphs, rates), rates)
