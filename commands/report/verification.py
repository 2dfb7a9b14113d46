"""What `mspc verify` prints: the table, how its numbers were made, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mspc.commands.report.loudness import Loudness
from mspc.commands.report.table import print_line, print_table, write_json
from mspc.commands.report.verdict import comparison_table, verdict
from mspc.compiler.config import Config
from mspc.engine.against_torch import Against
from mspc.engine.compared import Row
from mspc.engine.verification import STEPS, Verified
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Node


def report(
    found: Verified, config: Config, json: Path | None, loudness: Loudness, seed: int, notes: Sequence[str] = ()
) -> None:
    """Print the table and the verdict. notes: what else is known where something differs.

    Raises:
        ExecutionError: a value differs.
    """
    rows, first = found.rows, found.first
    if json is not None:
        write_json([r.__dict__ | {"shape": list(r.shape), "same": r.same} for r in rows], json)
    if json != Path("-"):
        if not loudness.quiet:
            _show(found, config, seed)
        print_line(verdict(rows, f"on {_ranks(config)}", "one device", first))
    _check(rows, first, f"one device and {config.ranks} ranks", (found.note, *notes))


def report_against(found: Against, json: Path | None, loudness: Loudness, seed: int, notes: Sequence[str] = ()) -> None:
    """The same of one device beside PyTorch.

    Raises:
        ExecutionError: a value differs.
    """
    rows, first = found.rows, found.first
    library = f"PyTorch {found.version}"
    if json is not None:
        write_json([r.__dict__ | {"shape": list(r.shape), "same": r.same} for r in rows], json)
    if json != Path("-"):
        if not loudness.quiet:
            print_table(comparison_table(rows, f"one device beside {library}: one step, inputs from seed {seed}"))
        print_line(_counted(found))
        if found.unjudged:
            print_line(f"gradients that come through these, so that they are not compared: {', '.join(found.unjudged)}")
        print_line(verdict(rows, "on one device", library, first))
    _check(rows, first, f"one device and {library}", notes)


def _counted(found: Against) -> str:
    """How many operators have a counterpart, and which have none."""
    names = [name if count == 1 else f"{count} {name}" for name, count in sorted(found.without.items())]
    rest = f" ({', '.join(names)})" if names else ""
    behind = f"; of the backward graph, judged by the gradients: {found.backward.total()}" if found.backward else ""
    return f"operators with a counterpart: {found.judged.total()}; without: {found.without.total()}{rest}{behind}"


def _check(rows: Sequence[Row], first: Node | None, between: str, notes: Sequence[str]) -> None:
    """Raises ExecutionError where a value differs."""
    wrong = [r for r in rows if not r.same]
    if wrong:
        where = f"the first operator where they part is {first.label}" if first is not None else ""
        raise ExecutionError(
            f"{len(wrong)} of {len(rows)} values differ between {between}",
            notes=[note for note in (where, *notes) if note],
            frames=first.frames if first is not None else (),
        )


def _ranks(config: Config) -> str:
    return f"{config.ranks} rank{'s' if config.ranks != 1 else ''}"


def _show(found: Verified, config: Config, seed: int) -> None:
    title = f"one device beside {_ranks(config)}: {STEPS} steps, inputs from seed {seed}"
    print_table(comparison_table(found.rows, title))
    for name, made in found.inputs.items():
        print_line(f"input {name}: {made.said}")
    if found.directions:
        print_line(f"gradients on one device beside finite differences along {found.directions} random directions")
    if config.feeds_own_rows:
        how = "means" if config.gradients_mean else "sums"
        print_line(f"every rank beside one device on the rank's own rows, with gradients that are {how} over the ranks")
