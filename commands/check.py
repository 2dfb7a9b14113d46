"""`mspc check` checks a compile against a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mspc.commands.budget.breaches import Breach, breaches, read_baseline, write_baseline
from mspc.commands.budget.limits import KEYS, Budget, overridden, read_budget
from mspc.commands.comparison.tables import ranks_text
from mspc.commands.compile import CompileOptions
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.facts.graph import CollectiveFact
from mspc.commands.facts.reading import check_used, target_facts
from mspc.commands.report.tables import (
    ALL,
    TextTable,
    collectives_table,
    counted,
    group,
    print_line,
    print_shortened,
    print_table,
    size_text,
    with_times,
    write_report,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_writable, shown_path
from mspc.ir.late_dataclass import dataclass

MAX_COLLECTIVES = 5
"""Most collectives of a broken limit that are printed if not all are requested, by the bytes they send."""
BROKEN = 1
"""Exit status if a limit is exceeded."""


@dataclass(frozen=True)
class Limits:
    """Limits of a compile. given: from the command line; they override those of the file. file, name: as in
    `read_budget`. baseline: a file with figures of an earlier compile, which may grow by the fraction `tolerance`."""

    given: Budget
    file: Path | None = None
    name: str = ""
    baseline: Path | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Checked:
    """The result of a check. broken: the limits that are exceeded. free: there are no limits."""

    facts: CompileFacts
    broken: list[Breach]
    free: bool = False

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.broken:
            return f"{self.facts.name} keeps its budget"
        return f"{self.facts.name} breaks its budget: {counted(len(self.broken), 'limit')}"


def check_target(target: str, options: CompileOptions, limits: Limits, baseline: Path | None = None) -> int:
    """Print the breaches of a budget, the worst first, write them as JSON on request, and return the exit status. Raise
    MspcError if the target or a file cannot be read, or there are no limits.

    target: the folder of a compile, a graph, a script or a network. options: how a script is compiled; all_rows: print
    all collectives of a limit, not only the largest. baseline: file for the figures of this compile.
    """
    json, quiet = options.json, options.loudness.quiet
    if baseline is not None:
        check_writable(baseline, "--write-baseline")
    checked = checked_target(target, options, limits, may_be_free=baseline is not None)
    if baseline is not None:
        write_baseline(baseline, checked.facts)
    status = BROKEN if checked.broken else 0
    if json is not None:
        content = {"kept": not checked.broken, "broken": [asdict(breach) for breach in checked.broken]}
        write_report(json, "check", content, status)
    if json == Path("-"):
        return status
    _print_breaches(checked.broken, options.all_rows)
    if not checked.free and (checked.broken or not quiet):
        print_line(checked.verdict)
    if baseline is not None and not quiet:
        print_line(f"the figures of {checked.facts.name} are in {shown_path(baseline)}")
    for note in [] if quiet else checked.facts.notes:
        print_line(f"note: {note}")
    return status


def _print_breaches(broken: Sequence[Breach], every: bool) -> None:
    listed: dict[tuple[CollectiveFact, ...], str] = {}
    for breach in broken:
        if every or breach.memory:
            print_table(breach_table(breach))
        elif not breach.collectives:
            print_line(breach_title(breach))
        elif breach.collectives in listed:
            print_line(f"{breach_title(breach)}; by the collectives of {listed[breach.collectives]}")
        else:
            listed[breach.collectives] = breach.key
            rows = [replace(fact.row, scope=fact.scope) for fact in breach.collectives]
            print_shortened(collectives_table(rows, breach_title(breach)), MAX_COLLECTIVES)
        print()
    if listed:
        print_line(f"{ALL} shows every collective by itself, with its cell")


def checked_target(target: str, compiling: CompileOptions, limits: Limits, may_be_free: bool = False) -> Checked:
    """Check a target as `check_target` does, without output. may_be_free: accept an empty budget."""
    if limits.name and limits.file is None:
        raise MspcError(f"the budget {limits.name!r} needs the file that has it", notes=["name it with --budget FILE"])
    if limits.tolerance is not None and limits.baseline is None:
        raise MspcError("a tolerance is of a baseline, and there is none", notes=["name it with --baseline FILE"])
    budget = limits.given if limits.file is None else overridden(read_budget(limits.file, limits.name), limits.given)
    before = None if limits.baseline is None else read_baseline(limits.baseline)
    if not budget and before is None and not may_be_free:
        raise MspcError("the budget limits nothing", notes=[f"limits are {', '.join(KEYS)}"])
    check_used((target,), compiling)
    facts = target_facts(target, compiling)
    broken = breaches(facts, budget)
    if before is not None:
        assert limits.baseline is not None
        share = limits.tolerance or 0.0
        above = f" ({100 * share:.3g}% above {shown_path(limits.baseline)})" if share else (
            f" (as in {shown_path(limits.baseline)})"
        )  # fmt: skip
        later = breaches(facts, before.budget(share, facts))
        broken += [replace(breach, message=breach.message + above) for breach in later]
        broken.sort(key=lambda breach: -breach.times)
    return Checked(facts, broken, free=not budget and before is None)


def breach_title(breach: Breach) -> str:
    """Return the broken limit, the amount and the ranks in one line."""
    return f"{breach.key}: {breach.message}; on {ranks_text(breach.ranks)}"


def breach_table(breach: Breach) -> TextTable:
    """Return the table of the collectives, or the parts of memory, that break a limit."""
    title = breach_title(breach)
    if breach.memory:
        parts = [(name, f"{count:,} B", size_text(count)) for name, count in breach.memory]
        return TextTable(title, ("of it", "bytes", ""), parts, (1, 2))
    rows: list[tuple[str, ...]] = [
        (
            fact.row.operator, group(fact.row.ranks), size_text(fact.row.bytes), fact.row.line or "-",
            fact.scope or "-", fact.row.reason or "-",
        )
        for fact in breach.collectives
    ]  # fmt: skip
    table = TextTable(title, ("operator", "group", "bytes", "line", "cell", "reason"), rows, (2,), (5, 4))
    return with_times(table, 3, [fact.row.times for fact in breach.collectives])
