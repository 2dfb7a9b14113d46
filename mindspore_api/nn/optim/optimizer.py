"""Base of optimizers: groups of parameters, learning rates, states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from mspc.ir.types import FLOAT32, INT32
from mspc.mindspore_api import context, ops
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number, scalar
from mspc.mindspore_api.nn.learning_rate_schedule import LearningRateSchedule
from mspc.mindspore_api.ops.hyper_map import HyperMap, Map
from mspc.mindspore_api.placement import DEVICES, note_target
from mspc.mindspore_api.setting_kind import checked, say_once, set_where
from mspc.mindspore_api.settings import OFFLOADED_CELLS

__all__ = ["Optimizer", "opt_init_args_register"]

_Init = TypeVar("_Init", bound=Callable[..., Any])


def opt_init_args_register(fn: _Init) -> _Init:
    """Return the constructor of an optimizer unchanged. MindSpore stores its arguments, for its own copies."""
    return fn


GROUP_KEYS = ("params", "lr", "weight_decay", "grad_centralization", "order_params")


class Optimizer(Cell, takes_data=False):
    """Changes `parameters` by the gradients with which it is called.

    Args:
        learning_rate: a number; a list, array or Tensor with one number per step (the last one is used after the end);
            or a LearningRateSchedule.
        parameters: Parameters, or dicts {"params": [...], "lr": ..., "weight_decay": ..., "grad_centralization": ...}
            with settings of groups; see `gradients_centralization`.
        weight_decay: added to each gradient times the parameter, a number or a cell that computes one from the step;
            without groups not for parameters with "beta" or "gamma" in their names.
        loss_scale: gradients are divided by it first.

    Raises TypeError or ValueError if an argument is of the wrong kind or size; RuntimeError if
    `enable_parallel_optimizer` is on in a case in which MindSpore refuses it.
    """

    centralizes = True
    """Whether it uses `grad_centralization`."""
    shares_updates = False
    """Whether data parallel ranks may share its updates, as MindSpore does on Ascend."""
    _target = ""

    def __init__(self, learning_rate: Any, parameters: Any, weight_decay: Any = 0.0, loss_scale: float = 1.0) -> None:
        super().__init__(auto_prefix=False)
        name = type(self).__name__
        groups, order = _groups(name, parameters, learning_rate, weight_decay)
        members = _in_order(name, [(p, group) for group in groups for p in group["params"]], order)
        self.parameters = ParameterTuple([p for p, _ in members])
        self.weight_decays = tuple([_decay(name, group, p, len(groups) > 1) for p, group in members])
        self.pulls = any(isinstance(decay, Cell) or decay != 0.0 for decay in self.weight_decays)
        self.centralized = self._centralized(name, [group for _, group in members])
        _check_parallel_optimizer(name, self.shares_updates, len(members))
        self.loss_scale = number(name, "loss_scale", loss_scale, above=0.0)
        self.global_step = Parameter(Tensor(np.zeros(1, np.int32)), "global_step", requires_grad=False)
        self.global_step_increase_tensor = Tensor([1], INT32)
        self.assignadd = ops.AssignAdd()
        self.learning_rate, places = self._rates(name, groups)
        self.rate_of = tuple([next(i for g, i in zip(groups, places, strict=True) if g is own) for _, own in members])
        self._describe(groups, [group["weight_decay"] for _, group in members])

    def _centralized(self, name: str, groups: list[dict[str, Any]]) -> tuple[bool, ...]:
        """Return for every parameter whether its gradient is centralized."""
        asked = tuple([group.get("grad_centralization", False) for group in groups])
        if self.centralizes or not any(asked):
            return asked
        say_once(f"{name} centralization", f"{name}: grad_centralization changes nothing, as in MindSpore")
        return (False,) * len(asked)

    def _describe(self, groups: list[dict[str, Any]], decays: list[Any]) -> None:
        self.is_group = not groups[0].get("only", False)
        self.is_group_lr = any(group["own_lr"] for group in groups)
        rates = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        self.dynamic_lr = any(isinstance(rate, LearningRateSchedule) or rate.ndim for rate in rates)
        given = [decay if isinstance(decay, Cell) else Tensor(decay * self.loss_scale, FLOAT32) for decay in decays]
        self.weight_decay = tuple(given) if self.is_group else given[0]
        active = [isinstance(decay, Cell) or decay > 0 for decay in decays]
        spared = ["beta" in p.name or "gamma" in p.name for p in self.parameters]
        self.decay_flags = tuple(active) if self.is_group else tuple(not each for each in spared)
        self.exec_weight_decay = any(active)
        self.dynamic_weight_decay = any(isinstance(decay, Cell) for decay in decays)
        self.need_scale = self.loss_scale != 1.0
        self.reciprocal_scale = Tensor(1.0 / self.loss_scale, FLOAT32)
        self.param_length = len(self.parameters)
        self.optim_filter = (True,) * self.param_length
        self.ps_parameters = (False,) * self.param_length
        self.use_parallel = self.cache_enable = False
        self.map_, self.hyper_map = Map(), HyperMap()
        self.map_reverse, self.hyper_map_reverse = Map(None, True), HyperMap(None, True)

    @property
    def _parameters(self) -> ParameterTuple:
        return self.parameters

    def _rates(self, name: str, groups: list[dict[str, Any]]) -> tuple[Any, tuple[int, ...]]:
        """Return (the different learning rates, for every group the index of its own)."""
        rates: list[Any] = []
        given: list[Any] = []
        index: list[int] = []
        for group in groups:
            place = next((i for i, other in enumerate(given) if other is group["lr"]), len(given))
            if place == len(given):
                given.append(group["lr"])
                suffix = f"_group_{place}" if len(groups) > 1 else ""
                rates.append(_rate(name, group["lr"], f"learning_rate{suffix}"))
            index.append(place)
        return (rates[0] if len(rates) == 1 else tuple(rates)), tuple(index)

    @property
    def target(self) -> str:
        """The device on which parameters are updated: that of their rank. Setting another one changes nothing, as a
        warning says. Raise TypeError or ValueError if it is no device."""
        return self._target or context.get_context("device_target")

    @target.setter
    def target(self, value: str) -> None:
        name = type(self).__name__
        if not isinstance(value, str):
            raise ApiTypeError(f"{name}.target must be a string, not {value!r}")
        if value not in DEVICES:
            raise ApiValueError(f"{name}.target {value!r} is not one of {', '.join(map(repr, DEVICES))}")
        note_target(f"{name}.target={value!r}", value)
        object.__setattr__(self, "_target", value)

    def rate(self, rate: Any, step: Any) -> Any:
        """Return one learning rate after `step` steps, a scalar."""
        if isinstance(rate, LearningRateSchedule):
            return ops.reshape(rate(step), ())
        if rate.ndim == 0:
            return rate
        return ops.reshape(ops.gather(rate, ops.minimum(step, rate.shape[0] - 1), 0), ())

    def rates(self, step: Any = None) -> Any:
        """Return the learning rate of every parameter, by default at this step."""
        given = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        found = [self.rate(rate, self.global_step if step is None else step) for rate in given]
        return found * len(self.rate_of) if len(found) == 1 else [found[i] for i in self.rate_of]

    def get_lr(self) -> Any:
        """Return the learning rate at this step, a scalar; a tuple with one per parameter if groups have their own."""
        rates = self.rates()
        return tuple(rates) if self.is_group_lr else rates[0]

    def states(self, prefix: str, init: str | float = "zeros") -> ParameterTuple:
        """Return a state for every parameter, of its shape, named `prefix.NAME`; `init` is an initializer or a
        number."""
        found = self.parameters.clone(prefix, init)
        for state in found:
            state.requires_grad = False
        return found

    def offload(self, backward_prefetch: Any = "Auto") -> None:
        """Keep the states of the parameters (moments, not counters) in the host's memory; see `keep_on_host`."""

        keep_on_host(self, self.parameters, backward_prefetch)

    def count_step(self) -> Any:
        """Count this step."""
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def prepared(self, gradients: Any) -> Any:
        """Return the gradients divided by the loss scale, then with weight decay, which was never scaled, and then
        without their means if a group requests that."""
        return self.gradients_centralization(self._pulled(self.scale_grad(gradients), 1.0))

    def update(self, parameter: Any, *states: Any) -> Any:
        """Return the new value of a parameter from its states, its learning rate and its gradient; for
        `update_each`."""
        raise NotImplementedError

    def update_each(self, gradients: Any, *states: Any) -> Any:
        """Call `update` for every parameter with its entries of the lists `states`, its learning rate and its prepared
        gradient."""
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        rows = zip(self.parameters, *states, rates, gradients, strict=True)
        return tuple([self.update(*row, gradient) for *row, gradient in rows])

    def scale_grad(self, gradients: Any) -> Any:
        """Return the gradients divided by the loss scale."""
        if self.loss_scale == 1.0:
            return gradients
        return [gradient * (1.0 / self.loss_scale) for gradient in gradients]

    def decay_weight(self, gradients: Any) -> Any:
        """Return gradients that still include the loss scale with the weight decay, scaled by it, too."""
        return self._pulled(gradients, self.loss_scale)

    def _pulled(self, gradients: Any, scale: float) -> Any:
        if not self.pulls and len(gradients) == len(self.parameters):
            return gradients
        return [
            gradient if given == 0.0 else gradient + parameter * (decay if scale == 1.0 else decay * scale)
            for gradient, parameter, given, decay in zip(
                gradients, self.parameters, self.weight_decays, self.decays(), strict=True
            )
        ]  # fmt: skip

    def gradients_centralization(self, gradients: Any) -> Any:
        """Return the gradients; from those of groups with `grad_centralization` the mean over all dimensions but the
        first is subtracted, if the second dimension is a multiple of 16, as in MindSpore."""
        if not any(self.centralized):
            return gradients
        return [
            gradient - ops.reduce_mean(gradient, tuple(range(1, len(parameter.shape))), True)
            if centralized and len(parameter.shape) > 1 and parameter.shape[1] % 16 == 0
            else gradient
            for gradient, parameter, centralized in zip(gradients, self.parameters, self.centralized, strict=True)
        ]

    def flatten_gradients(self, gradients: Any) -> Any:
        """Return the gradients: the compiler flattens gradients for the collectives."""
        return gradients

    def _grad_sparse_indices_deduplicate(self, gradients: Any) -> Any:
        return gradients

    def broadcast_params(self, optim_result: Any) -> Any:
        """Return the updates: if ranks share them, the compiler sends them to the others."""
        return optim_result

    def _is_dynamic_lr_or_weight_decay(self) -> bool:
        return self.dynamic_lr or self.dynamic_weight_decay

    def _set_base_target(self, value: str) -> None:
        self.target = value

    def get_weight_decay(self) -> Any:
        """Return the weight decay at this step times the loss scale, a scalar; a tuple if there are groups."""
        given = self.weight_decay if self.is_group else (self.weight_decay,)
        found = [self.decay_now(d) * self.loss_scale if isinstance(d, Cell) else d for d in given]
        return tuple(found) if self.is_group else found[0]

    def decays(self) -> Any:
        """Return the weight decay of every parameter at this step, before `count_step` counts it; 0 for exempt
        parameters."""
        return [self.decay_now(decay) for decay in self.weight_decays]

    def decay_now(self, decay: Any) -> Any:
        """Return one weight decay at this step: a number, or a scalar that a cell has computed from the step."""
        if isinstance(decay, Cell):
            return ops.reshape(decay(self.global_step), ())
        return decay

    def construct(self, gradients: Any) -> Any:
        raise NotImplementedError


def _rate(name: str, rate: Any, parameter: str) -> Any:
    if isinstance(rate, LearningRateSchedule):
        return rate
    if isinstance(rate, Iterable) and not isinstance(rate, Tensor | str | bytes | Set | Mapping):
        rates = np.asarray(list(rate))
        if rates.size and rates.dtype.kind not in "fiu":
            raise ApiTypeError(f"{name}: learning_rate must be a list of numbers, not of {rates.dtype}")
        rate = Tensor(rates.astype(np.float32))
    if isinstance(rate, Tensor):
        if rate.dtype.kind not in "fiu":
            raise ApiTypeError(f"{name}: learning_rate must be a Tensor of numbers, not of {rate.dtype}")
        if rate.ndim > 1 or rate.size == 0:
            raise ApiValueError(f"{name}: learning rates must be a list of numbers, not of shape {rate.shape}")
        return Parameter(Tensor(rate, FLOAT32), parameter, requires_grad=False)
    return scalar(number(name, "learning_rate", rate), parameter)


def _check_parallel_optimizer(name: str, shares_updates: bool, count: int) -> None:
    """Raise RuntimeError if replicas should share updates in a mode without replicas, or, in data parallel mode on a
    device, for an optimizer or a number of parameters for which MindSpore does not share them."""
    if not context.get_auto_parallel_context("enable_parallel_optimizer"):
        return
    asked, mode = "enable_parallel_optimizer is on", context.get_auto_parallel_context("parallel_mode")
    if mode in ("stand_alone", "hybrid_parallel"):
        raise ApiRuntimeError(
            f"{name}: {asked}, but there is nothing to share in the mode {mode}",
            [
                "set parallel_mode to 'semi_auto_parallel' or 'auto_parallel'",
                *set_where("enable_parallel_optimizer"),
            ],
        )
    if mode != "data_parallel":
        return
    where = set_where("enable_parallel_optimizer")
    device, ranks = context.get_context("device_target"), context.get_auto_parallel_context("device_num")
    if device != "Ascend":
        raise ApiRuntimeError(
            f"{name}: {asked}, which data_parallel has on Ascend alone, and device_target is {device}", where
        )
    if not shares_updates:
        raise ApiRuntimeError(f"{name}: {asked}, which data_parallel has for AdamWeightDecay and Lamb alone", where)
    if ranks > count:
        raise ApiRuntimeError(f"{name}: {asked}, but {ranks} ranks have only {count} parameters to share", where)


def _groups(name: str, parameters: Any, rate: Any, decay: Any) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Return (groups of parameters, the requested order of parameters, or None for that of the groups)."""
    if isinstance(parameters, Parameter) or not isinstance(parameters, Iterable):
        raise ApiTypeError(f"{name}: params must be a list of Parameters, not {type(parameters).__name__}")
    found = list(parameters)
    if not found:
        raise ApiValueError(f"{name}: the list of parameters is empty", ["pass net.trainable_params()"])
    if not any(isinstance(entry, Mapping) for entry in found):
        only = {"lr": rate, "weight_decay": decay, "default": True, "only": True, "own_lr": False}
        return [only | {"params": _checked(name, found)}], None
    groups: list[dict[str, Any]] = []
    order: list[Any] | None = None
    for entry in found:
        if not isinstance(entry, Mapping):
            raise ApiTypeError(f"{name}: params mixes Parameters and groups")
        for key in entry:
            if key not in GROUP_KEYS:
                raise ApiValueError(f"{name}: a group has no entry {key!r}; it takes {', '.join(GROUP_KEYS)}")
        if "order_params" in entry:
            order = _checked(name, list(entry["order_params"]))
            continue
        if "params" not in entry:
            raise ApiValueError(f"{name}: a group has no entry 'params'")
        if not isinstance(entry.get("grad_centralization", False), bool):
            given = entry["grad_centralization"]
            raise ApiTypeError(f"{name}: grad_centralization must be True or False, not {given!r}")
        group = {"lr": rate, "weight_decay": decay, **entry, "default": "weight_decay" not in entry}
        groups.append(group | {"own_lr": "lr" in entry, "params": _checked(name, list(entry["params"]))})
    return groups, order


def _in_order(name: str, members: list[Any], order: list[Any] | None) -> list[Any]:
    """Return the pairs of a parameter and its group in the order of `order`, which is that of the gradients."""
    own = {id(parameter): (parameter, group) for parameter, group in members}
    if len(own) != len(members):
        raise ApiValueError(f"{name}: a parameter is twice in the list")
    if order is None:
        return members
    if len({id(p) for p in order}) != len(order) or {id(p) for p in order} != set(own):
        raise ApiValueError(f"{name}: order_params must hold each parameter of the groups once")
    return [own[id(parameter)] for parameter in order]


def _checked(name: str, parameters: list[Any]) -> list[Parameter]:
    for entry in parameters:
        if not isinstance(entry, Parameter):
            raise ApiTypeError(f"{name}: params holds {type(entry).__name__}, not a Parameter")
    return parameters


def _decay(name: str, group: dict[str, Any], parameter: Parameter, grouped: bool) -> Any:
    given = group["weight_decay"]
    decay = given if isinstance(given, Cell) else number(name, "weight_decay", given)
    excluded = "beta" in parameter.name or "gamma" in parameter.name
    return 0.0 if excluded and group["default"] and not grouped else decay


def keep_on_host(optimizer: Any, trained: Sequence[Parameter], backward_prefetch: Any) -> None:
    """Store states with the shapes of trained parameters on the host: they are on the device only while their
    parameters are updated. Counters and learning rates stay on the device, even with such a shape.

    Args:
        backward_prefetch: number of updates before their own at which states are fetched; "Auto": 2.

    Raises ValueError or TypeError if it is neither "Auto" nor an integer from 1 on; RuntimeError if there are no
    states.
    """
    name = f"{type(optimizer).__name__}.offload"
    found = checked(name, OFFLOADED_CELLS, {"backward_prefetch": backward_prefetch})["backward_prefetch"]
    rates = optimizer.learning_rate if isinstance(optimizer.learning_rate, tuple) else (optimizer.learning_rate,)
    stays = {id(parameter) for parameter in (*trained, optimizer.global_step, *rates)}
    shapes = {parameter.shape for parameter in trained}
    states = [p for p in optimizer.get_parameters() if id(p) not in stays and p.ndim and p.shape in shapes]
    if not states:
        raise ApiRuntimeError(f"{name}(): the optimizer has no states that could be stored on the host")
    for state in states:
        state.on_host = 0 if found == "Auto" else found
    optimizer.revision += 1
