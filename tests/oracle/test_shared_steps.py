"""The judge of training steps: every optimizer and schedule has a case, all agree, and what is wrong is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc import mint, nn
from mspc.ops.optim import optimizer as updates

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from mspc.verify.pytorch.counterparts import update_formulas  # noqa: E402
from tests.oracle.optimizer_cases import Case  # noqa: E402  # it needs PyTorch
from tests.oracle.step_cases import cases, judged  # noqa: E402


def one(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


def test_every_case_agrees() -> None:
    rows = [judged(case, torch) for case in cases()]
    assert [row.name for row in rows if not row.same or row.difference > row.tolerance / 2] == []
    assert len({row.name for row in rows}) == len(rows) > 50


def test_every_optimizer_and_schedule_has_a_case() -> None:
    names = {case.name.split()[0].split(",")[0] for case in cases()}
    found = {
        f"{home}.{name}"
        for home, module, base in (
            ("nn", nn, nn.Optimizer), ("mint.optim", mint.optim, nn.Optimizer),
        )
        for name in dir(module)
        if name[0].isupper() and isinstance(kind := getattr(module, name), type) and issubclass(kind, base)
    } - {"nn.Optimizer", "mint.optim.Optimizer"}  # fmt: skip
    schedules = {f"nn.{name}" for name in dir(nn) if name.endswith(("DecayLR", "WarmUpLR")) or name.endswith("_lr")}
    assert (found | schedules) - names - {"nn.dynamic_lr"} == set()


def wrong(name: str) -> bool:
    return not judged(one(name), torch).same


def test_a_second_moment_with_the_first_rate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def moments(m: Any, v: Any, beta1: Any, beta2: Any, gradient: Any) -> None:
        m[...] = m * beta1 + gradient * (1 - beta1)
        v[...] = v * beta1 + gradient * gradient * (1 - beta2)

    monkeypatch.setattr(updates, "_moments", moments)
    assert wrong("nn.Adam")
    assert wrong("nn.AdamWeightDecay")


def test_parts_that_are_left_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shorter(nn.GradAccumulationCell):
        def __init__(self, network: Any, micro_size: int) -> None:
            super().__init__(network, micro_size)
            self.micro_size = micro_size - 1

    monkeypatch.setattr(nn, "GradAccumulationCell", Shorter)
    assert wrong("nn.GradAccumulationCell")


@pytest.mark.parametrize("name", ["Adam", "ApplyMomentum", "SGD", "AdamWeightDecay"])
def test_formulas_of_updates_are_those_of_the_operators(name: str) -> None:
    op_class = getattr(updates, name)
    for sample in op_class.samples:
        op = op_class(**sample.fields)
        operands = [np.random.default_rng(i).uniform(0.1, 0.9, shape) for i, shape in enumerate(sample.shapes)]
        formula = update_formulas(torch)[name](op, *[torch.tensor(o) for o in operands])
        op.run(SimpleNamespace(xp=np), *operands)
        for index, tensor in zip(op.mutates, formula, strict=True):
            np.testing.assert_allclose(operands[index], tensor.numpy(), rtol=1e-12)
