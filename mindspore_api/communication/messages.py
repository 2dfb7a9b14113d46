"""Messages between ranks outside of networks: their arguments, handles, and results written in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Value
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.communication.group import check_member, ranks_of, require_init
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.checked import checked


class CommHandle:
    """Work requested with `async_op=True`. It is done when the function returns: a compiled graph itself finds
    operators that can run at the same time."""

    def wait(self) -> None:
        """Return at once."""


_DONE = CommHandle()


def handle_of(async_op: bool) -> CommHandle | None:
    """Return the handle for a result if one was requested, or None."""
    return _DONE if async_op else None


def member(function: str, name: str, rank: Any, group: str) -> int:
    """Return a rank given by its number in the job. Raise RuntimeError before `init()`; TypeError for no integer;
    ValueError if it is not in the group."""
    require_init(function)
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise ApiTypeError(f"{function}: {name} must be an integer, not {rank!r}")
    check_member(function, name, rank, group)
    return rank


def number_in_group(function: str, name: str, rank: Any, group: str) -> int:
    """Return the number in the group of a rank of the job. Raise as `member`."""
    return ranks_of(group).index(member(function, name, rank, group))


def size_of(function: str, group: str) -> int:
    """Return the number of ranks of a group. Raise RuntimeError before `init()`, ValueError for an unknown group."""
    require_init(function)
    return len(ranks_of(group))


def split_sizes(function: str, name: str, sizes: Any, rows: int, count: int) -> tuple[int, ...]:
    """Return the listed sizes of parts, one for each rank; equal parts if none are listed. Raise TypeError if they are
    no integers; ValueError if their number is not that of the ranks, or their sum not that of the rows."""
    if not sizes:
        if rows % count:
            raise ApiValueError(
                f"{function}: the first dimension of {name.partition('_')[0]} is {rows}, which does not divide by "
                f"{count} ranks"
            )
        return (rows // count,) * count
    found = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in found):
        raise ApiTypeError(f"{function}: {name} must be a list of integers, not {sizes!r}")
    if len(found) != count or min(found) < 0:
        raise ApiValueError(f"{function}: {name} must be {count} numbers from 0 on, one for each rank, not {sizes!r}")
    if sum(found) != rows:
        raise ApiValueError(f"{function}: {name} {sizes!r} is {sum(found)} rows together, the tensor has {rows}")
    return found


Function = Callable[..., Any]


def in_place(label: str, instead: str) -> Callable[[Function], Function]:
    """Return a decorator: the function checks its arguments, and refuses values of a compiled function, for which
    `instead` is suggested. label: its name in messages."""

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
    """Assign the value `array` to `target`, an argument of a function. Raise TypeError if it is no tensor or has
    another element type; ValueError if it has another shape."""
    require_tensor(function, name, target)
    if target.dtype.numpy != array.dtype:
        raise ApiTypeError(f"{function}(): {name} is of {target.dtype}, the result of {array.dtype.name}")
    if tuple(target.shape) != array.shape:
        raise ApiValueError(f"{function}(): {name} has shape {tuple(target.shape)}, the result has {array.shape}")
    target.array = array


def put_all(function: str, name: str, targets: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """Assign a value to every tensor of a list; if one does not fit, change none."""
    previous = [target.array for target in targets]
    try:
        for index, (target, array) in enumerate(zip(targets, arrays, strict=True)):
            put(function, f"{name}[{index}]", target, array)
    except Exception:
        for target, array in zip(targets, previous, strict=True):
            target.array = array
        raise


def require_tensor(function: str, name: str, value: Any) -> None:
    """Raise TypeError if it is no Tensor."""
    if not isinstance(value, Tensor):
        raise ApiTypeError(f"{function}(): {name} must be a Tensor, not {value!r}")


def tensors_for_all(function: str, name: str, tensors: Any, group: str) -> list[Any]:
    """Return a list with one tensor for every rank of a group, all of one type. Raise TypeError if it is no list of
    tensors; ValueError if it has another length, or tensors of different types."""
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
