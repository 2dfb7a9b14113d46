"""Reductions, windows and sorts: mspc's operators for usual regions, else programs of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import ops
from mspc.ops.math.xla_elementwise import Program
from mspc.ops.math.xla_functions import single_operation
from mspc.readers.stablehlo.emitter import HloEmitter, Known, attribute, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, integers, rows
from mspc.readers.stablehlo.kinds.programs import program_of
from mspc.readers.stablehlo.kinds.scalar_kinds import emitted
from mspc.readers.stablehlo.module import HloOperation

NATIVE: Mapping[str, tuple[str, Callable[[], Any], Any]] = {
    "add": ("f", ops.ReduceSum, 0), "multiply": ("f", ops.ReduceProd, 1), "maximum": ("iuf", ops.ReduceMax, None),
    "minimum": ("iuf", ops.ReduceMin, None), "and": ("b", ops.ReduceAll, True), "or": ("b", ops.ReduceAny, False),
}  # fmt: skip
"""(kinds of element types, operator, the number that changes nothing) of the operation of a region."""


def split(operation: HloOperation, given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the operands and the initial values of a reduction, which follow each other in pretty form."""
    inits = {each for each in operation.entries if isinstance(each, int)}
    if not inits:
        half = len(given) // 2
        return list(given[:half]), list(given[half:])
    return [v for i, v in enumerate(given) if i not in inits], [v for i, v in enumerate(given) if i in inits]


def region_program(e: HloEmitter, operation: HloOperation) -> Program:
    """Return the program of the region of a reduction, which may be one word: `applies stablehlo.add`."""
    if operation.regions:
        return program_of(e, operation.regions[0])
    name = next((each.removeprefix("stablehlo.") for each in operation.words if each.startswith("stablehlo.")), "")
    if not name:
        raise MspcError(f"{operation.name} has no region")
    return (((name, (0, 1), ()),), (2,))


def reduced(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return tensors reduced along some dimensions."""
    operands, inits = split(operation, given)
    dims = integers(operation, "dimensions")
    program = region_program(e, operation)
    type, shape = e.type_of(operands[0]), tensor(operation.types[0]).shape
    if all(type.shape):
        name = single_operation(program)
        kinds, native, nothing = NATIVE.get(name, ("", None, None))
        if native is not None and type.dtype.kind in kinds and len(operands) == 1:
            found = e.call(native(), e.whole(operands[0]), dims) if dims else operands[0]
            return [found if _changes_nothing(inits[0], name, nothing) else emitted(name, e, (found, inits[0]), shape)]
    return several(e.host("reduce", (tuple(dims), program), *operands, *inits), operation)


def several(found: Any, operation: HloOperation) -> Sequence[Any]:
    """Return the results of an operation with one or more."""
    return [found] if len(operation.types) == 1 else list(found)


def _changes_nothing(init: Any, name: str, nothing: Any) -> bool:
    """Return whether a reduction that begins with this number has the same result without it."""
    if not isinstance(init, Known):
        return False
    value = init.base.reshape(())
    if nothing is not None:
        return bool(value == nothing)
    if value.dtype.kind in "iu":
        ends = np.iinfo(value.dtype)
        return bool(value == (ends.min if name == "maximum" else ends.max))
    return bool(value == (-np.inf if name == "maximum" else np.inf))


def window_of(operation: HloOperation, rank: int) -> tuple[Any, ...]:
    """Return (sizes, strides, dilations of the operand and of windows, padding) of windows."""
    ones = (1,) * rank
    return (
        integers(operation, "window_dimensions", default=ones), integers(operation, "window_strides", default=ones),
        integers(operation, "base_dilations", default=ones), integers(operation, "window_dilations", default=ones),
        rows(attribute(operation, "padding"), rank),
    )  # fmt: skip


def windows_reduced(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return every window reduced."""
    operands, inits = split(operation, given)
    type = e.type_of(operands[0])
    window = window_of(operation, type.rank)
    program = region_program(e, operation)
    name = single_operation(program)
    if len(operands) == 1 and type.dtype.is_float and name == "add":
        found = _running_sum(e, operands[0], inits[0], window)
        if found is not None:
            return [found]
    return several(e.host("reduce_window", (window, program), *operands, *inits), operation)


def _running_sum(e: HloEmitter, x: Any, init: Any, window: tuple[Any, ...]) -> Any:
    """Return the sums of all elements up to each one, if that is the window; None for other windows."""
    sizes, strides, base, apart, pads = window
    shape = e.shape_of(x)
    wide = [d for d, n in enumerate(sizes) if n > 1]
    if len(wide) != 1 or {*strides, *base, *apart} != {1} or not _changes_nothing(init, "add", 0):
        return None
    n = shape[wide[0]]
    if sizes[wide[0]] != n or any(tuple(pads[d]) != (0, 0) for d in range(len(sizes)) if d not in wide):
        return None
    if tuple(pads[wide[0]]) not in ((n - 1, 0), (0, n - 1)):
        return None
    return e.call(ops.CumSum(False, tuple(pads[wide[0]]) == (0, n - 1)), e.whole(x), wide[0])


def selected_and_scattered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the sums of a source at the places that windows select."""
    window = window_of(operation, len(e.shape_of(given[0])))
    programs = [program_of(e, region) for region in operation.regions]
    if len(programs) != 2:
        raise MspcError("select_and_scatter takes two regions")
    return [e.host("select_and_scatter", (window, *programs), *given)]


def ordered(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return tensors sorted together along a dimension."""
    dim = attribute(operation, "dimension", "dim", default=-1)
    dim = dim % max(1, len(e.shape_of(given[0])))
    program = program_of(e, operation.regions[0])
    return several(e.host("sort", (dim, program), *given), operation)


def greatest(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the k greatest elements of rows and their places."""
    k = attribute(operation, "k", default=1)
    if e.type_of(given[0]).dtype.is_float and len(e.shape_of(given[0])) > 1:
        return list(e.call(ops.TopK(), e.whole(given[0]), k))
    return list(e.host("top_k", (k,), given[0]))


def mapped(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a region's results for every element."""
    program = program_of(e, operation.regions[0])
    return [e.host("map", (tensor(operation.types[0]).dtype.name.lower(), program), *given)]


REDUCTION_KINDS: Kinds = {
    "reduce": reduced, "reduce_window": windows_reduced, "select_and_scatter": selected_and_scattered, "sort": ordered,
    "map": mapped, "chlo.top_k": greatest, "topk": greatest,
}  # fmt: skip
