"""The judge of training steps: every optimizer and schedule has a case, all agree, and what is wrong is found."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn
from mspc.ops.optim import optimizer as updates

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from mspc.verify.pytorch.counterparts import update_formulas  # noqa: E402
from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch
from tests.oracle.optimizer_cases import GRADIENTS, START, Case  # noqa: E402  # it needs PyTorch
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


T = torch.optim.lr_scheduler
STEPS = 12


def schedule_judged(make: Any, start: float = 0.4) -> list[float]:
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
    np.testing.assert_allclose(taken(mine()), schedule_judged(theirs), rtol=1e-5, atol=1e-6)


STEP_T = torch.optim


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_weights_in_bfloat16(kind: str) -> None:
    """Weights, gradients and states are in bfloat16, as PyTorch has them; each step rounds them once or twice."""
    settings: dict[str, Any] = {"weight_decay": 0.05} | ({"momentum": 0.9} if kind == "SGD" else {})
    halves = [Parameter(Tensor(array).astype(ms.bfloat16), name) for array, name in zip(START, "ab", strict=True)]
    optimizer = getattr(mint.optim, kind)(halves, 0.1, **settings)
    theirs = [torch.nn.Parameter(torch.tensor(array).bfloat16()) for array in START]
    judge = getattr(STEP_T, kind)(theirs, 0.1, **settings)
    for gradients in GRADIENTS:
        optimizer(tuple(Tensor(gradient).astype(ms.bfloat16) for gradient in gradients))
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient).bfloat16()
        judge.step()
    for mine, other in zip(halves, theirs, strict=True):
        assert mine.dtype == ms.bfloat16
        near(mine.astype(ms.float32).asnumpy(), other.detach().float().numpy(), "all steps", 0.05)


@pytest.mark.parametrize("kind", ["Momentum", "Lamb", "AdamWeightDecay"])
def test_centralized_gradients(kind: str, capsys: Any) -> None:
    """The gradients of groups that ask for it, less their means where the second dimension is a multiple of 16; after
    the weight decay where that is added to the gradient."""
    shapes = {"a": (3, 16, 2), "b": (3, 5, 2), "c": (16,), "d": (2, 16)}
    w = {name: floats(i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}
    g = {name: floats(9 + i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}

    def moved(asked: bool, gradients: dict[str, np.ndarray]) -> list[np.ndarray]:
        own = [Parameter(Tensor(array), name) for name, array in w.items()]
        groups = [{"params": own[:3], "grad_centralization": asked}, {"params": own[3:]}]
        arguments = (0.1, 0.9, 0.3) if kind == "Momentum" else (0.1,)
        getattr(nn, kind)(groups, *arguments)(tuple(map(Tensor, gradients.values())))
        return [p.asnumpy() for p in own]

    decay = 0.3 if kind == "Momentum" else 0.0
    pulled = g["a"] + decay * w["a"]
    by_hand = g if kind == "AdamWeightDecay" else g | {"a": g["a"] - pulled.mean((1, 2), keepdims=True)}
    for mine, theirs in zip(moved(True, g), moved(False, by_hand), strict=True):
        near(mine, theirs, kind, 1e-5)
    said = "warning: AdamWeightDecay: grad_centralization changes nothing, as in MindSpore\n"
    assert capsys.readouterr().err == (said if kind == "AdamWeightDecay" else "")
