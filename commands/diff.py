"""`mspc diff` compares two compiles, dumps or plans."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from mspc.commands.comparison.all_differences import differences
from mspc.commands.comparison.tables import print_differences, tables
from mspc.commands.compile import CompileOptions
from mspc.commands.facts.reading import check_used, target_facts
from mspc.commands.report.tables import fits_screen, print_line, print_table, write_report
from mspc.ir.diagnostics import MspcError
from mspc.search.calibration.machine_file import machine_of

DIFFERENT = 1
"""Exit status if the two differ."""


def diff_targets(
    first: str, second: str, options: CompileOptions, machine: str = "", other: CompileOptions | None = None
) -> int:
    """Print the differences of two targets, write them as JSON on request, and return the exit status. Raise MspcError
    if a target cannot be read, or the two have nothing in common to compare.

    first, second: folders of compiles, graphs, plans, scripts or networks. options: how scripts are compiled; all_rows:
    print all rows, not a summary that fits a screen. machine: for which times are predicted; "" for H200s. other: how
    the second is compiled, None for the same way.
    """
    json, quiet = options.json, options.loudness.quiet
    rates = machine_of(machine)
    check_used((first, second), options)
    other = other or options
    ours, theirs = (target_facts(target, how, rates) for target, how in ((first, options), (second, other)))
    if first == second and other.imported.plan != options.imported.plan:
        first, second = f"{first} by {options.imported.plan}", f"{second} by {other.imported.plan}"
    if (ours.plan is None or theirs.plan is None) and (not ours.kinds or not theirs.kinds):
        raise MspcError(
            f"{first} and {second} say nothing of the same kind",
            notes=["a plan is compared with a plan, or with the folder of a compile in a sharded mode"],
        )
    found = differences(ours, theirs)
    notes = [f"note: {note}" for note in dict.fromkeys((*ours.notes, *theirs.notes))]
    verdict = f"{first} and {second} differ" if found else f"{first} and {second} are equal"
    made = tables(found)
    if json is not None:
        write_report(json, "diff", {"equal": not found, **asdict(found)}, DIFFERENT if found else 0)
    if json != Path("-"):
        if not quiet and (options.all_rows or fits_screen(made)):
            for table in made:
                print_table(table)
                print()
        elif not quiet:
            print_differences(found)
        for line in (verdict, *([] if quiet else notes)):
            print_line(line)
    return DIFFERENT if found else 0
