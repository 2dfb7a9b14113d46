"""Kinds that communicate: functional collectives, and those of c10d and FSDP."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.communication.group import get_group_size, get_world_rank_from_group_rank
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.shapes import nothing, reshaped

NAMES = {"product": "prod"}
"""Reductions of PyTorch that mspc has under another name."""


def reduced(x: Any, reduce_op: Any, group: Any, operator: Any = ops.AllReduce) -> Any:
    """Return the reduction over the ranks of a group: a sum, mean, maximum, minimum or product; `sum*F` is a sum of
    operands times F."""
    if reduce_op[:4] == "sum*":
        return operator("sum", group)(x * float(reduce_op[4:]))
    if reduce_op == "avg":
        return operator("sum", group)(x) / get_group_size(group)
    return operator(NAMES.get(reduce_op, reduce_op), group)(x)


def reduce_scattered(x: Any, reduce_op: Any, group: Any) -> Any:
    """Return a rank's rows of a reduction, see `reduced`."""
    return reduced(x, reduce_op, group, ops.ReduceScatter)


def copied_in(inputs: Any, output: Any) -> Any:
    """Return (the flat inputs in a row, the output, which the all-gather that follows overwrites)."""
    return ops.concat([ops.Reshape()(each, (-1,)) for each in inputs], 0), output


def split_into(whole: Any, sizes: Any, dim: Any, out: Any) -> Any:
    """Return the parts of a tensor in the shapes of the tensors that they are written into."""
    parts = ops.split(whole, list(sizes), dim)
    return (tuple([ops.Reshape()(part, into.shape) for part, into in zip(parts, out, strict=True)]),)


def chunks_in_rows(tensors: Any, dim: Any, num_chunks: Any) -> Any:
    """Return each tensor's chunks, padded with zeros and flat, beside those of the others. With dim 0 this is the
    order in which a reduce-scatter sends them."""
    rows, dim = [], dim % len(tensors[0].shape)
    for each in tensors:
        size = each.shape[dim]
        step = -(-size // num_chunks)
        shape = list(each.shape)
        shape[dim] = step * num_chunks - size
        whole = ops.Concat(dim)((each, ops.Fill()(each.dtype, tuple(shape), 0))) if shape[dim] else each
        rows.append(reshaped(whole, (*each.shape[:dim], num_chunks, -1)))
    return ops.Concat(dim + 1)(rows)


def all_to_all(x: Any, received: Any, sent: Any, group: Any) -> Any:
    """Return the rows that all ranks of a group send to each other: so many from and to each of them, equal numbers if
    the lists are empty."""
    ranks = get_group_size(group)
    if len(set(sent)) <= 1 and len(set(received)) <= 1:
        return ops.AlltoAll(ranks, 0, 0, group)(x)
    shape = (sum(received), *x.shape[1:])
    count = x.size // x.shape[0]
    return ops.Reshape()(ops.AlltoAllV(group, count)(ops.Reshape()(x, (-1,)), tuple(sent), tuple(received)), shape)


def all_of(one: Any) -> Any:
    """Return a function of a list of tensors, `one` for each."""
    return lambda tensors, *others: [one(each, *others) for each in tensors]


def all_into(one: Any) -> Any:
    """Return a function of a list of tensors that returns the new tensors twice: as results, and as written values."""

    def of(tensors: Any, *others: Any) -> Any:
        new = [one(each, *others) for each in tensors]
        return (*new, new)

    return of


def rooted(x: Any, root: Any, group: Any) -> Any:
    """Return the tensor of a rank of the group."""
    return ops.Broadcast(root, group)((x,))[0]


def sent(tensors: Any, group: Any, place: Any, tag: Any) -> Any:
    """Send a tensor to a rank by its place in the group."""
    ops.Send(tag, get_world_rank_from_group_rank(group, place), group)(tensors[0])
    return None


def received(tensors: Any, group: Any, place: Any, tag: Any) -> Any:
    """Return the tensor that a rank sends, by its place in the group."""
    source, (x,) = get_world_rank_from_group_rank(group, place), tensors
    return ([ops.Receive(tag, source, x.shape, x.dtype, group)()],)


def gathered(x: Any, group: Any) -> Any:
    return ops.AllGather(group)(x)


COLLECTIVES = (
    row("_c10d_functional.all_reduce.default", "input, reduce_op, group_name", reduced),
    row("_c10d_functional.all_reduce_coalesced.default", "inputs, reduce_op, group_name", all_of(reduced)),
    *(each for name, others, function in (
        ("all_gather_into_tensor", "-group_size, group_name", gathered),
        ("reduce_scatter_tensor", "reduce_op, -group_size, group_name", reduce_scattered),
    ) for each in (
        row(f"_c10d_functional.{name}.default", f"input, {others}", function),
        row(f"_c10d_functional.{name}_out.default", f"input, {others}, -out", function, writes="out"),
        row(f"_c10d_functional.{name}_coalesced.default", f"inputs, {others}", all_of(function)))),
    row("_c10d_functional.all_reduce_.default", "input, reduce_op, group_name", reduced, writes="input"),
    row("_c10d_functional.all_reduce_coalesced_.default", "inputs, reduce_op, group_name", all_into(reduced),
        writes="inputs"),
    row("_c10d_functional.all_to_all_single.default", "input, output_split_sizes, input_split_sizes, group_name",
        all_to_all),
    row("_c10d_functional.broadcast.default", "input, src, group_name", rooted),
    row("_c10d_functional.broadcast_.default", "input, src, group_name", rooted, writes="input"),
    row("_c10d_functional.wait_tensor.default", "tensor", lambda tensor: tensor),
    row("_dtensor.shard_dim_alltoall.default", "input, gather_dim, shard_dim, group_name",
        lambda x, gather_dim, shard_dim, group: ops.AlltoAll(get_group_size(group), shard_dim, gather_dim, group)(x)),
    row("c10d.allreduce_.default",
        "tensors, process_group, reduce_op, -sparse_indices, -async_op=True, -timeout=-1",
        all_into(lambda x, group, reduce_op: reduced(x, reduce_op, group)), writes="tensors"),
    row("c10d.allreduce_coalesced_.default", "tensors, process_group, reduce_op, -async_op=True, -timeout=-1",
        lambda tensors, group, reduce_op: ([reduced(each, reduce_op, group) for each in tensors],), writes="tensors"),
    row("c10d.broadcast_.default",
        "tensors, process_group, root_rank, -root_tensor, -async_op=True, -timeout=-1",
        all_into(lambda x, group, root: rooted(x, root, group)), writes="tensors"),
    row("c10d.alltoall_base_.default", "-output, input, process_group, output_split_sizes, input_split_sizes, "
        "-async_op=True, -timeout=-1",
        lambda input, group, received, sent: all_to_all(input, received, sent, group), writes="output"),
    row("c10d.allgather_into_tensor_coalesced_.default", "-outputs, inputs, process_group, -async_op=True",
        lambda inputs, group: ([gathered(each, group) for each in inputs],), writes="outputs"),
    row("c10d.reduce_scatter_tensor_coalesced_.default",
        "-outputs, inputs, process_group, reduce_op, -async_op=True, -timeout=-1",
        lambda inputs, group, reduce_op: ([reduce_scattered(each, reduce_op, group) for each in inputs],),
        writes="outputs"),
    row("cplib.flex_cp_allgather.default", "k, v, seq_dim, pg_name",
        lambda k, v, dim, group: tuple(ops.AllGather(group, dim)(each) for each in (k, v))),
    row("cplib.flex_cp_allgather_backward.default", "grad_full_k, grad_full_v, seq_dim, pg_name",
        lambda k, v, dim, group: tuple(ops.ReduceScatter("sum", group, dim)(each) for each in (k, v))),
    row("c10d.barrier.default", "-tensor, -process_group, -device_ids, -async_op=True, -timeout=-1", nothing),
    row("c10d.send.default", "tensors, process_group, dst, tag", sent),
    row("c10d.recv_.default", "tensors, process_group, src, tag", received, writes="tensors"),
    row("_c10d_functional._wrap_tensor_autograd.default", "input", lambda input: input),
    row("c10d._allgather_base_.default", "output_tensor, input_tensor, process_group, -async_op=True, -timeout=-1",
        lambda output, input, group: gathered(input, group), writes="output_tensor"),
    row("c10d._reduce_scatter_base_.default",
        "output_tensor, input_tensor, process_group, reduce_op, -async_op=True, -timeout=-1",
        lambda output, input, group, reduce_op: reduce_scattered(input, reduce_op, group), writes="output_tensor"),
    row("fsdp.all_gather_copy_in.default",
        "all_gather_inputs, all_gather_output, -inp_split_sizes, -all_gather_input_numel, -rank", copied_in),
    row("fsdp.split_with_sizes_copy.default", "all_gather_output, all_gather_input_split_sizes, dim=0, out",
        split_into, writes="out"),
    row("fsdp.chunk_cat.default", "tensors, dim, num_chunks, out",
        lambda tensors, dim, num_chunks, out: ops.Reshape()(chunks_in_rows(tensors, dim, num_chunks), out.shape),
        writes="out"),
)  # fmt: skip
"""Kinds of c10d and FSDP."""
