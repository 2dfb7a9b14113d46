"""Messages between ranks outside of networks: their arguments, handles, and results written in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.communication.group import GlobalComm, listed, ranks_of, require_init
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
    ranks = ranks_of(group)
    if rank not in ranks:
        raise ApiValueError(f"{function}: {name} {rank} is not in group {group!r}, which has {listed(ranks)}")
    return rank


def number_in_group(function: str, name: str, rank: Any, group: str) -> int:
    """Return the number in the group of a rank of the job. Raise as `member`."""
    return ranks_of(group).index(member(function, name, rank, group))


def size_of(function: str, group: str) -> int:
    """Return the number of ranks of a group. Raise RuntimeError before `init()`, ValueError for an unknown group."""
    require_init(function)
    return len(ranks_of(group))


def even_parts(function: str, name: str, rows: int, count: int) -> tuple[int, ...]:
    """Return the sizes of equal parts of a first dimension, one for each rank. Raise ValueError if it is not
    divisible."""
    if rows % count:
        raise ApiValueError(
            f"{function}: the first dimension of {name} is {rows}, which does not divide by {count} ranks"
        )
    return (rows // count,) * count


def split_sizes(function: str, name: str, sizes: Any, rows: int, count: int) -> tuple[int, ...]:
    """Return the listed sizes of parts, one for each rank; equal parts if none are listed. Raise TypeError if they are
    no integers; ValueError if their number is not that of the ranks, or their sum not that of the rows."""
    if not sizes:
        return even_parts(function, name.partition("_")[0], rows, count)
    found = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in found):
        raise ApiTypeError(f"{function}: {name} must be a list of integers, not {sizes!r}")
    if len(found) != count or min(found) < 0:
        raise ApiValueError(f"{function}: {name} must be {count} numbers from 0 on, one for each rank, not {sizes!r}")
    if sum(found) != rows:
        raise ApiValueError(f"{function}: {name} {sizes!r} is {sum(found)} rows together, the tensor has {rows}")
    return found


def square(function: str, numbers: Any, count: int) -> list[int]:
    """Return a matrix of `count` rows and columns, given as one list of numbers from 0 on. Raise TypeError if it is no
    list of integers, ValueError for another length or negative numbers."""
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise ApiTypeError(f"{function}: send_count_matrix must be a list of integers, not {numbers!r}")
    if len(numbers) != count * count or min(numbers) < 0:
        raise ApiValueError(
            f"{function}: send_count_matrix must be {count} x {count} numbers from 0 on, one row for each rank, "
            f"not {numbers!r}"
        )
    return numbers


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


@dataclass(eq=False)
class P2POp:
    """Tensor to send ("isend") or receive ("irecv").

    Args:
        op: "isend", "irecv", or the function of that name. tensor: the tensor to send; for a receive, a tensor of the
            same shape and element type, or the shape. peer: the other rank. group: its group, by default that of all
            ranks.
        tag: only 0. recv_dtype: the element type if `tensor` is a shape.

    Raises TypeError or ValueError if an argument is something else.
    """

    op: Any
    tensor: Any
    peer: int
    group: str | None = None
    tag: int = 0
    recv_dtype: Any = None

    def __post_init__(self) -> None:
        op, tensor = self.op, self.tensor
        if not isinstance(op, str) and not callable(op):
            raise ApiTypeError(f"P2POp: op must be 'isend' or 'irecv', or the function of that name, not {op!r}")
        name = op if isinstance(op, str) else getattr(op, "__name__", "")
        if name not in ("isend", "irecv"):
            raise ApiValueError(f"P2POp: op must be 'isend' or 'irecv', not {name!r}")
        if isinstance(self.peer, bool) or not isinstance(self.peer, int):
            raise ApiTypeError(f"P2POp: peer must be an integer, not {self.peer!r}")
        if self.tag != 0:
            raise ApiValueError(f"P2POp: tag must be 0, not {self.tag!r}")
        self.sends = name == "isend"
        if not isinstance(tensor, tuple):
            kind = getattr(tensor, "tensor_type", tensor)  # a value of a graph, or a Tensor
            if not hasattr(kind, "shape") or not hasattr(kind, "dtype"):
                raise ApiTypeError(f"P2POp: tensor must be a tensor or a shape, not {tensor!r}")
            self.shape, self.dtype = tuple(kind.shape), kind.dtype
            return
        if self.sends:
            raise ApiTypeError(f"P2POp: 'isend' takes a tensor, not the shape {tensor!r}")
        if self.recv_dtype is None:
            raise ApiValueError("P2POp: 'irecv' of a shape needs recv_dtype, the element type")
        self.shape, self.dtype = tensor, dtype_of(self.recv_dtype)


def checked_messages(messages: Sequence[Any]) -> str:
    """Return the common group of messages. Raise TypeError or ValueError if there are none, they are of different
    groups, or name a rank that is not in the group."""
    if not messages:
        raise ApiTypeError("batch_isend_irecv: p2p_op_list must have at least one P2POp")
    wrong = next((each for each in messages if not isinstance(each, P2POp)), None)
    if wrong is not None:
        raise ApiTypeError(f"batch_isend_irecv: p2p_op_list must be a list of P2POp, not of {wrong!r}")
    groups = {each.group for each in messages}
    if len(groups) > 1:
        raise ApiValueError(f"batch_isend_irecv: all must be of one group, not of {', '.join(map(str, groups))}")
    group = messages[0].group or GlobalComm.WORLD_COMM_GROUP
    for each in messages:
        member("batch_isend_irecv", "peer", each.peer, group)
    return group


def kinds_of(messages: Sequence[P2POp]) -> list[Any]:
    """Return the element types of messages, in an order that all ranks share."""
    return [kind for _, kind in sorted({str(each.dtype): each.dtype for each in messages}.items())]
