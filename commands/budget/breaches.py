"""Breaches of a compile's budget, and the collectives that cause them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from mspc.commands.budget.limits import ANY, BYTES, COLLECTIVES, FORBID, IDLE, MEMORY, STEP, Budget, Forbidden
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.facts.graph import CollectiveFact, GraphFacts
from mspc.commands.report.tables import counted, exact_text, time_text, write_json
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
    found = (breach for key, check in CHECKS.items() if key in budget for breach in check(facts, budget[key]))
    return sorted(found, key=lambda breach: -breach.times)


def _sent(facts: CompileFacts, most: int) -> Iterator[Breach]:
    worst = max(facts.kinds, key=lambda kind: kind.bytes_sent)
    if worst.bytes_sent > most:
        message = f"a step sends {exact_text(worst.bytes_sent)}; the limit is {exact_text(most)}"
        yield Breach(BYTES, message, worst.ranks, _times(worst.bytes_sent, most), _largest_first(worst.collectives))


def _memory(facts: CompileFacts, most: int) -> Iterator[Breach]:
    kinds = [(kind.memory, kind) for kind in facts.kinds if kind.memory is not None]
    if not kinds:
        raise MspcError(f"{facts.name} does not state the memory of a rank, which {MEMORY} limits")
    memory, worst = max(kinds, key=lambda entry: entry[0].total)
    if memory.total > most:
        parts = tuple((name, int(getattr(memory, name))) for name in PARTS)
        message = f"a step takes {exact_text(memory.total)} of memory; the limit is {exact_text(most)}"
        yield Breach(MEMORY, message, worst.ranks, _times(memory.total, most), memory=parts)


def _step(facts: CompileFacts, most: float) -> Iterator[Breach]:
    step = facts.step
    if step is None:
        raise MspcError(f"{facts.name} does not say how long a step takes, which {STEP} limits")
    if step <= most:
        return
    if facts.pipeline is not None and facts.pipeline.step is not None:
        worst = min(facts.kinds, key=lambda kind: facts.idle(kind) or 0.0)
        waits, slowest = " including the waits of stages for each other", list[CollectiveFact]()
        why = f"the busiest stage is idle for {facts.idle(worst) or 0.0:.1%} of it"
    else:
        times, worst = max(((kind.times, kind) for kind in facts.kinds if kind.times), key=lambda entry: entry[0].step)
        waits, slowest = "", sorted(worst.collectives, key=lambda fact: -(fact.seconds or 0.0))
        exposed = f"{time_text(times.exposed)} of communication is not overlapped"
        why = f"it computes for {time_text(times.compute)}, and {exposed}"
    message = f"a step is predicted to take {time_text(step)}{waits}; the limit is {time_text(most)}; {why}"
    yield Breach(STEP, message, worst.ranks, _times(step, most), tuple(slowest))


def _idle(facts: CompileFacts, most: float) -> Iterator[Breach]:
    idle = [(share, kind) for kind in facts.kinds if (share := facts.idle(kind)) is not None]
    if not idle:
        note = "the folder of a compile that wrote every stage has them, if the network has micro-batches"
        raise MspcError(f"{facts.name} has no times of stages, which {IDLE} limits", notes=[note])
    share, worst = max(idle, key=lambda entry: entry[0])
    if share > most:
        message = f"a stage is idle for {share:.1%} of a step; the limit is {most:.1%}"
        yield Breach(IDLE, message, worst.ranks, _times(share, most))


def _times(taken: float, most: float) -> float:
    return float(taken / most if most else taken)


def _counts(facts: CompileFacts, limits: Mapping[str, int]) -> Iterator[Breach]:
    for operator, most in limits.items():
        worst = max(facts.kinds, key=partial(_runs, operator))
        count = _runs(operator, worst)
        if count > most:
            those = [fact for fact in worst.collectives if operator in (ANY, fact.row.operator)]
            collectives = counted(count, "collective" if operator == ANY else operator)
            message = f"{collectives} in a step; the limit is {most}"
            yield Breach(COLLECTIVES, message, worst.ranks, _times(count, most), _largest_first(those))


def _runs(operator: str, kind: GraphFacts) -> int:
    return kind.runs.total() if operator == ANY else kind.runs[operator]


def _forbidden(facts: CompileFacts, forbidden: Sequence[Forbidden]) -> Iterator[Breach]:
    for each in forbidden:
        _check_cell(facts, each)
        worst = max(facts.kinds, key=lambda kind: sum(map(each.forbids, kind.collectives)))
        meeting = _largest_first(filter(each.forbids, worst.collectives))
        if meeting:
            message = f"{each} is forbidden, and there {'is one' if len(meeting) == 1 else f'are {len(meeting)}'}"
            yield Breach(FORBID, message, worst.ranks, float(len(meeting)), meeting)


CHECKS: dict[str, Callable[[CompileFacts, Any], Iterator[Breach]]] = {
    BYTES: _sent, MEMORY: _memory, COLLECTIVES: _counts, STEP: _step, IDLE: _idle, FORBID: _forbidden,
}  # fmt: skip
"""The function that checks the limit of every key."""


def _largest_first(collectives: Iterable[CollectiveFact]) -> tuple[CollectiveFact, ...]:
    return tuple(sorted(collectives, key=lambda fact: -fact.row.bytes))


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

        operators = sorted({*self.collectives, *(operator for kind in facts.kinds for operator in kind.runs)})
        counts = {operator: grown(self.collectives.get(operator, 0)) for operator in operators}
        found: dict[str, Any] = {BYTES: grown(self.bytes), COLLECTIVES: counts}
        if self.memory is not None:
            found[MEMORY] = grown(self.memory)
        return found if self.step is None else found | {STEP: self.step * (1 + tolerance)}


def baseline_of(facts: CompileFacts) -> Baseline:
    """Return the figures of a compile. Raise MspcError for a plan, which has none."""
    if not facts.kinds:
        raise MspcError(f"{facts.name} is a plan, which sends nothing", notes=["take the folder of its compile"])
    counts = Counter[str]()
    for kind in facts.kinds:
        counts |= kind.runs
    memory = [kind.memory.total for kind in facts.kinds if kind.memory is not None]
    most = max(kind.bytes_sent for kind in facts.kinds)
    return Baseline(most, max(memory, default=None), facts.step, dict(sorted(counts.items())))


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
