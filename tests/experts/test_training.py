"""Small networks of experts on 8 ranks have the losses of one device, step by step."""

from __future__ import annotations

import contextlib
import io
import re
from itertools import product
from pathlib import Path

import pytest

from mspc.commands.run import run_script
from tests.shares import is_taken

STEPS = 20


def losses(root: Path, ranks: int, *arguments: str) -> list[float]:
    """The losses of 20 steps of a network of `benchmarks/networks/experts.py`, of the first rank."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        run_script(root / "benchmarks/networks/experts.py", ranks, simulate=True,
                   script_arguments=[*arguments, str(STEPS)])  # fmt: skip
    found = [float(text) for text in re.findall(r"loss ([0-9.e+-]+)", printed.getvalue())]
    return found[::ranks]


@pytest.mark.parametrize(
    ("network", "form"),
    [each for place, each in enumerate(product(["small-mixtral", "small-deepseek"], ["sorted", "tables"]))
     if is_taken(place, 4)],
)  # fmt: skip
def test_losses_are_those_of_one_device(network: str, form: str, root: Path) -> None:
    alone = losses(root, 1, network, form, "1")
    assert len(alone) == STEPS
    assert alone[-1] < alone[0] - 0.5
    assert losses(root, 8, network, form, "4") == pytest.approx(alone, rel=2e-6)
