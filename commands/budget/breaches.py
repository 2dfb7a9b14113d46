"""Breaches of a compile's budget, and the collectives that cause them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from mspc.commands.budget.limits import ANY, BYTES, COLLECTIVES, FORBID, IDLE, MEMORY, STEP, Budget, Forbidden
from mspc.commands.facts.graph import CollectiveFact, CompileFacts, RankFacts, cell_of
from mspc.commands.report.tables import exact_text, time_text, write_json
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import read_toml
from mspc.ir.late_dataclass import dataclass

MAX_NAMED = 5
PARTS = ("weights", "states", "inputs", "constants", "step")
"""Parts of a rank's memory; their sum is the total."""


@dataclass(frozen=True)
class Breach:
    """A limit that is exceeded. key: of the limit. message: the actual and the permitted amount. ranks: that exceed it
    by this amount. times: the ratio of the amount to the limit; for a limit of zero, the amount. collectives: that
    cause it, those that send most first. memory: bytes of the parts, if the limit is on memory."""

    key: str
    message: str
    ranks: tuple[int, ...]
    times: float
    collectives: tuple[CollectiveFact, ...] = ()
    memory: tuple[tuple[str, int], ...] = ()


def breaches(facts: CompileFacts, budget: Budget) -> list[Breach]:
    """Return the limits that a compile exceeds, each on the ranks that exceed it most; the largest ratio comes first.
    Raise MspcError if a fact for a limit is unknown, or there is no cell in which a collective is forbidden."""
    if not facts.kinds:
        raise MspcError(f"{facts.name} is a plan, which sends nothing", notes=["check the folder of its compile"])
    found: list[Breach] = []
    worst = max(facts.kinds, key=lambda kind: kind.bytes_sent)
    if budget.nbytes is not None and worst.bytes_sent > budget.nbytes:
        message = f"a step sends {exact_text(worst.bytes_sent)}; the limit is {exact_text(budget.nbytes)}"
        times = _times(worst.bytes_sent, budget.nbytes)
        found.append(Breach(BYTES, message, worst.ranks, times, _largest_first(worst, lambda _: True)))
    if budget.memory is not None:
        found += _memory(facts, budget.memory)
    for operator, most in (budget.collectives or {}).items():
        found += _count(facts, operator, most)
    if budget.step is not None:
        found += _step(facts, budget.step)
    if budget.idle is not None:
        found += _idle(facts, budget.idle)
    for forbidden in budget.forbidden:
        _check_cell(facts, forbidden)
        found += _forbidden(facts, forbidden)
    return sorted(found, key=lambda breach: -breach.times)


def _memory(facts: CompileFacts, most: int) -> Iterator[Breach]:
    kinds = [(kind.peak_bytes, kind) for kind in facts.kinds if kind.peak_bytes is not None]
    if not kinds:
        raise MspcError(f"{facts.name} does not state the memory of a rank, which {MEMORY} limits")
    taken, worst = max(kinds, key=lambda entry: entry[0])
    if taken > most:
        parts = tuple((name, int(getattr(worst.memory, name))) for name in PARTS)
        message = f"a step takes {exact_text(taken)} of memory; the limit is {exact_text(most)}"
        yield Breach(MEMORY, message, worst.ranks, _times(taken, most), memory=parts)


def _step(facts: CompileFacts, most: float) -> Iterator[Breach]:
    if facts.pipeline is not None and (step := facts.pipeline.step) is not None:
        if step > most:
            share, busiest = min(((kind.idle or 0.0, kind) for kind in facts.kinds), key=lambda entry: entry[0])
            message = (
                f"a step is predicted to take {time_text(step)} including the waits of stages for each other; "
                f"the limit is {time_text(most)}; the busiest stage is idle for {share:.1%} of it"
            )
            yield Breach(STEP, message, busiest.ranks, _times(step, most))
        return
    timed = [(kind.times, kind) for kind in facts.kinds if kind.times is not None]
    if not timed:
        raise MspcError(f"{facts.name} does not say how long a step takes, which {STEP} limits")
    times, worst = max(timed, key=lambda entry: entry[0].step)
    if times.step > most:
        message = (
            f"a step is predicted to take {time_text(times.step)}; the limit is {time_text(most)}; it computes for "
            f"{time_text(times.compute)}, and {time_text(times.exposed)} of communication is not overlapped"
        )
        slowest = sorted(worst.collectives, key=lambda fact: -(fact.seconds or 0.0))
        yield Breach(STEP, message, worst.ranks, _times(times.step, most), tuple(slowest))


def _idle(facts: CompileFacts, most: float) -> Iterator[Breach]:
    idle = [(kind.idle, kind) for kind in facts.kinds if kind.idle is not None]
    if not idle:
        note = "the folder of a compile that wrote every stage has them, if the network has micro-batches"
        raise MspcError(f"{facts.name} has no times of stages, which {IDLE} limits", notes=[note])
    share, worst = max(idle, key=lambda entry: entry[0])
    if share > most:
        message = f"a stage is idle for {share:.1%} of a step; the limit is {most:.1%}"
        yield Breach(IDLE, message, worst.ranks, _times(share, most))


def _times(taken: float, most: float) -> float:
    return float(taken / most if most else taken)


def _count(facts: CompileFacts, operator: str, most: int) -> Iterator[Breach]:
    def counts(fact: CollectiveFact) -> bool:
        return operator in (ANY, fact.row.operator)

    def runs(kind: RankFacts) -> int:
        return sum(fact.row.runs for fact in kind.collectives if counts(fact))

    worst = max(facts.kinds, key=runs)
    count = runs(worst)
    if count > most:
        what = "collective" if operator == ANY else operator
        message = f"{count} {what}{'s' * (count != 1)} in a step; the limit is {most}"
        yield Breach(COLLECTIVES, message, worst.ranks, _times(count, most), _largest_first(worst, counts))


def _forbidden(facts: CompileFacts, forbidden: Forbidden) -> Iterator[Breach]:
    cell = forbidden.cell

    def is_one(fact: CollectiveFact) -> bool:
        cells = (cell_of(fact.scope), *(tensor.cell for tensor in fact.tensors))
        inside = not cell or any(own == cell or own.startswith(f"{cell}/") for own in cells)
        return forbidden.operator in (ANY, fact.row.operator) and inside

    worst = max(facts.kinds, key=lambda kind: sum(map(is_one, kind.collectives)))
    meeting = _largest_first(worst, is_one)
    if meeting:
        message = f"{forbidden} is forbidden, and there {'is one' if len(meeting) == 1 else f'are {len(meeting)}'}"
        yield Breach(FORBID, message, worst.ranks, float(len(meeting)), meeting)


def _largest_first(kind: RankFacts, wanted: Callable[[CollectiveFact], bool]) -> tuple[CollectiveFact, ...]:
    return tuple(sorted(filter(wanted, kind.collectives), key=lambda fact: -fact.row.bytes))


def _check_cell(facts: CompileFacts, forbidden: Forbidden) -> None:
    """Raise MspcError if the cell does not exist: a misspelled name would never forbid anything."""
    known: dict[str, None] = {}
    scopes = [name.rpartition("/")[0] for name in (facts.plan.operators if facts.plan is not None else ())]
    for scope in (*scopes, *(scope for kind in facts.kinds for scope in kind.scopes)):
        parts = scope.split("/")
        known.update(dict.fromkeys("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)))
    if forbidden.cell and forbidden.cell not in known:
        notes = did_you_mean(forbidden.cell, known) or [f"the first are {', '.join([*known][:MAX_NAMED])}"]
        raise MspcError(f"{facts.name} has no cell {forbidden.cell!r}, in which {FORBID} has something", notes=notes)


VERSION = 1
MARK = "mspc_baseline"
KEYS = (MARK, "bytes", "memory", "step", "collectives")
LARGEST = 1 << 20
"""Most bytes of a file."""


@dataclass(frozen=True)
class Baseline:
    """Figures of a compile, see above. memory, step: None if unknown."""

    bytes: int
    memory: int | None
    step: float | None
    collectives: dict[str, int]

    def budget(self, tolerance: float, facts: CompileFacts) -> Budget:
        """Return the limits for a later compile: every figure may grow by the fraction `tolerance`. Collective
        operators that the baseline does not contain are forbidden."""
        def grown(figure: float) -> int:
            return math.floor(figure * (1 + tolerance))

        present = {fact.row.operator for kind in facts.kinds for fact in kind.collectives}
        operators = sorted({*self.collectives, *present})
        return Budget(
            grown(self.bytes),
            None if self.memory is None else grown(self.memory),
            {operator: grown(self.collectives.get(operator, 0)) for operator in operators},
            step=None if self.step is None else self.step * (1 + tolerance),
        )


def baseline_of(facts: CompileFacts) -> Baseline:
    """Return the figures of a compile. Raise MspcError for a plan, which has none."""
    if not facts.kinds:
        raise MspcError(f"{facts.name} is a plan, which sends nothing", notes=["take the folder of its compile"])
    counts: Counter[str] = Counter()
    for kind in facts.kinds:
        runs: Counter[str] = Counter()
        for fact in kind.collectives:
            runs[fact.row.operator] += fact.row.runs
        counts |= runs
    memory = [kind.peak_bytes for kind in facts.kinds if kind.peak_bytes is not None]
    return Baseline(
        max(kind.bytes_sent for kind in facts.kinds),
        max(memory, default=None),
        facts.step,
        dict(sorted(counts.items())),
    )


def write_baseline(path: Path, facts: CompileFacts) -> None:
    """Write the figures of a compile. Raise MspcError for a plan, or if the file cannot be written."""
    found = baseline_of(facts)
    write_json({MARK: VERSION, **{key: getattr(found, key) for key in KEYS[1:]}}, path)


def read_baseline(path: Path) -> Baseline:
    """Return the figures in a file. Raise MspcError if there is no such file, or it does not have the format of
    `write_baseline`."""
    notes = ["mspc check TARGET --write-baseline FILE writes one"]
    table = read_toml(path, "baseline", LARGEST, as_json=True, notes=notes)
    if wrong := _wrong(table):
        raise MspcError(f"{shown_path(path)} is no baseline: {wrong}", notes=notes)
    return Baseline(table["bytes"], table["memory"], table["step"], table["collectives"])


def _wrong(table: dict[str, Any]) -> str:
    """Return the error in the content of a baseline file; "" if it is valid."""
    if table.get(MARK) != VERSION:
        return f"{MARK} is {table.get(MARK)!r}, not {VERSION}"
    for key in KEYS:
        if key not in table:
            return f"{key!r} is missing"
    counts = table["collectives"]
    figures = {key: table[key] for key in ("bytes", "memory", "step") if table[key] is not None or key == "bytes"}
    if not isinstance(counts, dict):
        return "collectives is no object"
    figures |= {f"collectives of {name}": count for name, count in cast("dict[str, Any]", counts).items()}
    for key, value in figures.items():
        kinds = (int, float) if key == "step" else int
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
            return f"{key} is {value!r}"
    return ""
