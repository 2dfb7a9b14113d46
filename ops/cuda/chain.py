"""Chains of elementwise operators, with the reductions that close them, are one CUDA kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

from mspc.ir.types import BOOL, TensorType, dtype_of
from mspc.ops.cuda.elementwise import Read, all_of, defined, expression, launch_loop, type_of
from mspc.ops.cuda.loops import LoopReduction
from mspc.ops.device import Array, Device, Launch

_HOW = {
    "sum": "Sum", "mean": "Sum", "max": "Largest", "min": "Smallest", "prod": "Product", "all": "Smallest",
    "any": "Largest",
}  # fmt: skip
_HOW_BOOL = {"Sum": "Largest", "Product": "Smallest"}


class ChainLine(Protocol):
    """A line of a chain: an operator, and per operand ("x", operand of the chain) or ("t", earlier line).

    reduces: it is a reduction. reshapes: it has the elements of its operand in their order.
    """

    @property
    def op(self) -> Any: ...
    @property
    def operands(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def reduces(self) -> bool: ...
    @property
    def reshapes(self) -> bool: ...


class ChainSpace(Protocol):
    """What all lines go through: see `ops/fused/space.py`."""

    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def columns(self) -> int: ...
    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]: ...


def launch_chain(device: Device, lines: Sequence[ChainLine], types: Sequence[TensorType], space: ChainSpace,
                 returns: Sequence[int], inputs: Sequence[Array], out: Any) -> Launch | None:  # fmt: skip
    """Launch of a chain; None where a line has no `cuda` expression or the loop cannot be generated.

    Args:
        types: of the lines' results. returns: the lines whose results are stored, in the order of `out`.
    """
    if space.columns:
        return None
    operand_types = [type_of(array) for array in inputs]
    arrays = cast("Sequence[Array]", out) if isinstance(out, (tuple, list)) else (out,)
    results = dict(zip(returns, arrays, strict=True))
    read = {index for line in lines for kind, index in line.operands if kind == "t"}
    reads: dict[tuple[int, tuple[int, ...]], Read] = {}
    names: list[str] = []
    text: list[str] = []
    writes: list[tuple[str, Array]] = []
    totals: dict[tuple[int, ...], list[LoopReduction]] = {}
    for number, (line, type, shapes) in enumerate(zip(lines, types, space.shapes, strict=True)):
        given = [(operand_types if kind == "x" else types)[index] for kind, index in line.operands]
        values: list[str] = []
        for (kind, index), shape in zip(line.operands, shapes, strict=True):
            if kind == "t":
                values.append(names[index])
                continue
            name = f"x{index}" if not any(i == index for i, _ in reads) else f"x{index}_{len(reads)}"
            values.append(reads.setdefault((index, shape), Read(name, inputs[index], shape)).name)
        names.append(f"t{number}")
        if line.reduces:
            axes = _axes_of(space.dims, given[0].shape, line.op.axes(given[0].rank))
            totals.setdefault(axes, []).append(_total(line.op, values[0], given[0], results[number]))
            continue
        if line.reshapes:
            names[number] = values[0]
        else:
            form = line.op.as_broadcast(*given)
            op = line.op if form is None else form[0]
            if not op.cuda:
                return None
            # A rounding that nobody sees is left to the store.
            plain = number not in read and op.name == "Cast"
            value = values[0] if plain else expression(op, values, given, type.dtype)
            text.append(defined(f"t{number}", type.dtype, value))
        if number in results:
            writes.append((names[number], results[number]))
    launches: list[Launch] = []
    kinds = [*totals] or [()]
    for axes in kinds:
        # Reductions along other axes take a pass each; the last one stores, perhaps over what the others read.
        stored = writes if axes == kinds[-1] else []
        made = launch_loop(device, list(reads.values()), text, stored, totals.get(axes, []), space.dims, axes)
        if made is None:
            return None
        launches.append(made)
    return all_of(launches)


def _axes_of(dims: tuple[int, ...], shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a space that are reduced where `axes` of `shape` are, which has the same elements."""
    runs: list[tuple[int, int]] = []
    behind = 1
    for d in reversed(range(len(shape))):
        if d in axes or not axes:
            runs.append((behind, behind * shape[d]))
        behind *= shape[d]
    found: list[int] = []
    behind = 1
    for d in reversed(range(len(dims))):
        if any(begin <= behind < end for begin, end in runs):
            found.append(d)
        behind *= dims[d]
    return tuple(reversed(found))


def _total(op: Any, value: str, type: TensorType, out: Array) -> LoopReduction:
    how = _HOW[op.reduction]
    axes: tuple[int, ...] = op.axes(type.rank)
    count = math.prod(type.shape[d] for d in axes) if op.reduction == "mean" else 1
    how = _HOW_BOOL.get(how, how) if type.dtype == BOOL else how
    return LoopReduction(value, how, count, type.dtype, dtype_of(out.dtype), out)


