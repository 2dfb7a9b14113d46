"""`mindspore.mint.optim`: optimizers with PyTorch's arguments and formulas. Weight decay applies to all parameters.

Every argument may be set per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell_arguments import flag, number, scalar
from mspc.mindspore_api.nn.optim import optimizer
from mspc.mindspore_api.setting_kind import say_once
from mspc.ops.operator_arguments import describe

__all__ = ["SGD", "Adam", "AdamW"]


class Optimizer(optimizer.Optimizer):
    """Base of these optimizers and of those in scripts: `construct(gradients)` updates `self.param_groups`.

    Args:
        params: Parameters, or groups of them: dicts with "params" and any of the defaults.
        defaults: the values of groups without their own; "lr" must be among them.

    Attributes: `param_groups`, a dict for each group with "params", "lr", the Parameter of the learning rate, and the
    group's arguments; `group_start_id`, the index of each group's first parameter among all; `options`, the arguments
    of every parameter's group; `group_of`, the number of that group.

    Raises TypeError or ValueError if there are no parameters, or no learning rate.
    """

    centralizes = False
    checks: ClassVar[Mapping[str, Callable[..., Any]] | None] = None
    """Functions of (optimizer, argument, value) that return the value to use, for every checked argument; None if
    scripts check them."""

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if not isinstance(defaults, Mapping) or "lr" not in defaults:
            raise ApiValueError(f"{name}: defaults must be a dict with 'lr', not {describe(defaults)}")
        decay = number(name, "weight_decay", defaults.get("weight_decay", 0.0))
        groups, others = _grouped(name, params, defaults["lr"], decay)
        super().__init__(defaults["lr"], groups)
        put = object.__setattr__
        put(self, "defaults", dict(defaults))
        self.assign = ops.Assign()
        rates = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        rate_of = dict(zip({id(group["lr"]): None for group in groups}, rates, strict=True))
        starts, found, options = [0], [], {}
        for i, (group, other) in enumerate(zip(groups, others, strict=True)):
            own = {key: value for key, value in defaults.items() if key != "lr"} | other
            if self.checks is not None:
                _note_unknown(name, other, self.checks)
                own |= {key: check(name, key, own[key]) for key, check in self.checks.items()}
            found.append(own | {"params": group["params"], "lr": rate_of[id(group["lr"])]})
            options |= {id(p): (i, own) for p in group["params"]}
            starts.append(starts[-1] + len(group["params"]))
        put(self, "param_groups", found)
        put(self, "group_start_id", starts[:-1])
        put(self, "lrs", tuple(rates))
        put(self, "options", tuple([options[id(p)][1] for p in self.parameters]))
        put(self, "group_of", tuple([options[id(p)][0] for p in self.parameters]))

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Raise ValueError always: no param_group is added after the optimizer is made."""
        name = f"{type(self).__name__}.add_param_group"
        raise ApiValueError(f"{name}: an optimizer's groups stay as they are", ["make it with all groups"])

    def signed(self, gradients: Any) -> Any:
        """Return the gradients, negated for parameters with `maximize`."""
        if not any([group["maximize"] for group in self.param_groups]):
            return gradients
        return [ops.neg(gradient) if own["maximize"] else gradient
                for gradient, own in zip(gradients, self.options, strict=True)]  # fmt: skip

    def scalars(self, values: list[Any], name: str) -> ParameterTuple:
        """Return a scalar for every group, with the group's number in its name if there are several."""
        if len(values) == 1:
            return ParameterTuple([scalar(values[0], name)])
        return ParameterTuple([scalar(value, f"{name}_group_{i}") for i, value in enumerate(values)])


def _grouped(name: str, params: Any, rate: Any, decay: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (groups for an optimizer, each with its own learning rate; the other options of each group)."""
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


def _note_unknown(name: str, group: Mapping[str, Any], checks: Mapping[str, Any]) -> None:
    known = ["params", "lr", "weight_decay", *checks]
    for key in group:
        if key not in known and key != "initial_lr":
            message = f"{name}: {key!r} of a group changes nothing here; it has {', '.join(known)}"
            say_once(f"{name} group {key}", message)


def _betas(name: str, what: str, value: Any) -> tuple[float, float]:
    """Return two numbers in [0, 1)."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ApiTypeError(f"{name}: {what} must be two numbers, not {value!r}")
    first, second = number(name, f"{what}[0]", value[0]), number(name, f"{what}[1]", value[1])
    if max(first, second) >= 1:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must be in [0, 1)")
    return first, second


class Adam(Optimizer):
    """Kingma and Ba 2015: parameter -= lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps); the weight decay
    is added to the gradient.

    The states are the parameters `exp_avg.NAME`, `exp_avg_sq.NAME`, `max_exp_avg_sq.NAME` (amsgrad), `beta1_power` and
    `beta2_power`, the last two of every group.
    """

    decouples = False
    checks: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "betas": _betas, "eps": number, "amsgrad": flag, "maximize": flag
    }  # fmt: skip

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
             "maximize": maximize},
        )  # fmt: skip
        self.betas = tuple([group["betas"] for group in self.param_groups])
        self.beta1_power = self.scalars([1.0] * len(self.betas), "beta1_power")
        self.beta2_power = self.scalars([1.0] * len(self.betas), "beta2_power")
        self.exp_avg, self.exp_avg_sq = self.states("exp_avg"), self.states("exp_avg_sq")
        asked = any(own["amsgrad"] for own in self.options)
        self.max_exp_avg_sq = self.states("max_exp_avg_sq") if asked else self.exp_avg_sq
        # For every group: the index of one of its parameters, its eps, and its decay in the operator.
        self.members = tuple([self.group_of.index(number) for number in range(len(self.param_groups))])
        self.margins = tuple([group["eps"] for group in self.param_groups])
        self.pulled = tuple([self.weight_decays[at] if self.decouples else 0.0 for at in self.members])
        self.moved = ops.AdamWeightDecay()

    def construct(self, gradients: Any) -> Any:
        gradients = self.signed(gradients)
        if not self.decouples:
            gradients = self.decay_weight(gradients)
        of_parameters = self.rates()
        rates = [of_parameters[at] for at in self.members]
        self.count_step()
        first, second = self.corrections()
        scales = [rate * (root / part) for rate, root, part in zip(rates, second, first, strict=True)]
        margins = [root * eps for root, eps in zip(second, self.margins, strict=True)]
        pulls = [
            part / root * pull if pull != 0.0 else 0.0
            for root, part, pull in zip(second, first, self.pulled, strict=True)
        ]
        return tuple([
            self.largest(parameter, m, v, most, first[group], second[group], rates[group], decay, own, gradient)
            if own["amsgrad"]
            else self.moved(
                parameter, m, v, scales[group], own["betas"][0], own["betas"][1], margins[group], pulls[group],
                gradient if gradient.dtype == parameter.dtype else gradient.astype(parameter.dtype),
            )
            for parameter, m, v, most, decay, group, own, gradient in zip(
                self.parameters, self.exp_avg, self.exp_avg_sq, self.max_exp_avg_sq, self.weight_decays, self.group_of,
                self.options, gradients, strict=True,
            )
        ])  # fmt: skip

    def corrections(self) -> Any:
        """Return (1 - beta1^step, the root of 1 - beta2^step) of every group after this step."""
        first, second = [], []
        for (beta1, beta2), power1, power2 in zip(self.betas, self.beta1_power, self.beta2_power, strict=True):
            first.append(1.0 - self.assign(power1, power1 * beta1))
            second.append(ops.sqrt(1.0 - self.assign(power2, power2 * beta2)))
        return first, second

    def largest(
        self, parameter: Any, m: Any, v: Any, most: Any, first: Any, second: Any, rate: Any, decay: Any, own: Any,
        gradient: Any,
    ) -> Any:  # fmt: skip
        """Update a parameter with the largest v so far.

        Without amsgrad, the operator AdamWeightDecay updates it: both corrections are in its rate, one is taken out of
        eps, and both out of the decay.
        """
        beta1, beta2 = own["betas"]
        mean = self.assign(m, m * beta1 + gradient * (1 - beta1))
        square = self.assign(v, v * beta2 + ops.square(gradient) * (1 - beta2))
        square = self.assign(most, ops.maximum(most, square))
        step = mean * (rate / first) / (ops.sqrt(square) / second + own["eps"])
        if self.decouples and decay != 0.0:
            step = step + parameter * (rate * decay)
        moved = parameter - step
        if moved.dtype != parameter.dtype:  # Float32 for half-precision weights, because the rate is Float32
            moved = ops.cast(moved, parameter.dtype)
        return self.assign(parameter, moved)


class AdamW(Adam):
    """Loshchilov and Hutter 2019: Adam with weight decay of the parameter itself: parameter -= lr * weight_decay *
    parameter, and then Adam's step."""

    decouples = True

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class SGD(Optimizer):
    """v = momentum * v + (1 - dampening) * gradient, gradient itself at the first step; parameter -= lr * v, or
    lr * (gradient + momentum * v) with Nesterov's form.

    The states are the parameters `accum.NAME` and `stat.NAME` (1 until the first step is done), if there is a momentum.
    """

    checks: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "momentum": number, "dampening": number, "nesterov": flag, "maximize": flag
    }  # fmt: skip

    def __init__(
        self, params: Any, lr: Any = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
             "nesterov": nesterov, "maximize": maximize},
        )  # fmt: skip
        for group in self.param_groups:
            if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
                raise ApiValueError("SGD: nesterov needs a momentum above 0 and no dampening")
        self.opts = tuple([ops.SGD(group["dampening"], 0.0, group["nesterov"]) for group in self.param_groups])
        has_states = any(group["momentum"] for group in self.param_groups)
        self.descend = None if has_states else ops.ApplyGradientDescent()
        if not has_states:
            return
        self.momentum = self.scalars([group["momentum"] for group in self.param_groups], "momentum")
        self.accum, self.stat = self.states("accum"), self.states("stat", "ones")

    def construct(self, gradients: Any) -> Any:
        gradients = self.decay_weight(self.signed(gradients))
        rates = self.rates()
        self.count_step()
        if self.descend is not None:
            return tuple([self.descend(*each) for each in zip(self.parameters, rates, gradients, strict=True)])
        return tuple([
            self.opts[group](parameter, gradient, rate, accum, self.momentum[group], stat)
            for parameter, gradient, rate, accum, stat, group in zip(
                self.parameters, gradients, rates, self.accum, self.stat, self.group_of, strict=True
            )
        ])  # fmt: skip
