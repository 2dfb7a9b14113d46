"""Compares every optimizer of mspc with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.verify.training_steps.case import BEFORE, SCALE, Case, by_torch, taken

TINY = 1e-12
"""Where MindSpore adds eps elsewhere than PyTorch, it is too small to be seen."""


Mine = Callable[[list[Any], float], Any]
Theirs = Callable[[Any, list[Any]], Any]


def _case(
    name: str, mine: Mine, theirs: Theirs, scale: float = 1.0, decay: float = 0.0, state: str = ""
) -> Case:  # fmt: skip
    return Case(
        name, lambda: taken(mine, scale, state=state),
        lambda torch: by_torch(torch, lambda p: theirs(torch.optim, p), decay, state),
        before=None if state else BEFORE,
    )  # fmt: skip


def _from_ones(o: Any, p: list[Any], centered: bool) -> Any:
    """PyTorch's RMSprop with MindSpore's first mean square, 1."""
    made = o.RMSprop(p, 0.05, 0.8, TINY, 0.05, 0.5, centered, foreach=False)
    for each in p:
        made.state[each] = {
            "step": each.new_zeros(()), "square_avg": each.detach() * 0 + 1,
            "momentum_buffer": each.detach() * 0, "grad_avg": each.detach() * 0,
        }  # fmt: skip
    return made


def _two(p: list[Any]) -> list[dict[str, Any]]:
    return [{"params": [p[1]], "lr": 0.2, "weight_decay": 0.1}, {"params": [p[0]]}]


SAME: dict[str, dict[str, Any]] = {
    "Adam": {"lr": 0.05, "weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.05, "weight_decay": 0.1, "maximize": True},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adadelta": {"lr": 0.5, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1},
    "Adamax": {"lr": 0.05, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.05, "momentum": 0.9, "centered": True, "alpha": 0.8, "weight_decay": 0.1},
    "ASGD": {"lr": 0.1, "lambd": 0.1, "t0": 1.0, "weight_decay": 0.1},
    "NAdam": {"lr": 0.05, "weight_decay": 0.1},
    "RAdam": {"lr": 0.05, "betas": (0.8, 0.5), "weight_decay": 0.1},
    "Rprop": {"lr": 0.05, "step_sizes": (0.03, 0.055), "maximize": True},
}
"""Of `experimental.optim`, whose arguments are PyTorch's."""


def optimizers() -> list[Case]:
    """A case for every optimizer that PyTorch has, with weight decay and, where it takes one, a loss scale."""
    return [*_with_moments(), *_adaptive(), *_with_its_arguments()]


def _with_moments() -> list[Case]:
    from mspc.api import nn

    return [
        _case("nn.SGD", lambda p, s: nn.SGD(p, 0.1, 0.9, 0.3, 0.05, loss_scale=s),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.3, 0.05), SCALE),
        _case("nn.SGD nesterov", lambda p, s: nn.SGD(p, 0.1, 0.9, 0.0, 0.05, True, s),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.0, 0.05, True), SCALE),
        _case("nn.Momentum", lambda p, s: nn.Momentum(p, 0.1, 0.9, 0.05, s),
              lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.05), SCALE),
        _case("nn.Momentum nesterov", lambda p, s: nn.Momentum(p, 0.1, 0.9, 0.05, s, True),
              lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.05, nesterov=True), SCALE),
        _case("nn.Momentum in groups", lambda p, s: nn.Momentum([*_two(p), {"order_params": p}], 0.1, 0.9, 0.03),
              lambda o, p: o.SGD([_two(p)[0], {"params": [p[0]], "weight_decay": 0.03}], 0.1, 0.9)),
        _case("nn.Adam", lambda p, s: nn.Adam(p, 0.05, eps=TINY, weight_decay=0.05, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY, weight_decay=0.05), SCALE),
        _case("nn.Adam lazy", lambda p, s: nn.Adam(p, 0.05, eps=TINY, use_lazy=True, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY), SCALE),
        _case("nn.LazyAdam", lambda p, s: nn.LazyAdam(p, 0.05, eps=TINY, weight_decay=0.05, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY, weight_decay=0.05), SCALE),
        _case("nn.AdamOffload", lambda p, s: nn.AdamOffload(p, 0.05, eps=TINY, weight_decay=0.05, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY, weight_decay=0.05), SCALE),
    ]  # fmt: skip


def _adaptive() -> list[Case]:
    from mspc.api import nn

    return [
        _case("nn.AdaMax", lambda p, s: nn.AdaMax(p, 0.05, 0.8, 0.9, TINY, 0.05, s),
              lambda o, p: o.Adamax(p, 0.05, (0.8, 0.9), TINY, 0.05), SCALE),
        _case("nn.Adagrad", lambda p, s: nn.Adagrad(p, 0.1, 0.05, True, s, 0.05),
              lambda o, p: o.Adagrad(p, 0.05, 0.0, 0.05, 0.1, TINY), SCALE),
        _case("nn.Adadelta", lambda p, s: nn.Adadelta(p, 0.7, 0.8, 1e-5, s, 0.05),
              lambda o, p: o.Adadelta(p, 0.7, 0.8, 1e-5, 0.05), SCALE),
        _case("nn.ASGD", lambda p, s: nn.ASGD(p, 0.05, 0.1, 0.75, 3.0, 0.05),
              lambda o, p: o.ASGD(p, 0.05, 0.1, 0.75, 3.0, 0.05, foreach=False)),
        _case("nn.ASGD, its average", lambda p, s: nn.ASGD(p, 0.05, 0.1, 0.75, 3.0, 0.05),
              lambda o, p: o.ASGD(p, 0.05, 0.1, 0.75, 3.0, 0.05, foreach=False), state="ax"),
        _case("nn.Rprop, its largest step", lambda p, s: nn.Rprop(p, 0.05, (0.4, 1.3), (1e-3, 0.055)),
              lambda o, p: o.Rprop(p, 0.05, (0.4, 1.3), (1e-3, 0.055))),
        _case("nn.Rprop", lambda p, s: nn.Rprop(p, 0.05, (0.4, 1.3), (1e-3, 0.2), 0.05),
              lambda o, p: o.Rprop(p, 0.05, (0.4, 1.3), (1e-3, 0.2)), decay=0.05),
        _case("nn.RMSProp", lambda p, s: nn.RMSProp(p, 0.05, 0.8, 0.5, TINY, False, False, s, 0.05),
              lambda o, p: _from_ones(o, p, False), SCALE),
        _case("nn.RMSProp centered", lambda p, s: nn.RMSProp(p, 0.05, 0.8, 0.5, TINY, False, True, s, 0.05),
              lambda o, p: _from_ones(o, p, True), SCALE),
        _case("nn.AdaFactor",
              lambda p, s: nn.AdaFactor(p, 0.1, (1e-30, 1e-3), 1.0, 0.8, 0.0, 0.0, True, False, loss_scale=s),
              lambda o, p: o.Adafactor(p, 0.1, -0.8, (1e-15, 1e-3), 1.0, 0.0), SCALE),
    ]  # fmt: skip


def _with_its_arguments() -> list[Case]:
    from mspc.api.experimental import optim
    from mspc.api.mint import optim as mint

    def twin(name: str, options: dict[str, Any]) -> Case:
        return _case(f"experimental.optim.{name}", lambda p, s: getattr(optim, name)(p, **options),
                     lambda o, p: getattr(o, name)(p, **options))  # fmt: skip

    return [
        _case("experimental.optim.ASGD, its average", lambda p, s: optim.ASGD(p, **SAME["ASGD"]),
              lambda o, p: o.ASGD(p, **SAME["ASGD"], foreach=False), state="ax"),
        _case("mint.optim.Adam", lambda p, s: mint.Adam(p, 0.05, (0.8, 0.9), 1e-3, 0.05),
              lambda o, p: o.Adam(p, 0.05, (0.8, 0.9), 1e-3, 0.05)),
        _case("mint.optim.AdamW", lambda p, s: mint.AdamW(p, 0.05, (0.8, 0.9), 1e-3, 0.05, amsgrad=True),
              lambda o, p: o.AdamW(p, 0.05, (0.8, 0.9), 1e-3, 0.05, True)),
        _case("mint.optim.SGD", lambda p, s: mint.SGD(p, 0.1, 0.9, 0.2, 0.05, maximize=True),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.2, 0.05, maximize=True)),
        *(twin(name, options) for name, options in SAME.items()),
    ]  # fmt: skip
