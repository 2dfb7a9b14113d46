"""Kinds that communicate: functional collectives, and those of c10d and FSDP."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.communication.group import get_group_size
from mspc.readers.pytorch.kinds.kind import row

NAMES = {"product": "prod"}
"""Reductions of PyTorch that mspc has under another name."""


def reduced(x: Any, reduce_op: Any, group: Any) -> Any:
    """Return the reduction over the ranks of a group: a sum, mean, maximum, minimum or product."""
    if reduce_op == "avg":
        return ops.AllReduce("sum", group)(x) / get_group_size(group)
    return ops.AllReduce(NAMES.get(reduce_op, reduce_op), group)(x)


def reduce_scattered(x: Any, reduce_op: Any, group: Any) -> Any:
    """Return a rank's rows of the reduction over the ranks of a group; `sum*F` is a sum of operands times F."""
    if reduce_op == "avg":
        return ops.ReduceScatter("sum", group)(x) / get_group_size(group)
    if reduce_op[:4] == "sum*":
        return ops.ReduceScatter("sum", group)(x * float(reduce_op[4:]))
    return ops.ReduceScatter(NAMES.get(reduce_op, reduce_op), group)(x)


def copied_in(inputs: Any, output: Any, sizes: Any, count: Any, rank: Any) -> Any:
    """Return (the flat inputs in a row, the output with them at the rank's position)."""
    own = ops.concat([ops.Reshape()(each, (-1,)) for each in inputs], 0)
    parts = []
    if rank > 0:
        parts.append(output[: rank * count])
    parts.append(own)
    if (rank + 1) * count < output.shape[0]:
        parts.append(output[(rank + 1) * count :])
    return own, ops.concat(parts, 0)


def gathered_into(output: Any, input: Any, group: Any) -> Any:
    """Return the output of an all-gather."""
    return ops.AllGather(group)(input)


def scattered_into(output: Any, input: Any, group: Any, reduce_op: Any) -> Any:
    """Return the output of a reduce-scatter."""
    return reduce_scattered(input, reduce_op, group)


def split_into(whole: Any, sizes: Any, dim: Any, out: Any) -> Any:
    """Return the parts of a tensor in the shapes of the tensors that they are written into."""
    parts = ops.split(whole, list(sizes), dim)
    return (tuple([ops.Reshape()(part, into.shape) for part, into in zip(parts, out, strict=True)]),)


def chunks_joined(tensors: Any, dim: Any, num_chunks: Any, out: Any) -> Any:
    """Return each tensor's chunks, padded and flat, row by row: the order in which a reduce-scatter sends them."""
    rows = []
    for each in tensors:
        size = each.shape[0]
        chunk = (size + num_chunks - 1) // num_chunks
        flat = each
        if chunk * num_chunks > size:
            flat = ops.concat([each, ops.zeros((chunk * num_chunks - size, *each.shape[1:]), each.dtype)], 0)
        rows.append(ops.Reshape()(flat, (num_chunks, -1)))
    return ops.Reshape()(ops.concat(rows, 1), out.shape)


COLLECTIVES = (
    row("_c10d_functional.all_reduce.default", "input, reduce_op, group_name", reduced),
    row("_c10d_functional.all_gather_into_tensor.default", "input, -group_size, group_name",
        lambda input, group: ops.AllGather(group)(input)),
    row("_c10d_functional.reduce_scatter_tensor.default", "input, reduce_op, -group_size, group_name",
        reduce_scattered),
    row("_c10d_functional.wait_tensor.default", "tensor", lambda tensor: tensor),
    row("_c10d_functional._wrap_tensor_autograd.default", "input", lambda input: input),
    row("c10d._allgather_base_.default", "output_tensor, input_tensor, process_group, -async_op=True, -timeout=-1",
        gathered_into, writes="output_tensor"),
    row("c10d._reduce_scatter_base_.default",
        "output_tensor, input_tensor, process_group, reduce_op, -async_op=True, -timeout=-1", scattered_into,
        writes="output_tensor"),
    row("fsdp.all_gather_copy_in.default",
        "all_gather_inputs, all_gather_output, inp_split_sizes, all_gather_input_numel, rank", copied_in),
    row("fsdp.split_with_sizes_copy.default", "all_gather_output, all_gather_input_split_sizes, dim=0, out=None",
        split_into, writes="out"),
    row("fsdp.chunk_cat.default", "tensors, dim, num_chunks, out", chunks_joined, writes="out"),
)  # fmt: skip
"""Kinds of c10d and FSDP."""
