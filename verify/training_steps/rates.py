"""Compares learning rates with PyTorch's schedules, or their formulas: of cells, of lists, and of schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.verify.training_steps.case import Case

Array = Any
COUNT = 10


def rates() -> list[Case]:
    """A case for every schedule."""
    from mspc.api import nn

    def cell(name: str, make: Callable[[], Any], formula: Callable[[int], float], source: str) -> Case:
        wanted = np.array([formula(step) for step in range(COUNT)])
        return Case(f"nn.{name}", lambda: _of_steps(make()), lambda torch: wanted, source)

    def listed(name: str, found: Callable[[], Sequence[float]], formula: Callable[[int], float], source: str) -> Case:
        wanted = np.array([formula(step) for step in range(COUNT)])
        return Case(f"nn.{name}", lambda: np.array(found()), lambda torch: wanted, source)

    documented = "MindSpore's documentation"
    inverse = "Szegedy et al. 2016: lr / (1 + rate t / T)"
    cosine = "Loshchilov and Hutter 2017, equation 5, held at its end"
    return [
        cell("ExponentialDecayLR", lambda: nn.ExponentialDecayLR(0.4, 0.5, 4), lambda t: 0.4 * 0.5 ** (t / 4),
             documented),
        cell("ExponentialDecayLR in stairs", lambda: nn.ExponentialDecayLR(0.4, 0.5, 4, True),
             lambda t: 0.4 * 0.5 ** (t // 4), documented),
        cell("NaturalExpDecayLR", lambda: nn.NaturalExpDecayLR(0.4, 0.3, 4), lambda t: 0.4 * math.exp(-0.3 * t),
             documented),
        cell("InverseDecayLR", lambda: nn.InverseDecayLR(0.4, 0.5, 4), lambda t: 0.4 / (1 + 0.5 * t / 4), inverse),
        cell("CosineDecayLR", lambda: nn.CosineDecayLR(0.1, 0.4, 8),
             lambda t: 0.1 + 0.15 * (1 + math.cos(math.pi * min(t, 8) / 8)), cosine),
        cell("PolynomialDecayLR", lambda: nn.PolynomialDecayLR(0.4, 0.1, 8, 2.0),
             lambda t: 0.3 * (1 - min(t, 8) / 8) ** 2 + 0.1, documented),
        cell("WarmUpLR", lambda: nn.WarmUpLR(0.4, 5), lambda t: 0.4 * min(t, 5) / 5, documented),
        listed("exponential_decay_lr", lambda: nn.exponential_decay_lr(0.4, 0.5, COUNT, 2, 3),
               lambda t: 0.4 * 0.5 ** (t // 2 / 3), documented),
        listed("natural_exp_decay_lr", lambda: nn.natural_exp_decay_lr(0.4, 0.3, COUNT, 2, 3),
               lambda t: 0.4 * math.exp(-0.3 * (t // 2)), documented),
        listed("inverse_decay_lr", lambda: nn.inverse_decay_lr(0.4, 0.5, COUNT, 2, 3),
               lambda t: 0.4 / (1 + 0.5 * (t // 2) / 3), inverse),
        listed("cosine_decay_lr", lambda: nn.cosine_decay_lr(0.1, 0.4, COUNT, 2, 4),
               lambda t: 0.1 + 0.15 * (1 + math.cos(math.pi * min(t // 2, 4) / 4)), cosine),
        listed("polynomial_decay_lr", lambda: nn.polynomial_decay_lr(0.4, 0.1, COUNT, 2, 4, 2.0),
               lambda t: 0.3 * (1 - min(t // 2, 4) / 4) ** 2 + 0.1, documented),
        listed("warmup_lr", lambda: nn.warmup_lr(0.4, COUNT, 2, 3), lambda t: 0.4 * min(t // 2, 3) / 3, documented),
        listed("piecewise_constant_lr", lambda: nn.piecewise_constant_lr([3, COUNT], [0.4, 0.1]),
               lambda t: 0.4 if t < 3 else 0.1, documented),
        *(_scheduler(name, options) for name, options in SCHEDULERS),
        Case("lr_scheduler.SequentialLR", lambda: _scheduled("SequentialLR", _ours()),
             lambda torch: _scheduled("SequentialLR", torch.optim, torch=torch)),
        Case("lr_scheduler.ReduceLROnPlateau", lambda: _scheduled("ReduceLROnPlateau", _ours()),
             lambda torch: _scheduled("ReduceLROnPlateau", torch.optim, torch=torch)),
    ]  # fmt: skip


SCHEDULERS: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 2, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 3}),
    ("LinearLR", {"start_factor": 0.25, "total_iters": 4}),
    ("PolynomialLR", {"total_iters": 4, "power": 2.0}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.8**epoch}),
    ("MultiplicativeLR", {"lr_lambda": lambda epoch: 1 - 0.05 * epoch}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2, "eta_min": 0.01}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "step_size_down": 3, "mode": "triangular2"}),
]
MEASURES = (1, 1.5, 1.8, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _of_steps(schedule: Any) -> Array:
    """The rates of the steps of an optimizer: what a gradient of ones takes away."""
    from mspc.api import nn
    from mspc.api.common.parameter import Parameter
    from mspc.api.common.tensor import Tensor

    weight = Parameter(Tensor(np.zeros(1, np.float32)), "w")
    optimizer, values = nn.SGD([weight], schedule), [0.0]
    for _ in range(COUNT):
        optimizer((Tensor(np.ones(1, np.float32)),))
        values.append(float(weight.asnumpy()[0]))
    return -np.diff(values)


def _ours() -> Any:
    from mspc.api.experimental import optim

    return optim


def _scheduler(name: str, options: dict[str, Any]) -> Case:
    return Case(f"lr_scheduler.{name}", lambda: _scheduled(name, _ours(), options),
                lambda torch: _scheduled(name, torch.optim, options, torch))  # fmt: skip


def _scheduled(name: str, library: Any, options: dict[str, Any] | None = None, torch: Any = None) -> Array:
    """[steps, groups]: rates of a scheduler, of mspc's `optim`, or of PyTorch's where that is given."""
    optimizer = library.SGD(
        [{"params": [_parameter(torch, i)], "lr": rate} for i, rate in enumerate((0.1, 0.2))], lr=1.0, momentum=0.5
    )
    kinds = library.lr_scheduler
    if name == "SequentialLR":
        parts = [kinds.ConstantLR(optimizer, 0.1, 2), kinds.ExponentialLR(optimizer, 0.9)]
        schedule = kinds.SequentialLR(optimizer, parts, [3])
    elif name == "ReduceLROnPlateau":
        schedule = kinds.ReduceLROnPlateau(optimizer, "min", patience=1, cooldown=1, factor=0.5, min_lr=0.03)
    else:
        schedule = getattr(kinds, name)(optimizer, **(options or {}))
    found: list[list[float]] = []
    for step in range(COUNT):
        if torch is not None:
            optimizer.step()
        schedule.step(*(MEASURES[step : step + 1] if name == "ReduceLROnPlateau" else ()))
        found.append([float(r.asnumpy()) if hasattr(r, "asnumpy") else float(r) for r in schedule.get_last_lr()])
    return np.array(found)


def _parameter(torch: Any, number: int) -> Any:
    if torch is None:
        from mspc.api.common.parameter import Parameter
        from mspc.api.common.tensor import Tensor

        return Parameter(Tensor(np.ones(2, np.float32)), f"w{number}")
    return torch.nn.Parameter(torch.ones(2))
