"""Steps that convert a tensor from one layout to another, as in MindSpore's `mindspore.parallel._tensor`.

A layout is (device matrix, tensor map, global shape); the map counts mesh axes from the last one, -1: not sharded.
Checkpoints are redistributed by `mspc.checkpoint`, which reads only the slices of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.mindspore_api import state
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe
from mspc.sharding.stepwise import PlacedTensor, Step, steps_between

Numbers = Sequence[Any]
Stack = list[tuple[int, int, Step]]


def _transform_tensor_by_layout(
    from_layout: Numbers, to_layout: Numbers, device_list: Sequence[int], rank_id: int, enable_redist_opt: bool = False
) -> list[Step]:
    """Return the steps that convert one rank's slice to the other layout: ("Reshape", shape), ("AllConcat", ranks and
    dimension) and ("StridedSlice", begin, end and strides). enable_redist_opt is accepted and changes nothing. Raise
    ValueError if the layouts do not fit each other or the ranks."""
    try:
        source, target = (PlacedTensor.of(*layout[:3]) for layout in (from_layout, to_layout))
        return steps_between(source, target, list(device_list), rank_id)
    except MspcError as error:
        raise ApiValueError(f"_transform_tensor_by_layout: {error.message}") from None


def _get_needed_rank_transform_operator_map_by_layouts(
    from_tensor_layout: Numbers, to_tensor_layout: Numbers, device_list: Sequence[int], self_rank: int,
    enable_redist_opt: bool = False,
) -> dict[int, list[Step]]:  # fmt: skip
    """Return the steps of `self_rank` and of all ranks from which it gathers, by rank."""
    found: dict[int, list[Step]] = {}
    waiting = [self_rank]
    while waiting:
        rank = waiting.pop(0)
        if rank not in found:
            found[rank] = _transform_tensor_by_layout(from_tensor_layout, to_tensor_layout, device_list, rank)
            waiting += [r for name, numbers in found[rank] if name == "AllConcat" for r in numbers[:-1]]
    return found


def _get_needed_rank_list_by_layouts(
    from_tensor_layout: Numbers, to_tensor_layout: Numbers, device_list: Sequence[int], self_rank: int
) -> list[int]:
    return sorted(
        _get_needed_rank_transform_operator_map_by_layouts(from_tensor_layout, to_tensor_layout, device_list, self_rank)
    )


def _generate_transform_operator_stack(transform_operators_map: Mapping[int, list[Step]], self_rank: int) -> Stack:
    """Return (rank, index of the step, step), in reverse order of execution; only steps that `self_rank` needs are
    included."""
    stack: Stack = []
    ranks = [self_rank]
    for place in reversed(range(len(transform_operators_map[self_rank]))):
        stack += [(rank, place, transform_operators_map[rank][place]) for rank in ranks]
        name, _ = stack[-1][2]
        if name == "AllConcat":
            ranks = list(dict.fromkeys(r for rank in ranks for r in transform_operators_map[rank][place][1][:-1]))
    return stack


def _apply_tensor_transform_operators(
    transform_operator_stack: Stack, tensor_dict: MutableMapping[int, Any], device_num: int
) -> None:
    """Apply the steps to arrays, by rank; `tensor_dict` then has the result of the rank of the stack."""
    now: dict[int, Any] = {}
    rank = -1
    while transform_operator_stack:
        place = transform_operator_stack[-1][1]
        before = dict(now)
        while transform_operator_stack and transform_operator_stack[-1][1] == place:
            rank, _, (name, numbers) = transform_operator_stack.pop()
            slices = numbers[:-1] if name == "AllConcat" else [rank]
            arrays = [before[r] if r in before else tensor_dict[r % device_num] for r in slices]
            now[rank] = _applied(name, numbers, arrays)
    if rank >= 0:
        tensor_dict[rank % device_num] = now[rank]


def _applied(name: str, numbers: list[int], arrays: list[Any]) -> Any:
    if name == "Reshape":
        return arrays[0].reshape(numbers)
    if name == "AllConcat":
        return np.concatenate(arrays, axis=numbers[-1])
    if name != "StridedSlice":
        raise ApiValueError(f"{name!r} is no step of a change of layout")
    third = len(numbers) // 3
    parts = zip(numbers[:third], numbers[third : 2 * third], numbers[2 * third :], strict=True)
    return arrays[0][tuple(slice(*part) for part in parts)]


def _axes(tensor_map: Numbers) -> list[list[int]]:
    """Return by dimension the mesh axes that shard it, counted from the last one, the most significant first."""
    entries = [list(entry) if isinstance(entry, list | tuple) else [entry] for entry in tensor_map]
    return [[axis for axis in entry if axis != -1] for entry in entries]


def _get_tensor_strategy(dev_mat: Sequence[int], tensor_map: Numbers) -> list[int]:
    """Return the number of slices of every dimension."""
    return [math.prod(dev_mat[-1 - axis] for axis in entry) for entry in _axes(tensor_map)]


def _construct_tensor_layout_for_opt_shard(
    dev_matrix: Sequence[int], tensor_map: Numbers, opt_shard_step: int, opt_shard_size: int,
    origin_full_tensor_shape: Sequence[int],
) -> tuple[Any, Any, list[int]]:  # fmt: skip
    """Return the layout of a parameter that optimizer parallel shards further. Its first dimension is split into
    several: the first is sharded as before, the others along axes of replicas, the last ones first, up to
    `opt_shard_size` shards, -1: all. Raise ValueError if there are too few replicas."""
    shape = list(origin_full_tensor_shape)
    if not opt_shard_size:
        return dev_matrix, tensor_map, shape
    mesh, axes = list(dev_matrix), _axes(tensor_map)
    used = {axis for entry in axes for axis in entry}
    free = [axis for axis in range(len(mesh)) if axis not in used and mesh[-1 - axis] > 1]
    left = math.prod(mesh[-1 - axis] for axis in free) if opt_shard_size == -1 else opt_shard_size
    taken: list[int] = []
    for axis in free:
        size = mesh[-1 - axis]
        if left == 1:
            break
        if left % size and size % left:
            break
        taken.insert(0, axis)
        if size > left:  # only its faster part
            mesh[len(mesh) - 1 - axis : len(mesh) - axis] = [size // left, left]
            axes = [[a + (a > axis) for a in entry] for entry in axes]
        left = max(1, left // size)
    if left != 1:
        holders = math.prod(dev_matrix[-1 - axis] for axis in free)
        verb = "rank holds" if holders == 1 else "ranks hold"
        raise ApiValueError(
            f"_construct_tensor_layout_for_opt_shard: the parameter cannot be sharded {opt_shard_size} ways further: "
            f"{holders} {verb} each slice of {tuple(tensor_map)} on {tuple(dev_matrix)}"
        )
    shards = _get_tensor_strategy(mesh, axes)[0]
    lead = [shards, *[mesh[-1 - axis] for axis in taken[:-1]]]
    entries = [entry[0] if len(entry) == 1 else entry or -1 for entry in axes]
    return mesh, [entries[0], *taken, *entries[1:]], [*lead, shape[0] // math.prod(lead), *shape[1:]]


_construct_tensor_layout_for_opt_shard_by_layout = _construct_tensor_layout_for_opt_shard


def _construct_from_to_tensor_layout(
    from_full_tensor_shape: Sequence[int], from_dev_matrix: Sequence[int], from_tensor_map: Numbers,
    to_full_tensor_shape: Sequence[int], to_dev_matrix: Sequence[int], to_tensor_map: Numbers, param_name: str = "",
) -> tuple[Any, Any]:  # fmt: skip
    """Return both layouts on the same number of ranks: those of the smaller mesh are repeated. Raise ValueError if
    neither number of ranks is a multiple of the other."""
    meshes = [list(from_dev_matrix), list(to_dev_matrix)]
    sizes = [math.prod(mesh) for mesh in meshes]
    if max(sizes) % min(sizes):
        name = f" of {param_name}" if param_name else ""
        raise ApiValueError(f"a layout{name} on {sizes[0]} ranks is none on {sizes[1]}: neither is a multiple")
    few = 0 if sizes[0] < sizes[1] else 1
    if sizes[0] != sizes[1]:
        meshes[few].insert(0, max(sizes) // min(sizes))
    return (
        (meshes[0], list(from_tensor_map), list(from_full_tensor_shape)),
        (meshes[1], list(to_tensor_map), list(to_full_tensor_shape)),
    )


def _load_tensor(
    tensor: Any, dev_mat: Sequence[int], tensor_map: Numbers, full_shape: Any = None, rank_id: int = -1
) -> Tensor:
    """Return one rank's slice of a tensor, for -1 this rank's; full_shape is the tensor's own."""
    if not isinstance(tensor, Tensor):
        raise ApiTypeError(f"_load_tensor: tensor must be a Tensor, not {describe(tensor)}")
    rank = state.current().rank if rank_id == -1 else rank_id
    return Tensor(tensor.asnumpy()[_layout(dev_mat, tensor_map).slices_for(rank, tensor.shape)], tensor.dtype)


def _reshape_param_data(param_data: Any, dev_mat: Sequence[int], tensor_map: Numbers) -> Tensor:
    layout = _layout(dev_mat, tensor_map)
    slices = np.split(param_data.asnumpy(), math.prod(dev_mat))
    shape = tuple(n * shards for n, shards in zip(slices[0].shape, layout.strategy, strict=True))
    merged = np.empty(shape, slices[0].dtype)
    for rank, part in enumerate(slices):
        merged[layout.slices_for(rank, shape)] = part
    return Tensor(merged, param_data.dtype)


def _layout(dev_mat: Sequence[int], tensor_map: Numbers) -> Layout:
    return Layout.of(dev_mat, [[len(dev_mat) - 1 - axis for axis in entry] for entry in _axes(tensor_map)])
