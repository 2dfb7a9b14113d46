"""Operations by which devices meet, in the program of one of them: the module says which device that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, INT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.communication.group import create_group
from mspc.ops.math.xla_functions import single_operation
from mspc.readers.stablehlo.emitter import HloEmitter, Known, attribute, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, flag
from mspc.readers.stablehlo.kinds.reductions import region_program
from mspc.readers.stablehlo.module import Dense, HloModule, HloOperation
from mspc.sharding.groups import group_name, string_hash

_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "min", "or": "max"}
"""Reductions of mspc by the operation of a region; `and` and `or` are of Bool."""
_ROW = re.compile(r"\[([\d,\s-]*)\]")


def device_of(e: HloEmitter, operation: HloOperation) -> HloModule:
    """Return the module of a device's program. Raise MspcError if the program is that of all devices."""
    module = e.program.module
    if module.rank < 0:
        raise MspcError(
            f"{operation.name} is an operation of one device, and {module.file} is read as the step of all",
            notes=["mspc verify --scale step.mlir --against AFTER compares a partitioned module with its step"],
        )
    return module


def rows_in(value: Any) -> list[list[int]]:
    """Return lists of devices. Raise MspcError for another attribute."""
    if isinstance(value, Dense):
        rows = [[int(n) for n in re.findall(r"-?\d+", row)] for row in _ROW.findall(value.text)]
        return rows or [[int(n)] for n in re.findall(r"-?\d+", value.text)]
    if isinstance(value, list) and all(isinstance(row, list) for row in value):
        return value
    raise MspcError(f"{value!r:.60} lists no groups of devices")


def group_of(e: HloEmitter, operation: HloOperation) -> tuple[int, ...]:
    """Return the devices that meet this one, in their order. Groups are of partitions if the operation has a channel,
    else of replicas, of which each partition is one alone. Raise MspcError if this device is in no group."""
    module = device_of(e, operation)
    rows = rows_in(attribute(operation, "replica_groups", default=[]))
    groups = [[rank for rank in row if rank >= 0] for row in rows]  # short rows end with -1
    replicas = module.attributes.get("mhlo.num_replicas", 1)
    is_partitioned = module.devices > replicas
    has_channel = "channel_handle" in operation.attributes or "channel_id" in operation.attributes
    if is_partitioned and replicas > 1:
        raise MspcError(f"{module.file} has replicas and partitions, and mspc reads modules with one of them")
    if is_partitioned and not has_channel and not flag(operation, "use_global_device_ids"):
        return (module.rank,)
    if not any(groups):
        return tuple(range(module.devices))
    found = next((row for row in groups if module.rank in row), None)
    if found is None or len(set(found)) != len(found) or max(found) >= module.devices:
        raise MspcError(f"device {module.rank} of {module.devices} is in no group of {operation.name}")
    return tuple(found)


def named(group: Sequence[int]) -> str:
    """Return the name of the group of some devices in their order, which is made for them."""
    name = group_name(tuple(group))
    if list(group) != sorted(group):
        name = f"{name}-{string_hash('-'.join(map(str, group)))}"
    create_group(name, list(group))
    return name


def reduction_of(e: HloEmitter, operation: HloOperation) -> str:
    """Return how a region combines two numbers. Raise MspcError for another region."""
    name = single_operation(region_program(e, operation))
    if name not in _REDUCTIONS:
        known = ", ".join(_REDUCTIONS)
        raise MspcError(f"{operation.name} combines by {name or 'several operations'}; known are {known}")
    return name


def combined(e: HloEmitter, x: Any, name: str, operator: Callable[..., Any], **fields: Any) -> Any:
    """Return a reduction over devices; a Bool is a number for it. fields: those of the operator."""
    dtype = e.type_of(x).dtype
    if dtype != BOOL:
        if name in ("and", "or"):
            raise MspcError(f"devices combine {dtype} by {name}, which mspc reads for Bool alone")
        return e.call(operator(_REDUCTIONS[name], **fields), e.whole(x))
    kind = {"add": "max", "multiply": "min"}.get(name, _REDUCTIONS[name])
    found = e.call(operator(kind, **fields), e.call(ops.Cast(), e.whole(x), INT32))
    return e.call(ops.NotEqual(), found, e.constant(np.zeros((), np.int32)))


def all_reduced(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return tensors combined over a group."""
    group, name = group_of(e, operation), reduction_of(e, operation)
    if len(group) == 1:
        return list(given)
    return [combined(e, x, name, ops.AllReduce, group=named(group)) for x in given]


def all_gathered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the tensors of a group one after the other along a dimension."""
    group, dim = group_of(e, operation), attribute(operation, "all_gather_dim", default=0)
    if len(group) == 1:
        return list(given)
    return [e.call(ops.AllGather(axis=dim, group=named(group)), e.whole(x)) for x in given]


def reduce_scattered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return this device's slice of tensors combined over a group."""
    group, name = group_of(e, operation), reduction_of(e, operation)
    dim = attribute(operation, "scatter_dimension", default=0)
    if len(group) == 1:
        return list(given)
    return [combined(e, x, name, ops.ReduceScatter, axis=dim, group=named(group)) for x in given]


def exchanged(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the slices for this device of the tensors of a group; several operands are the slices themselves."""
    group = group_of(e, operation)
    dims = [attribute(operation, name, default=-1) for name in ("split_dimension", "concat_dimension")]
    if len(group) == 1:
        return list(given)
    if dims[0] >= 0:
        return [e.call(ops.AlltoAll(len(group), *dims, group=named(group)), e.whole(x)) for x in given]
    shape = e.shape_of(given[0])
    if len(given) != len(group):
        raise MspcError(f"{operation.name} has {len(given)} slices for {len(group)} devices")
    parts = tuple(e.whole(e.reshaped(x, (1, *shape))) for x in given)
    found = e.call(ops.AlltoAll(len(group), 0, 0, group=named(group)), e.call(ops.Concat(0), parts))
    return [_row(e, found, k) for k in range(len(group))]


def _row(e: HloEmitter, x: Any, at: int) -> Any:
    """Return a row of a tensor."""
    shape = e.shape_of(x)[1:]
    return e.reshaped(e.part(x, (at, *[0] * len(shape)), (at + 1, *shape)), shape)


def permuted(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the tensor of the device that sends to this one, zeros if none does."""
    module = device_of(e, operation)
    pairs = [(row[0], row[1]) for row in rows_in(attribute(operation, "source_target_pairs", default=[]))]
    targets = [target for _, target in pairs]
    if len(set(targets)) < len(targets):
        raise MspcError(f"{operation.name}: two devices send to one")
    return [_from(e, x, {target: source for source, target in pairs}, module) for x in given]


def _from(e: HloEmitter, x: Any, source_of: dict[int, int], module: HloModule) -> Any:
    """Return a tensor of another device. All devices take part, so that their programs are alike."""
    shape, group = e.shape_of(x), tuple(range(module.devices))
    wide = e.call(ops.AllGather(axis=0, group=named(group)), e.whole(e.reshaped(x, (1, *shape))))
    found = _row(e, wide, source_of.get(module.rank, module.rank))
    if len(source_of) == module.devices:
        return found
    dtype = e.type_of(x).dtype
    receives = e.constant(np.array(module.rank in source_of))
    return e.call(ops.Select(), receives, found, e.constant(np.zeros(shape, dtype.numpy)))


def broadcast_over(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the tensor of the first device of a group; zeros on a device in none."""
    module = device_of(e, operation)
    rows = rows_in(attribute(operation, "replica_groups", default=[]))
    return [_from(e, x, {rank: row[0] for row in rows for rank in row if row}, module) for x in given]


def partition_number(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the number of this device: its partition, or its replica of a module with replicas."""
    module = device_of(e, operation)
    is_replica = module.attributes.get("mhlo.num_replicas", 1) > 1
    own = module.rank if operation.name.endswith("replica_id") == is_replica else 0
    return [Known(np.array(own, tensor(operation.types[0]).dtype.numpy), ())]


EXCHANGE_KINDS: Kinds = {
    "all_reduce": all_reduced, "all_gather": all_gathered, "reduce_scatter": reduce_scattered,
    "all_to_all": exchanged, "collective_permute": permuted, "collective_broadcast": broadcast_over,
    "partition_id": partition_number, "replica_id": partition_number,
}  # fmt: skip
