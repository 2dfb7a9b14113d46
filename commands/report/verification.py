"""Output of `mspc verify`: the table, the origin of its numbers, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mspc.commands.facts.rows import source_line
from mspc.commands.report.tables import (
    TextTable,
    alike,
    fit,
    layer_kind,
    line_width,
    print_line,
    print_shortened,
    print_table,
    write_report,
)
from mspc.commands.report.verbosity import Loudness
from mspc.compiler.config import Config
from mspc.ir.diagnostics import ExecutionError, listed
from mspc.ir.graph import Node
from mspc.verify.difference import ComparedValue
from mspc.verify.global_batch import BatchComparison
from mspc.verify.pytorch.against import Against
from mspc.verify.verification import STEPS, Verified

NAMED = 4
"""Most values of one kind that a line names."""


def report(
    found: Verified, config: Config, json: Path | None, loudness: Loudness, seed: int, notes: Sequence[str] = (),
    all_rows: bool = False,
) -> None:  # fmt: skip
    """Print the table and the verdict. notes: hints for the error if values differ. all_rows: print every value. Raise
    ExecutionError if a value differs."""
    rows, first = found.rows, found.first
    node, place = (first.node, first.place) if first is not None else (None, "")
    if json is not None:
        _write(json, rows)
    if json != Path("-"):
        if not loudness.quiet:
            _show(found, config, seed, all_rows)
        reference, equal = "one device", "equal"
        if found.batches is not None:
            exclusions = found.batches.exclusions
            reference = "one device with the global batch" if not exclusions else "one device with the same rows"
            equal = "equal" if not exclusions else "each rank's own rows alone, not the global batch"
            for line in global_batch_lines(found.batches, config) if exclusions or not loudness.quiet else ():
                print_line(line)
        print_line(verdict(rows, f"on {_ranks(config)}", reference, node, equal, place))
    _check(rows, node, f"one device and {_ranks(config)}", (*found.located, found.note, *notes), place)


def global_batch_lines(batches: BatchComparison, config: Config) -> list[str]:
    """Return lines on the relation of the ranks' results and updates to those of the global batch, or the reason they
    are not compared with it."""
    if batches.exclusions:
        more = len(batches.exclusions) - 1
        rest = f", and {more} more like it" if more else ""
        parts = f"; the first of its values that has no such tie is {batches.apart}" if batches.apart else ""
        return [f"not compared with one device on the global batch: {batches.exclusions[0]}{rest}{parts}"]
    lines = [
        f"output {index} of one device on the global batch is "
        + {"rows": "the ranks' rows", "same": "every rank's"}.get(how, f"the {how} of the ranks'")
        for index, how in batches.reductions.items()
    ]
    names = alike(batches.factors, lambda name: batches.factors[name])
    if names == {1.0: [*batches.factors]}:
        return [*lines, "updates read the gradients of one device on the global batch"]
    for factor, those in names.items():
        whose = "the" if len(names) == 1 else f"for {', '.join(those)} the"
        times = "" if factor == 1.0 else f" times {factor:g}, as one device was given them"
        lines.append(f"updates read {whose} gradients of one device on the global batch{times}")
    if any(factor == config.ranks for factor in names):
        lines.append("gradients_mean=True, or a mean in the script, makes them those of one device")
    return lines


def report_against(
    found: Against, json: Path | None, loudness: Loudness, seed: int, notes: Sequence[str] = (),
    all_rows: bool = False,
) -> None:  # fmt: skip
    """Print the table and the verdict of a comparison of one device with PyTorch. Raise ExecutionError if a value
    differs."""
    rows, first = found.rows, found.first
    library = f"PyTorch {found.version}"
    if json is not None:
        _write(json, rows)
    if json != Path("-"):
        if not loudness.quiet:
            title = f"one device beside {library}: one step, inputs from seed {seed}"
            print_values(rows, title, all_rows)
        names = [name if count == 1 else f"{count} {name}" for name, count in sorted(found.without.items())]
        rest = f" ({', '.join(names)})" if names else ""
        rest += f"; of the backward graph, judged by the gradients: {found.backward.total()}" if found.backward else ""
        print_line(f"operators with a counterpart: {found.judged.total()}; without: {found.without.total()}{rest}")
        if found.unjudged:
            names = ", ".join(found.unjudged)
            print_line(f"gradients through loops, branches or operators without a counterpart, not compared: {names}")
        if found.unasked:
            names = ", ".join(found.unasked)
            print_line(f"gradients that the program does not compute, and PyTorch's are not 0: {names}")
        print_line(verdict(rows, "on one device", library, first))
    _check(rows, first, f"one device and {library}", notes)


def _write(json: Path, rows: Sequence[ComparedValue]) -> None:
    equal = all(row.same for row in rows)
    values = [row.__dict__ | {"shape": list(row.shape), "same": row.same} for row in rows]
    for value in values:
        if value["stage"] is None:
            del value["stage"]
    content = {"equal": equal, "values": values}
    write_report(json, "verify", content, 0 if equal else ExecutionError.exit_status)


def _check(
    rows: Sequence[ComparedValue], first: Node | None, between: str, notes: Sequence[str], place: str = ""
) -> None:
    """Raise ExecutionError if a value differs. place: the position of the first operator, in words."""
    wrong = [r for r in rows if not r.same]
    if wrong:
        where = f"the first operator that differs is {first.label}{place}" if first is not None else ""
        raise ExecutionError(
            f"{len(wrong)} of {len(rows)} values differ between {between}",
            notes=[note for note in (where, *notes) if note],
            frames=first.frames if first is not None else (), code="E1401",
        )


def _ranks(config: Config) -> str:
    stages = f" in {config.pipeline_stages} stages" if config.pipeline_stages > 1 else ""
    return f"{config.all_ranks} rank{'s' if config.all_ranks != 1 else ''}{stages}"


def print_untaken(found: Sequence[tuple[Node, str]]) -> None:
    """Print the branches and loops that no step runs; see `untaken`."""
    lines: dict[str, None] = {}
    for node, condition in found:
        place = source_line(node.frames)
        at = f" at {place}" if place else ""
        branch = f"the branch of {node.label}{at} for which its condition is {condition}"
        lines[branch if condition else f"the loop{at or f' {node.label}'}"] = None  # a gradient has a loop there, too
    for line in lines:
        print_line(f"not compared, as no step takes it: {line}")


def _show(found: Verified, config: Config, seed: int, all_rows: bool) -> None:
    title = f"one device beside {_ranks(config)}: {STEPS} steps, inputs from seed {seed}"
    print_values(found.rows, title, all_rows)
    for name, made in found.inputs.items():
        print_line(f"input {name}: {made.description}")
    if found.not_finite:
        names = listed(found.not_finite, NAMED)
        print_line(f"not finite on one device, so that their numbers are not compared: {names}")
    print_untaken(found.untaken)
    if found.directions.count:
        count = found.directions.count
        many = "direction" if count == 1 else "directions"
        print_line(f"gradients on one device beside finite differences along {count} random {many}")
    unjudged = found.directions.unjudged
    for reason, names in alike(unjudged, lambda name: unjudged[name]).items():
        print_line(f"not compared with finite differences: the gradient of {listed(names, NAMED)}: {reason}")
    if config.feeds_own_rows:
        how = "means" if config.gradients_mean else "sums"
        print_line(f"every rank beside one device on the rank's own rows, with gradients that are {how} over the ranks")


SCREEN = 30
"""Most lines of a table of values that is printed with every row."""
MAX_KINDS = 15


def print_values(rows: Sequence[ComparedValue], title: str, all_rows: bool) -> None:
    """Print every value if they fit a screen or all are requested, else a summary by kind."""
    cells = [(r.kind, r.name, str(r.shape), f"{r.difference:.1e}", f"{r.tolerance:.0e}", r.remark or "-") for r in rows]
    table = TextTable(title, ("value", "name", "shape", "difference", "tolerance", "remark"), [*cells], (3, 4))
    if all_rows or len(fit(table, line_width()).lines) <= SCREEN:
        print_table(table)
    else:
        print_shortened(kinds_table(rows, title), MAX_KINDS)


def kinds_table(rows: Sequence[ComparedValue], title: str) -> TextTable:
    """Return a table with one row for every kind of value, joined over repeated layers: their number, the number that
    differ, and the worst. Kinds that differ come first, then the largest differences relative to the tolerance."""
    kinds = alike(rows, lambda r: (r.kind, layer_kind(r.name)))
    ordered = sorted(kinds.items(), key=lambda entry: min(map(_badness, entry[1])))
    cells: list[tuple[str, ...]] = []
    for (kind, name), those in ordered:
        worst = min(those, key=_badness)
        wrong, excused = sum(not r.same for r in those), sum(r.excused for r in those)
        remarks = [f"{wrong} differ{'s' * (wrong == 1)}"] * bool(wrong) + [f"{excused} by rounding"] * bool(excused)
        named = [f"worst: {worst.name}"] * (len(those) > 1 and worst.difference > 0)
        cells.append((
            kind, name if len(those) > 1 else worst.name, str(len(those)),
            f"{worst.difference:.1e}", f"{worst.tolerance:.0e}",
            ", ".join((*remarks, *named)) or "-",
        ))  # fmt: skip
    return TextTable(title, ("value", "kind", "values", "worst", "tolerance", "remark"), cells, (2, 3, 4), below=(5,))


def _badness(row: ComparedValue) -> tuple[bool, bool, float]:
    """Return a key that sorts the worst first: differing values, then those nearest to their tolerance, then values
    excused by rounding."""
    return row.same, row.excused, -(row.difference / row.tolerance if row.tolerance else row.difference)


def verdict(
    rows: Sequence[ComparedValue], where: str, reference: str, first: Node | None, equal: str = "equal", place: str = ""
) -> str:
    """Return `equal: 10 values on 8 ranks within 1e-05 of one device, ...` or `differs: 2 of 10 values on 8 ranks ...`.

    equal: the text printed instead of that word. where: "on 8 ranks". reference: "one device". first: the first
    operator with a differing value, None without one. place: its position, in words.
    """
    wrong = [r for r in rows if not r.same]
    if wrong:
        worst = max(wrong, key=lambda r: (r.difference, r.tolerance))
        apart = "in shape or in finite elements" if math.isinf(worst.difference) else f"by {worst.difference:.1e}"
        text = (
            f"differs: {len(wrong)} of {_values(len(rows))} {where}; the worst is {worst.kind} {worst.name}, "
            f"{apart} where {worst.tolerance:.0e} is allowed"
        )
        line = source_line(first.frames) if first is not None else ""
        return text if first is None else f"{text}; they part at {first.label}{place}{f', {line}' if line else ''}"
    within = max((r.tolerance for r in rows), default=0.0)
    text = f"{equal}: {_values(len(rows))} {where} within {within:.0e} of {reference}" if within else (
        f"{equal}: {_values(len(rows))} {where} exactly as on {reference}"
    )  # fmt: skip
    excused = sum(r.excused for r in rows)
    worst = max((r for r in rows if not r.excused), key=lambda r: r.difference, default=None)
    if worst is not None and worst.difference:
        text += f"; the worst is {worst.kind} {worst.name}, by {worst.difference:.1e}"
    grown = " amplified by the update" if any(r.excused and r.kind == "parameter" for r in rows) else ""
    return f"{text}; {excused} more by rounding{grown}" if excused else text


def _values(count: int) -> str:
    return f"{count} value{'s' if count != 1 else ''}"

