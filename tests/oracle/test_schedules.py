"""Learning rates against PyTorch's schedules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

T = torch.optim.lr_scheduler
STEPS = 12


def judged(make: Any, start: float = 0.4) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], start)
    schedule, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


def taken(schedule: Any) -> list[float]:
    """The rates of the steps of a compiled optimizer."""
    weight = Parameter(Tensor(np.zeros(1, np.float32)), "w")
    optimizer, before, found = nn.SGD([weight], schedule), 0.0, []
    for _ in range(STEPS):
        optimizer((Tensor(np.ones(1, np.float32)),))
        found.append(before - float(weight.asnumpy()[0]))
        before = float(weight.asnumpy()[0])
    return found


CASES: list[tuple[str, Any, Any]] = [  # beside those of optimizer_cases
    ("polynomial that begins anew", lambda: nn.PolynomialDecayLR(0.4, 0.1, 4, 0.5, True),
     lambda o: T.LambdaLR(o, lambda s: (0.3 * (1 - s / (4 * max(1, math.ceil(s / 4)))) ** 0.5 + 0.1) / 0.4)),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cells(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(taken(mine()), judged(theirs), rtol=1e-5, atol=1e-6)
