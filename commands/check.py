"""`mspc check`: holds a compile to a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mspc.commands.budget.breaches import Breach, breaches
from mspc.commands.budget.file import read_budget
from mspc.commands.budget.limits import KEYS, Budget
from mspc.commands.comparison.tables import ranks_text
from mspc.commands.compile import CompileOptions
from mspc.commands.facts.model import Facts
from mspc.commands.facts.targets import check_used, target_facts
from mspc.commands.report.fitting import Table
from mspc.commands.report.shortened import print_shortened
from mspc.commands.report.table import check_json, print_line, print_table, write_json
from mspc.commands.report.text import group, size_text
from mspc.ir.diagnostics import MspcError

MOST = 5
"""Collectives of a broken limit that are printed where not all are asked for, those that send most."""
BROKEN = 1
"""Exit status where a limit does not hold."""


@dataclass(frozen=True)
class Checked:
    """A compile beside its budget. broken: its limits that do not hold."""

    facts: Facts
    broken: list[Breach]

    @property
    def verdict(self) -> str:
        """In one line."""
        if not self.broken:
            return f"{self.facts.name} keeps its budget"
        limits = len(self.broken)
        return f"{self.facts.name} breaks its budget: {limits} limit{'s' * (limits != 1)}"


def check_target(
    target: str, compiling: CompileOptions, limits: Budget, file: Path | None, name: str, json: Path | None,
    all_rows: bool = False,
) -> int:  # fmt: skip
    """Print what breaks a budget, write it as JSON on request, and give the exit status.

    Args:
        target: the folder of a compile, a graph, a script or a network. compiling: how a script is compiled. limits: go
        before those of the file. file, name: as `read_budget`.

    Raises:
        MspcError: the target or the file cannot be read, or nothing is limited.
    """
    check_json(json)
    checked = checked_target(target, compiling, limits, file, name)
    if json is not None:
        write_json({"kept": not checked.broken, "broken": [asdict(breach) for breach in checked.broken]}, json)
    if json != Path("-"):
        for breach in checked.broken:
            table = breach_table(breach)
            print_table(table) if all_rows else print_shortened(table, MOST)
            print()
        print_line(checked.verdict)
        for note in checked.facts.notes:
            print_line(f"note: {note}")
    return BROKEN if checked.broken else 0


def checked_target(target: str, compiling: CompileOptions, limits: Budget, file: Path | None, name: str) -> Checked:
    """As `check_target`, without a word."""
    if name and file is None:
        raise MspcError(f"the budget {name!r} needs the file that has it", notes=["name it with --budget FILE"])
    budget = limits if file is None else read_budget(file, name).under(limits)
    if not budget:
        raise MspcError("the budget limits nothing", notes=[f"limits are {', '.join(KEYS)}"])
    check_used((target,), compiling)
    facts = target_facts(target, compiling)
    return Checked(facts, breaches(facts, budget))


def breach_table(breach: Breach) -> Table:
    """What breaks a limit."""
    title = f"{breach.key}: {breach.message}; on {ranks_text(breach.ranks)}"
    if breach.memory:
        return Table(title, ("of it", "bytes", ""), [(n, str(b), size_text(b)) for n, b in breach.memory], (1, 2))
    rows: Sequence[tuple[str, ...]] = [
        (
            fact.row.operator, group(fact.row.ranks), str(fact.row.bytes), fact.row.line or "-", fact.scope or "-",
            fact.row.reason or "-",
        )
        for fact in breach.collectives
    ]  # fmt: skip
    return Table(title, ("operator", "group", "bytes", "line", "cell", "reason"), [*rows], (2,), (5, 4))
