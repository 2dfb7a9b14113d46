"""Runs all cases in a process whose settings are no script's: `python -m mspc.verify.training_steps.reference`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from typing import Any

import numpy as np

from mspc.engine.ranks.mpirun import python_module
from mspc.ir.diagnostics import ExecutionError
from mspc.verify.difference import ComparedValue, compare
from mspc.verify.training_steps.case import Case

Array = Any
TOLERANCE = 2e-5
"""Of Float32 over some steps, relative to the largest number."""


def cases() -> list[Case]:
    """All of them."""
    from mspc.verify.training_steps.formulas import formulas
    from mspc.verify.training_steps.full_steps import complete_steps
    from mspc.verify.training_steps.optimizers import optimizers
    from mspc.verify.training_steps.rates import rates

    return [*optimizers(), *formulas(), *rates(), *complete_steps()]


def judged(case: Case, torch: Any) -> ComparedValue:
    """The row of one case; one that fails has no numbers at all."""
    expected = np.asarray(case.theirs(torch), np.float64)
    try:
        found: Array | None = np.asarray(case.mine(), np.float64)
    except Exception:  # what went wrong is the row's to say: another shape than the judge's
        found = None
    before = None if case.before is None else np.asarray(case.before, np.float32)
    wanted, own = expected.astype(np.float32), None if found is None else found.astype(np.float32)
    return compare("step", case.name, wanted, own, TOLERANCE, None, before)


@cache
def judged_apart() -> tuple[ComparedValue, ...]:
    """The rows of all cases, computed by another process, once: they depend on nothing but mspc.

    Raises:
        ExecutionError: it did not end well.
    """
    command = python_module("mspc.verify.training_steps.reference")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return tuple(ComparedValue(**(entry | {"shape": tuple(entry["shape"])})) for entry in json.loads(done.stdout))
    except (ValueError, TypeError, KeyError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ExecutionError(f"the judge of training steps ended with status {done.returncode}: {last}") from None


def main() -> None:
    """Print the rows as JSON."""
    from mspc.verify.pytorch.counterparts import load_torch

    torch = load_torch()
    with redirect_stdout(io.StringIO()):
        rows = [judged(case, torch) for case in cases()]
    sys.stdout.write(json.dumps([row.__dict__ for row in rows]))


if __name__ == "__main__":
    main()
