"""Groups of parameters are as PyTorch's optimizers have them: each with a learning rate and arguments of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import number
from mspc.api.setting_kind import say_once
from mspc.ops.operator_arguments import describe

__all__: list[str] = []

_TAKEN = ("params", "lr", "weight_decay", "initial_lr")


def grouped(name: str, params: Any, rate: Any, decay: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(groups as an optimizer takes them, each with a learning rate of its own; the other options of each)."""
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


class Described:
    """Says of an optimizer which groups it has: `param_groups`, a dict each with "params", "lr", the Parameter that
    holds the learning rate, and the optimizer's own arguments; `group_start_id`, the place of each group's first
    parameter among all; `options`, the arguments of every parameter's group."""

    learning_rate: Any
    parameters: Any

    def describe_groups(
        self, groups: list[dict[str, Any]], others: list[dict[str, Any]], own: dict[str, Any],
        checks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        """own: the arguments that hold where a group says nothing else. checks: what makes of (optimizer, argument,
        value) the value that is used, for every argument that is looked at; None where scripts look at them."""
        rates = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        distinct = {id(group["lr"]): None for group in groups}
        rate_of = dict(zip(distinct, rates, strict=True))
        name, first = type(self).__name__, 0
        starts, found, options = [], [], {}
        for group, other in zip(groups, others, strict=True):
            said = own | other
            if checks is not None:
                self._note_others(name, other, checks)
                said |= {key: check(name, key, said[key]) for key, check in checks.items()}
            found.append(said | {"params": group["params"], "lr": rate_of[id(group["lr"])]})
            options |= {id(p): (len(starts), said) for p in group["params"]}
            starts.append(first)
            first += len(group["params"])
        object.__setattr__(self, "param_groups", found)
        object.__setattr__(self, "group_start_id", starts)
        object.__setattr__(self, "lrs", tuple(rates))
        object.__setattr__(self, "options", tuple([options[id(p)][1] for p in self.parameters]))
        object.__setattr__(self, "group_of", tuple([options[id(p)][0] for p in self.parameters]))

    def _note_others(self, name: str, other: Mapping[str, Any], checks: Mapping[str, Any]) -> None:
        for key in other:
            if key not in checks and key not in _TAKEN:
                known = ", ".join(["params", "lr", "weight_decay", *checks])
                say_once(f"{name} group {key}", f"{name}: {key!r} of a group changes nothing here; it has {known}")


def two_numbers(name: str, what: str, value: Any) -> tuple[float, float]:
    """Two numbers from 0 on."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ApiTypeError(f"{name}: {what} must be two numbers, not {value!r}")
    return number(name, f"{what}[0]", value[0]), number(name, f"{what}[1]", value[1])


def betas(name: str, what: str, value: Any) -> tuple[float, float]:
    """Two numbers in [0, 1)."""
    first, second = two_numbers(name, what, value)
    if max(first, second) >= 1:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must be in [0, 1)")
    return first, second

