"""`mspc search`: plans for a network side by side, and the one that the search finds as a file."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.machine_file import H200, machine_of
from mspc.commands.compile import CompileOptions, find_launch
from mspc.commands.report.fitting import Table
from mspc.commands.report.progress import Progress
from mspc.commands.report.table import check_json, print_line, print_table, write_json
from mspc.commands.report.text import size_text
from mspc.compiler.plan_file import SUFFIX, write_plan
from mspc.engine.plans import Plan, Plans, plans_for
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.whole import check_writable

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30,
         "TI": 1 << 40}  # fmt: skip
"""Bytes in a unit of sizes."""


@dataclass(frozen=True)
class SearchOptions:
    """The flags of `mspc search`. ranks: several numbers are tried one after the other. top: rows for each. free: leave
    out the script's strategies. machine: its name or a file, "" for H200s. memory: bytes that a rank
    has, 0 for any. out: where the plan goes."""

    compile: CompileOptions
    ranks: tuple[int, ...] = ()
    top: int = 5
    free: bool = False
    machine: str = ""
    memory: int = 0
    out: Path | None = None


def ranks_of(text: str | None) -> tuple[int, ...]:
    """The numbers in `8,16,64`; () for nothing. Raises MspcError."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise MspcError(f"--ranks is {text!r}, not numbers of ranks as in 8 or 8,16,64")
    return tuple(dict.fromkeys(map(int, parts)))


def memory_of(text: str | None) -> int:
    """The bytes in `80GB`, `512MiB` or `1000`; 0 for nothing. Raises MspcError."""
    if text is None:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?", text.strip(), re.ASCII)
    nbytes = float(found[1]) * UNITS[(found[2] or "").upper()] if found else 0.0
    if not 1 <= nbytes < 1 << 60:
        raise MspcError(f"--memory is {text!r}, not a size as in 80GB or 512MiB")
    return int(nbytes)


def search_target(target: str, options: SearchOptions) -> None:
    """Try plans for a script, or for the network that `target` names, and print the table.

    Raises:
        MspcError: every mistake of the command, the script or the network.
    """
    check_json(options.compile.json)
    if options.out is not None:
        if options.out.suffix != SUFFIX:
            raise MspcError(f"--out {options.out}: a plan's name ends in {SUFFIX}")
        check_writable(options.out, "--out")
        if len(options.ranks) > 1:
            raise MspcError("--out is for a plan of one number of ranks", notes=["give one number with --ranks"])
    machine = machine_of(options.machine) if options.machine else H200
    loudness = options.compile.loudness
    found: list[Plans] = []
    with Progress(not loudness.quiet) as progress:
        for ranks in options.ranks or (None,):
            launched = find_launch(target, replace(options.compile, ranks=ranks))

            def tell(way: str, ranks: int = launched.ranks) -> None:
                progress.show(f"{way} on {ranks} ranks")

            found.append(plans_for(launched.launch, launched.ranks, machine, options.free, options.memory, tell))
    if options.out is not None:
        names = found[0].searched.strategies.layouts
        write_plan(options.out, found[0].searched.config.ranks, names)
    if options.compile.json is not None:
        content = [asdict(plan) for plans in found for plan in plans.plans[: options.top]]
        write_json({"machine": machine.name, "plans": content}, options.compile.json)
    if options.compile.json != Path("-"):
        _print(found, machine, options)


def _print(found: list[Plans], machine: Machine, options: SearchOptions) -> None:
    rows = [_row(plan) for plans in found for plan in plans.plans[: options.top]]
    headings = ("ranks", "plan", "step", "compute", "exposed", "bytes sent", "collectives", "memory", "gap")
    print_table(Table(f"plans, the fastest first, on {machine.name}", headings, rows, (0, 2, 3, 4, 5, 6, 7, 8)))
    for plans in found:
        for why in plans.refused:
            print_line(f"note: {why}")
    if options.out is not None:
        print_line(f"the plan of the search is in {options.out}; `mspc compile --strategies {options.out}` takes it")


def _row(plan: Plan) -> tuple[str, ...]:
    return (
        str(plan.ranks), plan.name, _time(plan.step), _time(plan.compute), _time(plan.exposed), f"{plan.nbytes:.0f}",
        str(plan.collectives), size_text(plan.memory), "-" if plan.gap is None else f"{plan.gap:.1%}",
    )  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
