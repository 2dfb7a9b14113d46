"""Collectives called outside of a network, on tensors of this rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.communication.group import GlobalComm, ReduceOp
from mspc.mindspore_api.communication.messages import handle_of, member, number_in_group, size_of, split_sizes
from mspc.mindspore_api.ops.checked import TensorLike, checked

__all__ = [
    "all_gather_into_tensor", "all_reduce", "all_to_all_single_with_output_shape",
    "all_to_all_with_output_shape", "barrier", "broadcast", "irecv",
    "isend", "recv", "reduce", "reduce_scatter_tensor", "send",
]  # fmt: skip


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    return checked(f"comm_func.{function.__name__}", function)


@_public
def all_reduce(
    tensor: TensorLike, op: str = ReduceOp.SUM, group: str = GlobalComm.WORLD_COMM_GROUP, async_op: bool = False
) -> Any:
    """Return (the group's tensors combined by `op`, handle or None)."""
    return ops.AllReduce(op, group)(tensor), handle_of(async_op)


@_public
def all_gather_into_tensor(tensor: TensorLike, group: str = GlobalComm.WORLD_COMM_GROUP, async_op: bool = False) -> Any:
    """Return (the group's tensors concatenated along dimension 0, handle or None)."""
    return ops.AllGather(group)(tensor), handle_of(async_op)


@_public
def reduce_scatter_tensor(
    tensor: TensorLike, op: str = ReduceOp.SUM, group: str = GlobalComm.WORLD_COMM_GROUP, async_op: bool = False
) -> Any:
    """Return (this rank's part along dimension 0 of the group's tensors combined, handle or None)."""
    return ops.ReduceScatter(op, group)(tensor), handle_of(async_op)


@_public
def reduce(tensor: TensorLike, dst: int, op: str = ReduceOp.SUM, group: str = GlobalComm.WORLD_COMM_GROUP) -> Any:
    """Return the group's tensors combined on rank `dst`, one zero on other ranks."""
    return ops.Reduce(number_in_group("reduce", "dst", dst, group), op, group)(tensor)


@_public
def broadcast(tensor: TensorLike, src: int = 0, group: str = GlobalComm.WORLD_COMM_GROUP) -> Any:
    """Return the tensor of rank `src`."""
    return ops.Broadcast(member("broadcast", "src", src, group), group)((tensor,))[0]


@_public
def all_to_all_single_with_output_shape(
    output_shape: Any, tensor: TensorLike, output_split_sizes: Any = None, input_split_sizes: Any = None,
    group: str | None = None, async_op: bool = False,
) -> Any:  # fmt: skip
    """Return (the received elements, of `output_shape`, handle or None). Rows are sent to the ranks in order, in parts
    of the listed sizes, or in equal parts."""
    chosen = GlobalComm.WORLD_COMM_GROUP if group is None else group
    count = size_of("all_to_all_single_with_output_shape", chosen)
    shape = output_shape.shape if isinstance(output_shape, Tensor) else tuple(output_shape)
    sent = split_sizes(
        "all_to_all_single_with_output_shape", "input_split_sizes", input_split_sizes, tensor.shape[0], count
    )
    come = split_sizes("all_to_all_single_with_output_shape", "output_split_sizes", output_split_sizes, shape[0], count)
    row, new = math.prod(tensor.shape[1:]), math.prod(shape[1:])
    exchanged = ops.AlltoAllV(chosen)(tensor.reshape(-1), [n * row for n in sent], [n * new for n in come])
    return exchanged.reshape(shape), handle_of(async_op)


@_public
def all_to_all_with_output_shape(
    output_shape_list: Sequence[Any], input_tensor_list: Sequence[Any], group: str | None = None, async_op: bool = False
) -> Any:
    """Return (the received elements from each rank, of the listed shapes, handle or None): tensor i is sent to rank i
    of the group."""
    chosen = GlobalComm.WORLD_COMM_GROUP if group is None else group
    shapes = [shape.shape if isinstance(shape, Tensor) else tuple(shape) for shape in output_shape_list]
    sizes = [math.prod(shape) for shape in shapes]
    flat = ops.Concat(0)(tuple([tensor.reshape(-1) for tensor in input_tensor_list]))
    exchanged = ops.AlltoAllV(chosen)(flat, [math.prod(tensor.shape) for tensor in input_tensor_list], sizes)
    found = []
    start = 0
    for shape, size in zip(shapes, sizes, strict=True):
        found.append(exchanged[start : start + size].reshape(shape))
        start += size
    return tuple(found), handle_of(async_op)


@_public
def send(tensor: TensorLike, dst: int = 0, group: str = GlobalComm.WORLD_COMM_GROUP, tag: int = 0) -> None:
    """Send the tensor to rank `dst`, which receives it with the same tag."""
    ops.Send(tag, member("send", "dst", dst, group), group)(tensor)


@_public
def recv(tensor: TensorLike, src: int = 0, group: str = GlobalComm.WORLD_COMM_GROUP, tag: int = 0) -> Any:
    """Return the tensor that rank `src` sends with the tag, of the shape and element type of `tensor`."""
    return ops.Receive(tag, member("recv", "src", src, group), tensor.shape, tensor.dtype, group)()


@_public
def isend(tensor: TensorLike, dst: int = 0, group: str = GlobalComm.WORLD_COMM_GROUP, tag: int = 0) -> Any:
    """Call `send`, and return its handle."""
    ops.Send(tag, member("isend", "dst", dst, group), group)(tensor)
    return handle_of(True)


@_public
def irecv(tensor: TensorLike, src: int = 0, group: str = GlobalComm.WORLD_COMM_GROUP, tag: int = 0) -> Any:
    """Return (the result of `recv`, its handle)."""
    return ops.Receive(tag, member("irecv", "src", src, group), tensor.shape, tensor.dtype, group)(), handle_of(True)


def barrier(group: Any = GlobalComm.WORLD_COMM_GROUP) -> None:
    """Wait for all ranks of the group."""
    ops.Barrier(group)()
