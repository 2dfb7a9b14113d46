"""Plans that models of transformers bring, beside searched ones: collectives, bytes and memory of a training step.

    python -m benchmarks.pytorch.plans [--only NAME]... [--ranks N] [--write docs/pytorch-plans.md]

Needs torch and transformers. Every row is `mspc compile --plan own` and `mspc search` of `planned_models.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pytorch.planned_models import MODELS

ROOT = Path(__file__).resolve().parents[2]
MSPC = [sys.executable, "-m", "mspc"]
TRAINED = ["--torch", "--optimizer", "adamw"]
SEARCHED = "search"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


class Figures(NamedTuple):
    """Of rank 0 in one step: collectives, the bytes that it sends, and those of its memory."""

    collectives: int
    sent: int
    memory: int


def _printed(*arguments: str) -> Any:
    """What a command prints as JSON. Raises RuntimeError with what it says where it fails."""
    done = subprocess.run([*MSPC, *arguments, "--json", "-"], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if " error: " in line]
        raise RuntimeError(errors[0] if errors else f"status {done.returncode}")
    return json.loads(done.stdout)


def own(target: str, ranks: int, folder: Path) -> Figures:
    """Of the plan that the model brings."""
    found = _printed(
        "compile", target, *TRAINED, "--ranks", str(ranks), "--rank", "0", "--plan", "own", "--out", str(folder), "-q"
    )
    totals = found["totals"]
    return Figures(totals["collectives"], totals["bytes_sent"], totals["peak_bytes"])


def searched(target: str, ranks: int) -> Figures:
    """Of the plan that the search finds."""
    plans = _printed("search", target, *TRAINED, "--ranks", str(ranks))["plans"]
    plan = next(each for each in plans if each["name"] == SEARCHED)
    return Figures(plan["collectives"], int(plan["nbytes"]), plan["memory"])


def row(name: str, ranks: int) -> str:
    """One line of the table."""
    target = f"benchmarks/pytorch/planned_models.py:make({name!r})"
    try:
        with tempfile.TemporaryDirectory() as folder:
            theirs = own(target, ranks, Path(folder) / "out")
        found = searched(target, ranks)
    except RuntimeError as error:
        return f"| {name} | {error} | | | | | | |"
    ratio = theirs.sent / found.sent if found.sent else float("inf")
    return f"| {name} | {_cells(theirs)} | {_cells(found)} | {ratio:.1f} |"


def _cells(figures: Figures) -> str:
    return f"{figures.collectives} | {figures.sent / 1e6:,.0f} MB | {figures.memory / 2**20:,.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MODELS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    lines = [
        "| model | own: collectives | sent | memory | searched: collectives | sent | memory | own / searched sent |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in asked.only or MODELS:
        lines.append(row(name, asked.ranks))
        print(lines[-1], flush=True)
    if asked.write:
        before, begin, rest = asked.write.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        asked.write.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


if __name__ == "__main__":
    main()
