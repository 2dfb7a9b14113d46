"""A baseline has figures of a compile that a later one is held to: a file that `mspc check --write-baseline` makes.

    {"mspc_baseline": 1, "bytes": 3072, "memory": 52000, "step": 0.00041, "collectives": {"AllReduce": 4}}

Bytes that a rank sends in one step, bytes of memory that the step takes, predicted seconds of it, and collectives by
operator; each of the ranks that have most. What the text of a compile does not tell is null.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, cast

from mspc.commands.budget.limits import Budget
from mspc.commands.facts.model import CompileFacts
from mspc.commands.report.table import write_json
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass

VERSION = 1
MARK = "mspc_baseline"
KEYS = (MARK, "bytes", "memory", "step", "collectives")
LARGEST = 1 << 20
"""Bytes of a file."""


@dataclass(frozen=True)
class Baseline:
    """Figures of a compile, see above. memory, step: None where they are not told."""

    bytes: int
    memory: int | None
    step: float | None
    collectives: dict[str, int]

    def budget(self, tolerance: float, facts: CompileFacts) -> Budget:
        """The limits for a later compile: every figure may be larger by the share `tolerance`. Operators of collectives
        that were not there may not be."""
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
    """The figures of a compile. Raises MspcError for a plan, which has none."""
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
    """Write the figures of a compile. Raises MspcError where the file cannot be written."""
    found = baseline_of(facts)
    write_json({MARK: VERSION, **{key: getattr(found, key) for key in KEYS[1:]}}, path)


def read_baseline(path: Path) -> Baseline:
    """The figures in a file.

    Raises:
        MspcError: there is none, or it is not what `write_baseline` writes.
    """
    shown = shown_path(path)
    try:
        check_regular(path, LARGEST)
        found = parsed_json(path.read_bytes())
        wrong = _wrong(found)
    except OSError as error:
        raise MspcError(f"the baseline {shown} cannot be read: {error.strerror}") from None
    except ValueError as error:
        found, wrong = None, str(error)
    if wrong:
        notes = ["mspc check TARGET --write-baseline FILE writes one"]
        raise MspcError(f"{shown} is no baseline: {wrong}", notes=notes)
    table = cast("dict[str, Any]", found)
    return Baseline(table["bytes"], table["memory"], table["step"], table["collectives"])


def _wrong(found: Any) -> str:
    """What is wrong with the content of a file; "" where nothing is."""
    if not isinstance(found, dict):
        return "it is not a JSON object"
    table = cast("dict[str, Any]", found)
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
