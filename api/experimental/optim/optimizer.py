"""This is the base of optimizers that scripts write, and of those of `mint.optim`, which are the same here and
there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from mspc.api.errors import ApiValueError
from mspc.api.mint import optim
from mspc.api.mint.groups import Described, grouped
from mspc.api.nn.optim import optimizer
from mspc.ops.operator_arguments import describe

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


class Optimizer(Described, optimizer.Optimizer):
    """The base of optimizers that scripts write: `construct(gradients)` updates `self.param_groups`.

    Args:
        params: Parameters, or groups of them: dicts with "params" and any of the defaults.
        defaults: what groups have that do not say it; "lr" must be among them.

    Raises:
        TypeError, ValueError: there are no parameters, or no learning rate.
    """

    checks: ClassVar[Mapping[str, Callable[..., Any]] | None] = None

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if not isinstance(defaults, Mapping) or "lr" not in defaults:
            raise ApiValueError(f"{name}: defaults must be a dict with 'lr', not {describe(defaults)}")
        groups, others = grouped(name, params, defaults["lr"], defaults.get("weight_decay", 0.0))
        super().__init__(defaults["lr"], groups, 0.0)
        object.__setattr__(self, "defaults", dict(defaults))
        self.describe_groups(groups, others, dict(defaults), self.checks)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Groups are those that the optimizer was made with: no param_group is added.

        Raises:
            ValueError: always.
        """
        name = f"{type(self).__name__}.add_param_group"
        raise ApiValueError(f"{name}: an optimizer's groups stay as they are", ["make it with all groups"])


class Adam(optim.Adam):
    """`mint.optim.Adam`."""


class AdamW(optim.AdamW):
    """`mint.optim.AdamW`."""


class SGD(optim.SGD):
    """`mint.optim.SGD`, whose learning rate must be given."""

    def __init__(
        self, params: Any, lr: Any, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
