"""These functions put their results into tensors that they are given. A compiled function has values, no places, so
that they run outside of one only, as in MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.communication.groups import ranks_of
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.checked import checked
from mspc.ir.graph import Value

Function = Callable[..., Any]


def in_place(label: str, instead: str) -> Callable[[Function], Function]:
    """A decorator: the function checks its arguments, and refuses values of a compiled function, where `instead` does
    the same. label: how messages call it."""

    def decorate(function: Function) -> Function:
        call = checked(label, function)
        check = call.__dict__["check_arguments"]

        def check_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            if _has_values([*args, *kwargs.values()]):
                raise ApiTypeError(
                    f"{label}() puts its result into a tensor, which a compiled function cannot",
                    [f"use {instead}, which returns it, or call it outside of the compiled function"],
                )
            check(args, kwargs)

        call.__dict__["check_arguments"] = check_all
        return call

    return decorate


def put(function: str, name: str, target: Any, array: np.ndarray) -> None:
    """Give `target`, an argument of a function, the value `array`.

    Raises:
        TypeError: it is no tensor, or one of another element type. ValueError: it has another shape.
    """
    require_tensor(function, name, target)
    if target.dtype.numpy != array.dtype:
        raise ApiTypeError(f"{function}(): {name} is of {target.dtype}, the result of {array.dtype.name}")
    if tuple(target.shape) != array.shape:
        raise ApiValueError(f"{function}(): {name} has shape {tuple(target.shape)}, the result has {array.shape}")
    target.array = array


def put_all(function: str, name: str, targets: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """Give every tensor of a list its value; none where one does not fit."""
    previous = [target.array for target in targets]
    try:
        for index, (target, array) in enumerate(zip(targets, arrays, strict=True)):
            put(function, f"{name}[{index}]", target, array)
    except Exception:
        for target, array in zip(targets, previous, strict=True):
            target.array = array
        raise


def require_tensor(function: str, name: str, value: Any) -> None:
    """Raises TypeError for what is no Tensor."""
    if not isinstance(value, Tensor):
        raise ApiTypeError(f"{function}(): {name} must be a Tensor, not {value!r}")


def tensors_for_all(function: str, name: str, tensors: Any, group: str) -> list[Any]:
    """A list with one tensor for every rank of a group, all of one type.

    Raises:
        TypeError: it is none. ValueError: it has another length, or tensors of different types.
    """
    count = len(ranks_of(group))
    if not isinstance(tensors, (list, tuple)):
        raise ApiTypeError(f"{function}(): {name} must be a list of tensors, not {tensors!r}")
    found = list(cast("Sequence[Any]", tensors))
    for index, tensor in enumerate(found):
        require_tensor(function, f"{name}[{index}]", tensor)
    if len(found) != count:
        raise ApiValueError(f"{function}(): {name} must have one tensor for each of {count} ranks, not {len(found)}")
    if len({str(tensor.type) for tensor in found}) > 1:
        raise ApiValueError(f"{function}(): the tensors of {name} must be of one shape and element type")
    return found


def _has_values(items: Sequence[Any]) -> bool:
    return any(
        isinstance(item, Value) or (isinstance(item, (list, tuple)) and _has_values(cast("Sequence[Any]", item)))
        for item in items
    )
