"""Checks of arguments of public functions before they run: number, names, and annotated types. A compiled function
makes the same checks before it reads the function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.errors import PACKAGE, ApiTypeError, ApiValueError
from mspc.mindspore_api.rooms import PUBLIC, ROOMS
from mspc.ops.operator_arguments import describe

Function = Callable[..., Any]

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an int", lambda value: isinstance(value, int | np.integer) and not isinstance(value, bool)),
    "bool": ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "float": ("a number", lambda value: isinstance(value, int | float | np.number) and not isinstance(value, bool)),
    "str": ("a string", lambda value: isinstance(value, str)),
    "None": ("None", lambda value: value is None),
    "TensorLike": ("a tensor", lambda value: _is_tensor(value)),
    "Sequence[Any]": ("a tuple or a list", lambda value: isinstance(value, tuple | list)),
}
_TENSORS = frozenset(
    """A anchor batch1 batch2 bias boxes gamma grid image index indices input input1 input2 input_indices input_params
    input_x inputs key label labels logits mask mat1 mat2 negative pos_weight positive query self target targets
    tensor theta var vec2 weight x""".split()
)
"""Parameters that are always tensors, or None if they are optional."""
_NUMBERS = frozenset("other value min max clip_value_min clip_value_max alpha beta fill_value".split())
"""Parameters that are numbers or tensors."""
LEAKS = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)
"""Errors of Python and NumPy inside of a function for unsuitable arguments."""
_OWN = (*(str(Path(PACKAGE) / room) for room in (*ROOMS, "ops", "ir", "sharding")), str(Path(np.__file__).parent),
        str(Path(functools.__file__).parent), "<")  # fmt: skip
"""Prefixes of files that belong to no script."""
_COMPUTING = tuple(f"mspc.mindspore_api.{room}." for room in ("communication", "mint", "nn", "numpy", "ops"))
"""Prefixes of modules with functions of tensors."""
TensorLike = Any
"""An annotation: a tensor, whatever the parameter is called."""


def check_arguments(label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if a function, called `label` in messages (`ops.sum()`), cannot be called with these
    arguments."""
    wrong = misfit_of(function, args, kwargs)
    if wrong:
        raise ApiTypeError(f"{label}: {wrong}", [_taken(function)])


def misfit_of(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why a function cannot be called with these arguments, or "" if the signature and annotations allow it."""
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    for name, value in bound.arguments.items():
        if not _is_tensor(value):
            wanted = _wanted(function, name, value)
            if wanted:
                return f"{name} must be {wanted}, not {describe(value)}"
    return ""


def _wanted(function: Function, name: str, value: Any) -> str:
    parameters = _signature(function).parameters
    parameter = parameters[name]
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        return ""
    kinds = str(parameter.annotation).split(" | ")
    if all(kind in _KINDS for kind in kinds):
        if value is parameter.default or any(_KINDS[kind][1](value) for kind in kinds):
            return ""
        return " or ".join(_KINDS[kind][0] for kind in kinds)
    if kinds != ["Any"] or value is parameter.default or _makes(function):
        return ""
    if name in _TENSORS and "other" not in parameters:
        return "a tensor"
    if name not in _TENSORS | _NUMBERS or _is_number(value):
        return ""
    return "a number or a tensor"


def _makes(function: Function) -> bool:
    """Return whether the function computes nothing, so that parameter names do not imply tensors: `bias` of a
    constructor is a flag."""
    return function.__name__ in ("__init__", "__new__") or not f"{function.__module__}.".startswith(_COMPUTING)


def _is_tensor(value: Any) -> bool:
    """Return whether it is a Tensor, a Parameter, an array, or a value of a graph."""
    return hasattr(value, "shape") and not isinstance(value, np.generic)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.generic)


def check_names(label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if there are too many arguments, too few, or some of other names."""
    try:
        _signature(function).bind(*args, **kwargs)
    except TypeError as wrong:
        raise ApiTypeError(f"{label}: {wrong}", [_taken(function)]) from None


def explain(label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> None:
    """Raise the errors of `check_names` and `refuse`, for a call that was not checked before; return if neither finds a
    mistake."""
    if isinstance(error, TypeError):
        check_names(label, function, args, kwargs)
    refuse(label, function, args, kwargs, error)


def refuse(label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> None:
    """Raise TypeError or ValueError that names the arguments, for an error inside of a function; return if it was
    raised in a function of the script."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            return
        trace = trace.tb_next
    kind = ApiValueError if isinstance(error, ValueError | ArithmeticError) else ApiTypeError
    raise kind(*explained(label, function, args, kwargs, error)) from None


def explained(
    label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception,
    text: Callable[[Any], str] = describe,
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """Return (message, notes) that name the arguments, for an error of Python inside of a function. text: formats one
    argument."""
    given = _signature(function).bind(*args, **kwargs).arguments
    given = {name: value for name, value in given.items() if name not in ("self", "cls")}
    takes = (_taken(function),)
    for name, value in given.items():
        wrong = error.obj if isinstance(error, AttributeError) else error
        array = isinstance(value, np.ndarray) and (wrong is value or wrong is value.dtype)
        if not _makes(function) and (array or (wrong is value and not _is_tensor(value))):
            return f"{label}: {name} must be a tensor, not {text(value)}", takes
    shown = ", ".join(f"{name}={text(value)}" for name, value in given.items())
    return f"{label}: these arguments do not fit: {shown}", takes


def _taken(function: Function) -> str:
    names = ", ".join(name for name in _signature(function).parameters if name not in ("self", "cls"))
    return f"it takes {names or 'no arguments'}"


@functools.cache
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


@functools.cache
def checked(name: str, function: Function) -> Function:
    """Return a Python function that checks its arguments before it runs; anything else unchanged. name: as in
    `ops.sum`."""
    if not inspect.isfunction(function):
        return function
    label = f"{name}()"
    at_once = function.__dict__.get("at_once", function)  # outside of a network, where results may be views

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_arguments(label, function, args, kwargs)
        try:
            return at_once(*args, **kwargs)
        except MspcError as error:
            if name.rpartition(".")[2] not in error.message:
                error.notes = (*error.notes, f"in {label}")
            raise
        except LEAKS as error:
            refuse(label, function, args, kwargs, error)
            raise

    call.__dict__["check_arguments"] = functools.partial(check_arguments, label, function)
    return cast(Function, call)


def checked_constructor(name: str, function: Function) -> Function:
    """Return an `__init__` that checks its arguments before it runs. name: the class's."""

    @functools.wraps(function)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        own = type(self).__module__.startswith(PUBLIC)
        label = type(self).__name__ if own or name.startswith("_") else name
        check_arguments(label, function, (self, *args), kwargs)
        try:
            function(self, *args, **kwargs)
        except MspcError:
            raise
        except LEAKS as error:
            refuse(label, function, (self, *args), kwargs, error)
            raise

    return make


@functools.cache
def checked_class(cls: type[Any]) -> type[Any]:
    """Return the class with a constructor that checks its arguments."""
    if cls.__init__ is object.__init__:
        cls.__init__ = checked_constructor(cls.__name__, _takes_nothing)
    elif not hasattr(cls.__init__, "__wrapped__"):
        cls.__init__ = checked_constructor(cls.__name__, cls.__init__)
    return cls


def _takes_nothing(self: object) -> None:
    """Constructor of a class without one of its own."""
