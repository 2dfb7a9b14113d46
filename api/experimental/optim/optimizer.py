"""What optimizers share: groups of parameters, each with a learning rate of its own in a Parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.mint import optim
from mspc.api.nn.optim import optimizer
from mspc.ops.arguments import describe

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


def _grouped(name: str, params: Any, rate: Any, decay: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(groups as an optimizer takes them, each with a learning rate of its own; what else was said of each)."""
    if isinstance(params, Parameter) or not isinstance(params, Iterable):
        raise ApiTypeError(f"{name}: params must be a list of Parameters, not {describe(params)}")
    found = list(params)
    groups = found if found and isinstance(found[0], Mapping) else [{"params": found}]
    taken: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group:
            raise ApiTypeError(f"{name}: a group must be a dict with 'params', not {describe(group)}")
        own = group.get("lr", rate)
        own = np.float64(own) if isinstance(own, int | float) and not isinstance(own, bool) else own
        members = group["params"]
        members = [members] if isinstance(members, Parameter) else list(members)
        taken.append({"params": members, "lr": own, "weight_decay": group.get("weight_decay", decay)})
        others.append({k: v for k, v in group.items() if k not in ("params", "lr")})
    return taken, others


class _Described:
    """Says of an optimizer which groups it has: `param_groups`, a dict each with "params", "lr", the Parameter that
    holds the learning rate, and the optimizer's own arguments; `group_start_id`, the place of each group's first
    parameter among all."""

    learning_rate: Any

    def describe_groups(self, groups: list[dict[str, Any]], others: list[dict[str, Any]], own: dict[str, Any]) -> None:
        rates = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        first, starts, found = 0, [], []
        for group, other, rate in zip(groups, others, rates, strict=True):
            found.append(own | other | {"params": group["params"], "lr": rate})
            starts.append(first)
            first += len(group["params"])
        object.__setattr__(self, "param_groups", found)
        object.__setattr__(self, "group_start_id", starts)
        object.__setattr__(self, "lrs", tuple(rates))


class Optimizer(_Described, optimizer.Optimizer):
    """The base of optimizers that scripts write: `construct(gradients)` updates `self.param_groups`.

    Args:
        params: Parameters, or groups of them: dicts with "params" and any of the defaults.
        defaults: what groups have that do not say it; "lr" must be among them.

    Raises:
        TypeError, ValueError: there are no parameters, or no learning rate.
    """

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if not isinstance(defaults, Mapping) or "lr" not in defaults:
            raise ApiValueError(f"{name}: defaults must be a dict with 'lr', not {describe(defaults)}")
        groups, others = _grouped(name, params, defaults["lr"], defaults.get("weight_decay", 0.0))
        super().__init__(defaults["lr"], groups, 0.0)
        object.__setattr__(self, "defaults", dict(defaults))
        self.describe_groups(groups, others, dict(defaults))

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Groups are those that the optimizer was made with: no param_group is added.

        Raises:
            ValueError: always.
        """
        name = f"{type(self).__name__}.add_param_group"
        raise ApiValueError(f"{name}: an optimizer's groups stay as they are", ["make it with all groups"])


class Adam(_Described, optim.Adam):
    """`mint.optim.Adam` with learning rates that schedulers change."""

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        groups, others = _grouped(type(self).__name__, params, lr, weight_decay)
        super().__init__(groups, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
        own = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize}
        self.describe_groups(groups, others, own)


class AdamW(Adam):
    """`mint.optim.AdamW` with learning rates that schedulers change."""

    decouples = True

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class SGD(_Described, optim.SGD):
    """`mint.optim.SGD` with learning rates that schedulers change."""

    def __init__(
        self, params: Any, lr: Any, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        groups, others = _grouped(type(self).__name__, params, lr, weight_decay)
        super().__init__(groups, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        own = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
               "maximize": maximize}  # fmt: skip
        self.describe_groups(groups, others, own)
