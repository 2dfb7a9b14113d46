"""Gathers and scatters: lookups in tables and their gradients as mspc's operators, others as library functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import INT32, INT64
from mspc.mindspore_api import ops
from mspc.ops.math.xla_functions import single_operation
from mspc.readers.stablehlo.emitter import HloEmitter, Known, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, integers, integers_in
from mspc.readers.stablehlo.kinds.programs import program_of
from mspc.readers.stablehlo.kinds.reductions import several
from mspc.readers.stablehlo.kinds.scalar_kinds import bounded, emitted
from mspc.readers.stablehlo.kinds.shapes import known_numbers
from mspc.readers.stablehlo.module import HloOperation, Words

GATHER_DIMENSIONS = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
)  # fmt: skip
SCATTER_DIMENSIONS = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)  # fmt: skip


def index_dimensions(operation: HloOperation, attribute: str, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the dimension numbers of a gather or a scatter."""
    numbers = operation.attributes.get(attribute)
    own = numbers.fields if isinstance(numbers, Words) else operation.attributes
    lists = tuple(integers_in(own.get(name, []), name) for name in names)
    return (*lists, own.get("index_vector_dim", 0))


def _indices(e: HloEmitter, indices: Any, index_dim: int) -> Any:
    """Return indices of one dimension of the operand, without the dimension that holds them."""
    shape = e.shape_of(indices)
    found = e.reshaped(indices, [n for d, n in enumerate(shape) if d != index_dim])
    dtype = e.type_of(found).dtype
    return found if dtype in (INT32, INT64) else e.call(ops.Cast(), e.whole(found), INT64)


def gathered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return windows of a tensor at places."""
    x, indices = given[:2]
    where = index_dimensions(operation, "dimension_numbers", GATHER_DIMENSIONS)
    is_dynamic = len(given) == 3  # `dynamic_gather`
    sizes = known_numbers(e, operation, given[2]) if is_dynamic else integers(operation, "slice_sizes")
    type = tensor(operation.types[0])
    offsets, collapsed, batching, indices_batching, index_map, index_dim = where
    shape = e.shape_of(x)
    is_row = len(index_map) == 1 and (collapsed == index_map or sizes[index_map[0]] == 1)
    is_row = is_row and all(sizes[d] == n for d, n in enumerate(shape) if d not in (*index_map, *batching))
    if is_row and all((*type.shape, *shape)) and not e.type_of(x).dtype.is_complex:
        dim = index_map[0]
        rank = len(e.shape_of(indices)) - (index_dim < len(e.shape_of(indices)))
        labels = [*(k for k in range(dim)), *["index"] * rank, *(k for k in range(dim + 1, len(shape)))]
        window = iter(k for k in range(len(shape)) if k not in (*collapsed, *batching))
        own = [next(window) if d in offsets else "index" for d in range(type.rank)]
        if not batching and [k for k in own if k != dim] == labels:
            places = bounded(e, _indices(e, indices, index_dim), shape[dim] - 1)
            return [e.reshaped(e.call(ops.Gather(), e.whole(x), e.whole(places), dim), type.shape)]
        is_last = (*batching, dim) == tuple(range(len(shape))) and not offsets and indices_batching == batching
        if is_last:
            places = bounded(e, _indices(e, indices, index_dim), shape[dim] - 1)
            count = math.prod(type.shape[len(batching) :])
            flat = e.reshaped(places, (*shape[:dim], count))
            return [e.reshaped(e.call(ops.GatherD(), e.whole(x), dim, e.whole(flat)), type.shape)]
    return [e.host("gather", (where, sizes), x, indices)]


def scattered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return tensors with updates put together with their elements at places."""
    where = index_dimensions(operation, "scatter_dimension_numbers", SCATTER_DIMENSIONS)
    program = program_of(e, operation.regions[0])
    if len(given) == 3 and single_operation(program) == "add":
        found = _added(e, given, where)
        if found is not None:
            return [found]
    return several(e.host("scatter", (where, program), *given), operation)


def _added(e: HloEmitter, given: Sequence[Any], where: tuple[Any, ...]) -> Any:
    """Return sums of rows at places of the first dimension, or of elements in each row; None for other scatters."""
    x, indices, updates = given
    windows, inserted, batching, indices_batching, index_map, index_dim = where
    type = e.type_of(x)
    if len(index_map) != 1 or inserted != index_map or not type.dtype.is_float or not all(
        (*type.shape, *e.shape_of(updates))
    ):
        return None
    dim, rank = index_map[0], len(e.shape_of(indices)) - (index_dim < len(e.shape_of(indices)))
    sizes = e.shape_of(updates)
    if not batching and dim == 0 and tuple(windows) == tuple(range(rank, len(sizes))) and (
        sizes[rank:] == type.shape[1:]
    ):
        place = _indices(e, indices, index_dim)
        flat = e.reshaped(place, (math.prod(sizes[:rank]),))
        rows = e.reshaped(updates, (math.prod(sizes[:rank]), *type.shape[1:]))
        found = e.call(ops.UnsortedSegmentSum(), e.whole(rows), e.whole(flat), type.shape[0])
        return _sum(e, x, found, type.shape)
    if (*batching, dim) == tuple(range(type.rank)) and indices_batching == batching and not windows and (
        math.prod(sizes[len(batching) :]) == 1
    ):
        place = e.reshaped(_indices(e, indices, index_dim), (*type.shape[:dim], 1))
        row = Known(np.arange(type.shape[dim]).astype(e.type_of(place).dtype.numpy).reshape(
            [1] * dim + [-1]), type.shape)  # fmt: skip
        meets = e.call(ops.Equal(), e.loose(row), e.loose(place))
        update = e.reshaped(updates, (*type.shape[:dim], 1))
        zero = e.constant(np.zeros((), type.dtype.numpy))
        return _sum(e, x, e.call(ops.Select(), meets, e.loose(update), zero), type.shape)
    return None


def _sum(e: HloEmitter, x: Any, found: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum with the operand of a scatter, which is often zero."""
    if isinstance(x, Known) and not x.base.any():
        return e.spread(found, shape)
    return emitted("add", e, (x, found), shape)


INDEXING_KINDS: Kinds = {"gather": gathered, "dynamic_gather": gathered, "scatter": scattered}
