"""Calls inside `construct` that are neither operators nor inlined: classes, built-in and library functions."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import random
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.argument_binding import as_it_is
from mspc.compiler.frontend.branches import mapped
from mspc.compiler.frontend.builtins import REFUSED
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import COMPUTED, Frame, contains_tensor, describe, values_in
from mspc.ir.diagnostics import MspcError, is_about_digits, kind_of
from mspc.ir.graph import Value
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

_CHANGING = "append extend insert pop remove clear sort reverse update setdefault popitem add discard".split()

COUNTED_LATER = {
    "bincount": "ops.histc(x, n, 0, n) counts the numbers from 0 to n - 1; so does ops.one_hot(x, n, on, off).sum(0)",
    "masked_select": "ops.select(mask, x, other) keeps the shape; the sum of the elements is (x * mask).sum()",
    "nonzero": "ops.select(x != 0, a, b) keeps the shape; ops.count_nonzero(x) says how many there are",
    "unique": "call it outside the network, and pass its result as an argument",
    "unique_consecutive": "call it outside the network, and pass its result as an argument",
}
"""Alternatives to functions whose number of results depends on the contents of a tensor."""
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_WITHOUT_DRAWS = frozenset({"seed", "getstate", "setstate", "get_state", "set_state", "spawn"})


def call_handler(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, handler: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        return handler(tracer, frame, node, *args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(handler).bind(tracer, frame, node, *args, **kwargs)
        except TypeError:
            raise tracer.error(f"{fn.__name__}() does not take these arguments", kind=TypeError, code="E0209") from None
        raise error


def call_class(tracer: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Any:
    if issubclass(cls, Parameter):
        raise tracer.error("a Parameter must be made in __init__, not inside a compiled function", code="E0208")
    if issubclass(cls, Tensor) and args and contains_tensor(args[0]):
        value = tracer.value(args[0]) if isinstance(args[0], Value | Parameter) else None
        if value is None:
            raise tracer.error("Tensor() of several tensors", ["use ops.stack"])
        dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
        return as_it_is(tracer, value if dtype is None else tracer.cast(value, dtype))
    if cls is range and contains_tensor(list(args)):
        from mspc.compiler.frontend.loops import range_of

        return range_of(tracer, args)
    if issubclass(cls, Cell):
        made = call_python(tracer, cls, args, kwargs)
        if next(made.get_parameters(), None) is not None:
            message = f"{cls.__name__} holds parameters: it must be made in __init__, not inside a compiled function"
            raise tracer.error(message)
        return made
    holds = issubclass(cls, functools.partial | ParameterTuple) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    if holds or dataclasses.is_dataclass(cls):
        return call_python(tracer, cls, args, kwargs, takes_tensors=True)
    return tracer.own(call_python(tracer, cls, args, kwargs))


def call_python(tracer: Tracer, fn: Any, args: Args, kwargs: Kwargs, takes_tensors: bool = False) -> Any:
    """Call a Python object with arguments known at compile time. Raise MspcError if an argument is a tensor of the
    graph, a compiled function may not call this function, or it raises."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if isinstance(fn, types.BuiltinFunctionType | type) and fn in REFUSED:
        raise tracer.error(f"{name}() is not supported inside a compiled function", code="E0203")
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, list | dict | set | tuple | str) and not isinstance(fn, types.MethodType):
        if name in _CHANGING and id(owner) not in tracer.owned:
            raise tracer.error(
                f"{name}() would change a {type(owner).__name__} that lives outside of the compiled function",
                [f"make a new one inside: {'dict' if isinstance(owner, dict) else 'list'}(...)"], code="E0207",
            )
        takes_tensors = True
    is_own = str(getattr(fn, "__module__", None)).startswith("mspc.")
    if name == "tensor" and is_own:
        return call_class(tracer, Tensor, args, kwargs)
    if name == "mutable" and is_own and args:
        return _mutable(tracer, args[0])
    # mspc's own functions may use the shape or the name of a parameter. An access to its values is refused there.
    kinds = COMPUTED if is_own else (*COMPUTED, Parameter)
    if not takes_tensors and contains_tensor((args, kwargs), kinds):
        if name in COUNTED_LATER and is_own:
            message = f"{name}(): how many elements it gives is only known at run time"
            raise tracer.error(message, [COUNTED_LATER[name]], kind=TypeError)
        weight = next(values_in((args, kwargs), (Parameter,)), None)
        unknown = "tensors" if weight is None else describe(weight)
        raise tracer.error(
            f"{name}() takes only values known at compile time, not {unknown}",
            ["operators on tensors are in mindspore.ops"],
            kind=TypeError, code="E0305",
        )
    if isinstance(owner, _GENERATORS) and name not in _WITHOUT_DRAWS:
        tracer.warn(
            f"{name}() draws a random number once, when the network is compiled: all calls have the same one; "
            "operators that draw at every call are in mindspore.ops"
        )
    try:
        result = fn(*args, **kwargs)
    except MspcError as error:
        raise tracer.error(error.message, error.notes, error.kind) from None
    except Exception as error:
        reason = f"raised {type(error).__name__}: {error}"
        if is_own and is_about_digits(error):
            reason = f"does not take {', '.join(map(describe, [*args, *kwargs.values()]))}"
        mistake = tracer.error(f"{name}() {reason}", kind=kind_of(error))
        mistake.python = error
        raise mistake from None
    is_new = isinstance(result, list | dict) and takes_tensors and not isinstance(fn, type)
    return tracer.own(result) if is_new else result


def _mutable(tracer: Tracer, value: Any) -> Any:
    """Evaluate `mutable(value)`: numbers in it become tensors whose values are known only at run time."""

    def leaf(number: Any) -> Any:
        if not isinstance(number, bool | int | float):
            return number
        made = tracer.value(number)
        tracer.weak.add(made)
        return made

    return mapped(tracer, value, leaf, (bool, int, float))
