"""Checks of arguments for scripts that import MindSpore's private `_checkparam`: functions, as in MindSpore 2, and the
classes `Validator` and `Rel` of MindSpore 1.

Every check returns its argument. It raises TypeError for the wrong type and ValueError for the wrong value; the message
contains the names of the argument and of the operator, if given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ClassVar, NoReturn

import numpy as np

from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

EQ, NE, LT, LE, GT, GE, INC_NEITHER, INC_LEFT, INC_RIGHT, INC_BOTH, IN, NOT_IN = range(1, 13)

_COMPARED: dict[int, tuple[str, Callable[[Any, Any], bool]]] = {
    EQ: ("= {}", lambda x, y: x == y),
    NE: ("!= {}", lambda x, y: x != y),
    LT: ("< {}", lambda x, y: x < y),
    LE: ("<= {}", lambda x, y: x <= y),
    GT: ("> {}", lambda x, y: x > y),
    GE: (">= {}", lambda x, y: x >= y),
    IN: ("in {}", lambda x, y: x in y),
    NOT_IN: ("not in {}", lambda x, y: x not in y),
}
_RANGES: dict[int, tuple[str, Callable[[Any, Any, Any], bool]]] = {
    INC_NEITHER: ("({}, {})", lambda x, low, high: low < x < high),
    INC_LEFT: ("[{}, {})", lambda x, low, high: low <= x < high),
    INC_RIGHT: ("({}, {}]", lambda x, low, high: low < x <= high),
    INC_BOTH: ("[{}, {}]", lambda x, low, high: low <= x <= high),
}


class Rel:
    """Relations between values."""

    EQ, NE, LT, LE, GT, GE = EQ, NE, LT, LE, GT, GE
    INC_NEITHER, INC_LEFT, INC_RIGHT, INC_BOTH = INC_NEITHER, INC_LEFT, INC_RIGHT, INC_BOTH
    IN, NOT_IN = IN, NOT_IN
    strs: ClassVar[dict[int, str]] = {key: text for key, (text, _) in (_COMPARED | _RANGES).items()}


def _subject(arg_name: Any, prim_name: Any) -> str:
    """Return the beginning of a message."""
    place = f"For '{prim_name}', the" if prim_name else "The"
    return f"{place} '{arg_name}'" if arg_name else f"{place} input value"


def _is(value: Any, kind: type) -> bool:
    """Return whether a value is of a type; truths are no numbers."""
    kinds = {int: (int, np.integer), float: (float, np.floating)}.get(kind, (kind,))
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool | np.bool_))


def _wrong_type(subject: str, wanted: str, value: Any) -> NoReturn:
    raise ApiTypeError(f"{subject} must be {wanted}, but got {value!r} of type '{type(value).__name__}'")


def _number(value: Any, bound: Any, rel: int, kind: type, arg_name: Any, prim_name: Any) -> Any:
    text, holds = _COMPARED[rel]
    wanted = f"{kind.__name__} and must {text.format(bound)}"
    if not _is(value, kind) and not (kind is float and _is(value, int)):
        _wrong_type(_subject(arg_name, prim_name), wanted, value)
    if math.isinf(value) or math.isnan(value) or not holds(value, bound):
        raise ApiValueError(f"{_subject(arg_name, prim_name)} must be {wanted}, but got {value!r}")
    return value


def _in_range(value: Any, low: Any, high: Any, rel: int, kinds: Sequence[type], arg_name: Any, prim_name: Any) -> Any:
    text, holds = _RANGES[rel]
    if not any(_is(value, kind) for kind in kinds):
        _wrong_type(_subject(arg_name, prim_name), " or ".join(kind.__name__ for kind in kinds), value)
    if not holds(value, low, high):
        limits = text.format(low, high)
        raise ApiValueError(f"{_subject(arg_name, prim_name)} must be in range of {limits}, but got {value!r}")
    return value


def check(
    arg_name: str, arg_value: Any, value_name: str, value: Any, rel: int = EQ, prim_name: Any = None,
    excp_cls: type[Exception] = ValueError,
) -> Any:  # fmt: skip
    """Compare `arg_value` with `value`, or with a pair of bounds, and return it."""
    if rel in _RANGES:
        fits, text = _RANGES[rel][1](arg_value, *value), _RANGES[rel][0].format(*value)
    else:
        fits, text = _COMPARED[rel][1](arg_value, value), _COMPARED[rel][0].format(f"{value_name}: {value}")
    if not fits:
        known = {ValueError: ApiValueError, TypeError: ApiTypeError}.get(excp_cls, excp_cls)
        raise known(f"{_subject(arg_name, prim_name)} should be {text}, but got {arg_value}.")
    return arg_value


def check_float(arg_value: Any, value: Any, rel: int, arg_name: Any = None, prim_name: Any = None) -> Any:
    return _number(arg_value, value, rel, float, arg_name, prim_name)


def check_equal_int(arg_value: Any, value: Any, arg_name: Any = None, prim_name: Any = None) -> Any:
    return _number(arg_value, value, EQ, int, arg_name, prim_name)


def _beside_zero(rel: int, kind: type) -> Callable[..., Any]:
    """Return the check of a number that is compared with 0."""

    def check(arg_value: Any, arg_name: Any = None, prim_name: Any = None) -> Any:
        return _number(arg_value, 0, rel, kind, arg_name, prim_name)

    return check


check_positive_int, check_negative_int = _beside_zero(GT, int), _beside_zero(LT, int)
check_non_positive_int, check_non_negative_int = _beside_zero(LE, int), _beside_zero(GE, int)
check_positive_float, check_negative_float = _beside_zero(GT, float), _beside_zero(LT, float)
check_non_positive_float, check_non_negative_float = _beside_zero(LE, float), _beside_zero(GE, float)


def check_int_range(
    arg_value: Any, lower_limit: Any, upper_limit: Any, rel: int, arg_name: Any = None, prim_name: Any = None
) -> Any:
    return _in_range(arg_value, lower_limit, upper_limit, rel, (int,), arg_name, prim_name)


def check_float_range(
    arg_value: Any, lower_limit: Any, upper_limit: Any, rel: int, arg_name: Any = None, prim_name: Any = None
) -> Any:
    return _in_range(arg_value, lower_limit, upper_limit, rel, (float, int), arg_name, prim_name)


def check_number(arg_name: str, arg_value: Any, value: Any, rel: int, prim_name: Any = None) -> Any:
    return _number(arg_value, value, rel, int if _is(arg_value, int) else float, arg_name, prim_name)


def check_bool(arg_value: Any, arg_name: Any = None, prim_name: Any = None) -> Any:
    if not isinstance(arg_value, bool):
        _wrong_type(_subject(arg_name, prim_name), "a bool", arg_value)
    return arg_value


def check_string(arg_value: Any, valid_values: Sequence[str], arg_name: Any = None, prim_name: Any = None) -> Any:
    if not isinstance(arg_value, str) or arg_value not in valid_values:
        known = ", ".join(map(repr, valid_values))
        raise ApiValueError(f"{_subject(arg_name, prim_name)} must be one of {known}, but got {arg_value!r}")
    return arg_value


def check_value_type(arg_name: str, arg_value: Any, valid_types: Any, prim_name: Any = None) -> Any:
    kinds = list(valid_types) if isinstance(valid_types, Iterable) else [valid_types]
    if not any(_is(arg_value, kind) if kind is not None else arg_value is None for kind in kinds):
        names = " or ".join(f"'{getattr(kind, '__name__', kind)}'" for kind in kinds)
        _wrong_type(_subject(arg_name, prim_name), f"of type {names}", arg_value)
    return arg_value


def check_isinstance(arg_name: str, arg_value: Any, classes: Any) -> Any:
    return check_value_type(arg_name, arg_value, classes)


def check_subclass(arg_name: str, type_: Any, template_types: Any, prim_name: Any = None, *_: Any) -> Any:
    """Return a type, or an element type, that must be one of `template_types` or a kind of one."""
    kinds = template_types if isinstance(template_types, (tuple, list)) else [template_types]
    if not any(type_ == kind or (isinstance(kind, type) and _is_kind(type_, kind)) for kind in kinds):
        known = ", ".join(str(getattr(kind, "__name__", kind)) for kind in kinds)
        raise ApiTypeError(f"{_subject(arg_name, prim_name)} must be a kind of {known}, but got {type_}")
    return type_


def _is_kind(type_: Any, kind: type) -> bool:
    return issubclass(type_, kind) if isinstance(type_, type) else isinstance(type_, kind)


def args_type_check(*type_args: Any, **type_kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that checks types of arguments, including those gathered by `**kwargs`; None accepts any type.
    Its functions raise TypeError for an argument of another type."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        kinds = _by_name(signature.bind_partial(*type_args, **type_kwargs))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in _by_name(signature.bind(*args, **kwargs)).items():
                if kinds.get(name) is not None and value is not None and not isinstance(value, kinds[name]):
                    check_value_type(name, value, kinds[name], function.__name__)
            return function(*args, **kwargs)

        return call

    return decorate


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return arguments by name, merging those gathered by `**kwargs` with the others."""
    parameters = bound.signature.parameters
    gathered = {name for name in bound.arguments if parameters[name].kind is inspect.Parameter.VAR_KEYWORD}
    found = {name: value for name, value in bound.arguments.items() if name not in gathered}
    return found | {key: value for name in gathered for key, value in bound.arguments[name].items()}


def _repeated(count: int) -> Callable[[Any], tuple[Any, ...]]:
    def repeat(value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, (tuple, list)) else (value,) * count

    return repeat


once, twice, triple = _repeated(1), _repeated(2), _repeated(3)
check_int_positive = check_positive_int
"""MindSpore 1.0's name."""


def check_integer(arg_name: str, arg_value: Any, value: Any, rel: int, prim_name: Any = None) -> Any:
    """Compare an integer with `value`, and return it."""
    return _number(arg_value, value, rel, int, arg_name, prim_name)


class Validator:
    """Checks of MindSpore 1: the functions of this module as static methods."""


for _name, _check in list(globals().items()):
    if _name.startswith("check"):
        setattr(Validator, _name, staticmethod(_check))
