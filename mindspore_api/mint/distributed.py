"""`mindspore.mint.distributed`: collectives and groups with PyTorch's arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.mindspore_api import ops, state
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.communication import comm_func
from mspc.mindspore_api.communication import group as groups
from mspc.mindspore_api.communication.group import GlobalComm, ReduceOp
from mspc.mindspore_api.communication.messages import (
    handle_of,
    in_place,
    number_in_group,
    put,
    put_all,
    tensors_for_all,
)
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.sharding.groups import WORLD_GROUPS

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "destroy_process_group",
    "get_process_group_ranks", "get_rank", "get_world_size",
    "init_process_group", "irecv", "is_available", "is_initialized", "isend", "new_group", "recv", "reduce",
    "reduce_scatter_tensor", "send",
]  # fmt: skip


# Groups -----------------------------------------------------------------------------------------------------


def init_process_group(
    backend: Any = "hccl", init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
    store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None,
) -> None:  # fmt: skip
    """Set up ranks and groups, as `communication.init`. The launcher determines this rank's number, whatever is given.
    Raise ValueError if the backend is unknown, or the job has another number of ranks."""
    groups.init(None if backend == "hccl" else backend)
    if world_size not in (-1, groups.get_group_size()):
        size = groups.get_group_size()
        raise ApiValueError(f"init_process_group: world_size is {world_size}, the launcher started {size} ranks")


def destroy_process_group(group: Any = None) -> None:
    """Delete a group; without a name all groups, and undo `init_process_group`."""
    if group is None or group in WORLD_GROUPS:
        groups.release()
    else:
        groups.destroy_group(group)


def is_available() -> bool:
    """Return whether ranks can communicate: always."""
    return True


def is_initialized() -> bool:
    """Return whether `init_process_group` or `init` was called."""
    return state.current().initialized


def get_rank(group: Any = None) -> int:
    """Return this rank's number in the group, or -1 if it is not in it."""
    name = _group(group)
    ranks = groups.get_process_group_ranks(name)
    own = state.current().rank
    return ranks.index(own) if own in ranks else -1


def get_world_size(group: Any = None) -> int:
    """Return the number of ranks of the group, or -1 if this rank is not in it."""
    name = _group(group)
    return groups.get_group_size(name) if get_rank(name) >= 0 else -1


def new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None,
    use_local_synchronization: bool = False, group_desc: Any = None,
) -> str:  # fmt: skip
    """Return the name of a new group of ranks, in ascending order; that of all ranks if none are given."""
    if ranks is None:
        return GlobalComm.WORLD_COMM_GROUP
    if not isinstance(ranks, list):
        raise ApiTypeError(f"new_group: ranks must be a list, not {ranks!r}")
    if backend not in (None, "hccl", "nccl", "mccl"):
        raise ApiTypeError(f"new_group: backend must be 'hccl', 'nccl' or 'mccl', not {backend!r}")
    ordered = sorted(ranks)
    digest = hashlib.sha1("_".join(map(str, ordered)).encode(), usedforsecurity=False).hexdigest()
    name = f"{backend or 'hccl'}_{len(ordered)}_{digest}"
    groups.create_group(name, ordered)
    return name


def get_process_group_ranks(group: Any = None) -> list[int]:
    """Return the ranks of the group, in its order."""
    return groups.get_process_group_ranks(_group(group))


# Collectives ------------------------------------------------------------------------------------------------


@in_place("mint.distributed.all_reduce", "comm_func.all_reduce()")
def all_reduce(tensor: TensorLike, op: str = ReduceOp.SUM, group: str | None = None, async_op: bool = False) -> Any:
    """Write the group's tensors combined by `op`, which may be "avg", to `tensor`."""
    put("all_reduce", "tensor", tensor, _combined(ops.AllReduce, tensor, op, _group(group)))
    return handle_of(async_op)


@in_place("mint.distributed.reduce", "comm_func.reduce()")
def reduce(
    tensor: TensorLike, dst: int, op: str = ReduceOp.SUM, group: str | None = None, async_op: bool = False
) -> Any:
    """Write the group's tensors combined to `tensor` on rank `dst`; other ranks' tensors are unchanged."""
    name = _group(group)
    place = number_in_group("reduce", "dst", dst, name)
    found = _combined(lambda op, group: ops.Reduce(place, op, group), tensor, op, name)
    if groups.get_rank() == dst:
        put("reduce", "tensor", tensor, found)
    return handle_of(async_op)


@in_place("mint.distributed.broadcast", "comm_func.broadcast()")
def broadcast(tensor: TensorLike, src: int, group: str | None = None, async_op: bool = False) -> Any:
    """Write the tensor of rank `src` to `tensor`."""
    put("broadcast", "tensor", tensor, comm_func.broadcast(tensor, src, _group(group)).asnumpy())
    return handle_of(async_op)


@in_place("mint.distributed.all_gather", "comm_func.all_gather_into_tensor()")
def all_gather(tensor_list: Sequence[Any], tensor: TensorLike, group: str | None = None, async_op: bool = False) -> Any:
    """Write the tensor of rank i of the group to tensor i of the list."""
    name = _group(group)
    targets = tensors_for_all("all_gather", "tensor_list", tensor_list, name)
    found = ops.AllGather(name)(_row(tensor)).asnumpy()
    put_all("all_gather", "tensor_list", targets, [part.copy() for part in found])
    return handle_of(async_op)


@in_place("mint.distributed.all_gather_into_tensor", "comm_func.all_gather_into_tensor()")
def all_gather_into_tensor(
    output_tensor: TensorLike, input_tensor: TensorLike, group: str | None = None, async_op: bool = False
) -> Any:
    """Write the group's tensors, concatenated along dimension 0, to `output_tensor`."""
    found = ops.AllGather(_group(group))(input_tensor)
    put("all_gather_into_tensor", "output_tensor", output_tensor, found.asnumpy())
    return handle_of(async_op)


@in_place("mint.distributed.reduce_scatter_tensor", "comm_func.reduce_scatter_tensor()")
def reduce_scatter_tensor(
    output: TensorLike, input: TensorLike, op: str = ReduceOp.SUM, group: str | None = None, async_op: bool = False
) -> Any:
    """Write this rank's part along dimension 0 of the group's tensors combined to `output`."""
    found = _combined(ops.ReduceScatter, input, op, _group(group))
    put("reduce_scatter_tensor", "output", output, found)
    return handle_of(async_op)


@in_place("mint.distributed.all_to_all", "comm_func.all_to_all_with_output_shape()")
def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: str | None = None,
    async_op: bool = False,
) -> Any:  # fmt: skip
    """Send tensor i of the input list to rank i of the group, and write the tensor from that rank to output tensor
    i."""
    found, _ = comm_func.all_to_all_with_output_shape(output_tensor_list, input_tensor_list, _group(group))
    put_all("all_to_all", "output_tensor_list", output_tensor_list, [each.asnumpy() for each in found])
    return handle_of(async_op)


@in_place("mint.distributed.all_to_all_single", "comm_func.all_to_all_single_with_output_shape()")
def all_to_all_single(
    output: TensorLike, input: TensorLike, output_split_sizes: Any = None, input_split_sizes: Any = None,
    group: str | None = None, async_op: bool = False,
) -> Any:  # fmt: skip
    """Send rows of `input` to the ranks in order, in parts of the listed sizes or in equal parts, and write the
    received elements to `output`."""
    found, _ = comm_func.all_to_all_single_with_output_shape(
        output, input, output_split_sizes, input_split_sizes, _group(group)
    )
    put("all_to_all_single", "output", output, found.asnumpy())
    return handle_of(async_op)


# Messages ---------------------------------------------------------------------------------------------------


def send(tensor: TensorLike, dst: int = 0, group: str | None = None, tag: int = 0) -> None:
    """Send the tensor to rank `dst`. Raise ValueError if that is this rank."""
    _other("send", "destination", dst)
    comm_func.send(tensor, dst, _group(group), tag)


def isend(tensor: TensorLike, dst: int = 0, group: str | None = None, tag: int = 0) -> Any:
    """Call `send`, and return its handle."""
    send(tensor, dst, group, tag)
    return handle_of(True)


@in_place("mint.distributed.recv", "comm_func.recv()")
def recv(tensor: TensorLike, src: int = 0, group: str | None = None, tag: int = 0) -> int:
    """Write the tensor that rank `src` sends to `tensor`, and return 0."""
    put("recv", "tensor", tensor, comm_func.recv(tensor, src, _group(group), tag).asnumpy())
    return 0


@in_place("mint.distributed.irecv", "comm_func.irecv()")
def irecv(tensor: TensorLike, src: int = 0, group: str | None = None, tag: int = 0) -> Any:
    """Call `recv`, and return its handle."""
    put("irecv", "tensor", tensor, comm_func.recv(tensor, src, _group(group), tag).asnumpy())
    return handle_of(True)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Wait for all ranks of the group."""
    comm_func.barrier(_group(group))
    return handle_of(async_op)


def _group(group: Any) -> str:
    if group is not None and not isinstance(group, str):
        raise ApiTypeError(f"the name of a group must be a string, not {group!r}")
    return GlobalComm.WORLD_COMM_GROUP if group is None else group


def _row(tensor: Any) -> Tensor:
    """Return the tensor with a first dimension of size one."""
    return Tensor(tensor.asnumpy()[None])


def _combined(operator: Any, tensor: Any, op: str, group: str) -> np.ndarray:
    found = operator("sum" if op == "avg" else op, group)(tensor).asnumpy()
    return found if op != "avg" else (found / groups.get_group_size(group)).astype(found.dtype)


def _other(function: str, what: str, rank: Any) -> None:
    if rank == groups.get_rank():
        raise ApiValueError(f"{function}: the {what} is rank {rank}, which is this rank itself")
