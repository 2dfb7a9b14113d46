"""Gradients of functions and networks: `grad`, `value_and_grad`, `GradOperation`, and functions compiled by `jit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.no_grad import _no_grad
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked
from mspc.mindspore_api.settings import JIT

NO_GRADIENTS = "grad() is called inside _no_grad(), which computes no gradients"


@dataclass(frozen=True)
class GradientFunction:
    """`fn` and its gradients, with the parameters of `fn`.

    fn: a Cell or a function.
    positions: indices of the arguments to differentiate by; () for none.
    weights: parameters to differentiate by, None for none.
    has_aux: only the first result of fn is differentiated; the others are returned unchanged.
    get_all: gradients of all positions are a tuple, even for one; with `weights` the complete result is (gradients of
    inputs, gradients of weights).
    sens_param: the last argument of the call is the sensitivity (the gradient of the result).
    value: the result of fn is returned too: (value, gradients).
    weights_tuple: `weights` was a list or tuple, so their gradients are a tuple (else one gradient).
    positions_tuple: `positions` was given as a tuple.
    all_positions: every argument that is a tensor is differentiated (GradOperation(get_all=True)).
    names: of the last arguments of the call, which `fn` gets by name.
    """

    fn: Any
    positions: tuple[int, ...] = (0,)
    weights: tuple[Parameter, ...] | None = None
    has_aux: bool = False
    get_all: bool = False
    sens_param: bool = False
    value: bool = False
    weights_tuple: bool = True
    positions_tuple: bool = False
    all_positions: bool = False
    names: tuple[str, ...] = ()

    @property
    def takes_global_inputs(self) -> bool:
        """Whether `fn` is a function returned by `shard`, called by itself."""
        return bool(getattr(self.fn, "takes_global_inputs", False))

    def by_name(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[GradientFunction, list[Any]]:
        """Return this request for a call with arguments by name, and all arguments of that call in order."""
        named = dict(named)
        if self.sens_param and "sens" in named:
            args = [*args, named.pop("sens")]
        if not named:
            return self, list(args)
        return replace(self, names=tuple(named)), [*args, *named.values()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _no_grad.depth:
            raise ApiRuntimeError(NO_GRADIENTS)
        request, given = self.by_name(args, kwargs)
        return call_handler.current().call(request, tuple(given))


@dataclass(frozen=True)
class GradOperation:
    """Older interface of MindSpore for gradients: `GradOperation(get_by_list=True)(net, weights)(x)`.

    get_all: gradients of all inputs, as a tuple. get_by_list: gradients of the weights given.
    sens_param: the last argument of the call is the sensitivity. Without get_all and get_by_list: the gradient of the
    first input.
    """

    get_all: bool = False
    get_by_list: bool = False
    sens_param: bool = False

    def __post_init__(self) -> None:
        for name in ("get_all", "get_by_list", "sens_param"):
            if not isinstance(getattr(self, name), bool):
                raise ApiTypeError(f"GradOperation: {name} must be True or False, not {getattr(self, name)!r}")

    def __call__(self, fn: Any, weights: Any = None) -> GradientFunction:
        """Return the function that computes the gradients of `fn`. Raise TypeError if `weights` has an element that is
        no Parameter."""
        found, _ = _weights(weights)
        if self.get_by_list and found is None:
            found = tuple(fn.trainable_params()) if hasattr(fn, "trainable_params") else ()
        inputs = self.get_all or not self.get_by_list
        return GradientFunction(
            fn=fn,
            positions=() if not inputs or self.get_all else (0,),
            weights=found if self.get_by_list else None,
            get_all=self.get_all,
            sens_param=self.sens_param,
            all_positions=self.get_all,
        )


def value_and_grad(
    fn: Any, grad_position: int | tuple[int, ...] | None = 0, weights: Any = None, has_aux: bool = False,
    return_ids: bool = False, sens_param: bool = False,
) -> GradientFunction:  # fmt: skip
    """Return a function that returns (value of fn, gradients).

    Args:
        fn: a Cell or a function.
        grad_position: argument or arguments to differentiate by; None for none.
        weights: Parameter, or several, to differentiate by.
        has_aux: only the first result of fn is differentiated.
        sens_param: the last argument of the call is the gradient of the result.

    Raises ValueError if neither positions nor weights are given; TypeError if an argument has the wrong type.
    """
    return _request("value_and_grad", fn, grad_position, weights, has_aux, return_ids, sens_param, True)


def grad(
    fn: Any, grad_position: int | tuple[int, ...] | None = 0, weights: Any = None, has_aux: bool = False,
    return_ids: bool = False,
) -> GradientFunction:  # fmt: skip
    """Return a function that returns the gradients of fn; with `has_aux` also its further results. Raise ValueError if
    neither positions nor weights are given; TypeError if an argument has the wrong type."""
    return _request("grad", fn, grad_position, weights, has_aux, return_ids, False, False)


def _request(
    name: str, fn: Any, position: Any, weights: Any, has_aux: bool, return_ids: bool, sens_param: bool, value: bool
) -> GradientFunction:
    if not callable(fn):
        raise ApiTypeError(f"{name} takes a Cell or a function, not {type(fn).__name__}")
    if return_ids:
        raise ApiValueError(f"{name}: return_ids=True is not supported")
    if not isinstance(has_aux, bool):
        raise ApiTypeError(f"{name}: has_aux must be True or False, not {has_aux!r}")
    found, several = _weights(weights)
    if position is None and found is None:
        raise ApiValueError(f"{name}: grad_position and weights must not both be None")
    positions = () if position is None else position if isinstance(position, tuple) else (position,)
    for entry in positions:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise ApiTypeError(f"{name}: grad_position must be an integer or a tuple of them, not {position!r}")
        if entry < 0:
            raise ApiValueError(f"{name}: grad_position {entry} is negative")
    return GradientFunction(
        fn, positions, found, has_aux, False, sens_param, value, several, isinstance(position, tuple)
    )


def _weights(weights: Any) -> tuple[tuple[Parameter, ...] | None, bool]:
    """Return (parameters, whether there were several)."""
    if weights is None:
        return None, True
    if isinstance(weights, Parameter):
        return (weights,), False
    if isinstance(weights, Iterable):
        found = tuple(weights)
        if all(isinstance(entry, Parameter) for entry in found):
            return found, True
    raise ApiTypeError("weights must be Parameters, for example net.trainable_params()")


@dataclass(frozen=True)
class NamedCall:
    """`fn` with its last arguments passed by these names in a launch."""

    fn: Any
    names: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)


def launched(
    target: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "construct"
) -> tuple[Any, tuple[Any, ...]]:
    """Return the target to launch for a call with arguments by name, and all arguments in order. `function` is run by
    `target`, `name` is its name in messages. Raise TypeError for arguments that do not fit."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ApiTypeError(f"{name}(): {error}") from None
    bound.apply_defaults()
    named = {key: value for key, value in bound.kwargs.items() if key in kwargs}
    return (NamedCall(target, tuple(named)), (*bound.args, *named.values())) if named else (target, bound.args)


def positional(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "construct"
) -> tuple[Any, ...]:
    """Return the arguments of a call of `function`, with the name `name` in messages, in order. Raise TypeError for
    arguments that do not fit, including keyword-only ones."""
    found, given = launched(None, function, args, kwargs, name)
    if found is not None:
        raise ApiTypeError(f"{name}(): keyword-only arguments {', '.join(found.names)} have no place in a row")
    return given


@dataclass(frozen=True)
class JitFunction:
    """Function marked with `jit`: called by a script it is compiled and run, inside a graph it is read as part of
    it."""

    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        target = self.fn
        if kwargs:
            target, args = launched(self.fn, self.fn, args, kwargs, getattr(self.fn, "__name__", "the function"))
        return call_handler.current().call(target, args)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else JitFunction(self.fn.__get__(instance, owner))


def jit(function: Any = None, *, fn: Any = None, **options: Any) -> Any:
    """Mark a function to be compiled when it is called, as `@jit` or `@jit(...)`. `fn` is an older name of `function`.

    A warning says that options with other values than the default change nothing. Raises TypeError if it is no
    function; ValueError or TypeError if there is no such option or value.
    """
    checked("jit", JIT, options)
    marked = fn if function is None else function
    if marked is None:
        return jit
    if not callable(marked):
        raise ApiTypeError(f"jit takes a function, not {type(marked).__name__}")
    return JitFunction(marked)
