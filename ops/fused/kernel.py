"""The iteration space of fused operators, and their kernel without a compiled loop: line by line.

Every line runs the operator's own array function on the same elements as unfused, so the results are the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.cpu.blocks import written
from mspc.ops.fused.body import (
    BodyLine,
    form_of,
    operand_count,
    row_axes,
)
from mspc.ops.op import ArrayBackend

# All lines of a fused operator go through one space of places, whatever shapes they have.
#
# A line of shape (8, 1024, 768) and one of shape (8192, 768) have the same elements in the same order; if an operand is
# broadcast in one of them, the space has dimensions that both shapes are made of. Reductions over the last dimensions
# divide it into rows: lines may read their results, one for every row.


Shape = tuple[int, ...]
ALONE = 1 << 14
"""Elements up to which a tensor that is reduced completely is one row of one GPU block: larger ones take less time on
several multiprocessors, in a kernel of their own."""


@dataclass(frozen=True, slots=True)
class Space:
    """dims: its dimensions. columns: how many of them, the last, are a row; 0 if nothing reads a reduction. shapes: of
    every operand of every line, as it is broadcast to `dims`. by_row: lines with one value for every row, including
    reductions."""

    dims: Shape
    columns: int
    shapes: tuple[tuple[Shape, ...], ...]
    by_row: frozenset[int]

    @property
    def row(self) -> int:
        """Elements of a row."""
        return math.prod(self.dims[len(self.dims) - self.columns :])


def operand_dims(shape: Shape, operand: Shape) -> tuple[bool, ...]:
    """Return, for every dimension of `shape`, whether an operand broadcast to it has elements along it."""
    lead = len(shape) - len(operand)
    return tuple(d >= lead and operand[d - lead] == n for d, n in enumerate(shape))


def cuts(shape: Shape, held: Sequence[bool], scale: int = 1) -> Iterator[int]:
    """Return after how many elements a dimension begins along which an operand, or a reduction, differs from the next
    dimension. scale: elements after the last dimension."""
    behind, last = scale, None
    for n, has in zip(reversed(shape), reversed(held), strict=True):
        if n == 1:
            continue
        if last is not None and has != last:
            yield behind
        behind, last = behind * n, has


def divided(size: int, places: Iterable[int]) -> Shape | None:
    """Return the dimensions of a space of `size` elements with these cuts, or None."""
    dims: list[int] = []
    behind = 1
    for place in sorted({*places, size}):
        if place % behind:
            return None
        if place > behind:
            dims.append(place // behind)
        behind = place
    return tuple(reversed(dims))


def row_of(shape: Shape, axes: Sequence[int]) -> int:
    """Return the elements of a row if these axes are reduced; 0 if they are not the last dimensions, or are all of them
    and more than ALONE elements."""
    kept = [d for d, n in enumerate(shape) if n != 1 and d not in axes]
    taken = [d for d, n in enumerate(shape) if n != 1 and d in axes]
    row = math.prod(shape[d] for d in taken)
    return row if taken and (kept[-1] < taken[0] if kept else row <= ALONE) else 0


def is_row_value(shape: Shape, operand: Shape, row: int) -> bool:
    """Whether an operand of `shape` has one element for every `row` elements that are contiguous."""
    behind = 1
    for n, has in zip(reversed(shape), reversed(operand_dims(shape, operand)), strict=True):
        if n != 1 and has != (behind >= row):
            return False
        behind *= n
    return True


def space_of(
    body: Sequence[str], steps: Sequence[BodyLine], operands: Sequence[TensorType], found: Sequence[TensorType],
    more: Iterable[int] = (), needed: Iterable[int] = (),
) -> Space:  # fmt: skip
    """Return the space of lines with these types.

    body: the lines as texts, for messages. operands, found: types of operands and of lines. more: further cuts, which
    go unless they can be had; needed: those that must be. Raise MspcError if the lines have no common space.
    """
    read = [[(operands if kind == "x" else found)[i] for kind, i in step.operands] for step in steps]
    given = [
        [type.shape] if step.reshapes else form_of(step.op, types)[1]
        for step, types, type in zip(steps, read, found, strict=True)
    ]
    axes = [row_axes(step.op, types) for step, types in zip(steps, read, strict=True)]
    works = [shapes[0] if at is not None else type.shape for shapes, at, type in zip(given, axes, found, strict=True)]
    size = max(map(math.prod, works))
    row = _row(body, steps, works, axes)
    by_row = set[int]()
    places = {row, *needed} if row else set(needed)
    for i, (step, work) in enumerate(zip(steps, works, strict=True)):
        elements = math.prod(work)
        if elements != size and not (row and elements * row == size):
            first = next(n for n, other in enumerate(works) if math.prod(other) == size)
            raise MspcError(
                f"the line {body[i]!r} has shape {work}, the line {body[first]!r} {works[first]}",
                notes=["all lines but those of rows have as many elements"],
            )
        at = axes[i]
        if elements != size or (step.reduces and row and row_of(work, at or ()) == row):
            by_row.add(i)
        scale = size // elements if size else 1
        for shape in given[i]:
            if shape != work:
                places.update(cuts(work, operand_dims(work, shape), scale))
        if at is not None:
            places.update(cuts(work, [d in at for d in range(len(work))], scale))
    for i, step in enumerate(steps):
        for (kind, index), shape in zip(step.operands, given[i], strict=True):
            is_value = kind == "t" and index in by_row and math.prod(works[i]) == size
            if is_value and not is_row_value(works[i], shape, row):
                raise MspcError(f"the line {body[i]!r} reads t{index} of shape {shape} otherwise than by rows")
    dims = (size,) if not size else divided(size, {*places, *more}) or divided(size, places)
    if dims is None:
        raise MspcError(f"the lines of the fused operator go through {size} elements in ways that do not fit together")
    columns = len(divided(row, [p for p in places if p <= row]) or ()) if row else 0
    if columns and math.prod(dims[len(dims) - columns :]) != row:  # `more` has cut rows, too
        columns = next(n for n in range(1, len(dims) + 1) if math.prod(dims[len(dims) - n :]) == row)
    if columns == len(dims):
        dims = (1, *dims)  # of a single row, too, the last dimensions are its own
    shapes = tuple(tuple(_seen(works[i], shape, size, dims) for shape in shapes) for i, shapes in enumerate(given))
    return Space(dims, columns, shapes, frozenset(by_row))


def _row(
    body: Sequence[str], steps: Sequence[BodyLine], works: Sequence[Shape], axes: Sequence[tuple[int, ...] | None]
) -> int:
    """Return the elements of a row; 0 if no line reads a reduction, works along rows or reads one with fewer
    elements."""
    read = {index for step in steps for kind, index in step.operands if kind == "t"}
    rows = {i: at for i, at in enumerate(axes) if at is not None and (i in read or not steps[i].reduces)}
    lengths = {i: row_of(works[i], at) for i, at in rows.items()}
    for i, length in lengths.items():
        if not length:
            raise MspcError(f"the line {body[i]!r} does not go along the last dimensions of several rows of {works[i]}")
    if len(set(lengths.values())) > 1:
        one, first = next(iter(lengths.items()))
        other, second = next(item for item in lengths.items() if item[1] != first)
        raise MspcError(f"the line {body[other]!r} has rows of {second} elements, the line {body[one]!r} of {first}")
    if lengths:
        return next(iter(lengths.values()))
    sizes = {math.prod(works[i]) for i in read if not steps[i].reduces}
    size, small = max(map(math.prod, works)), min(sizes, default=0)
    return size // small if small and small < size else 0


def _seen(work: Shape, operand: Shape, size: int, dims: Shape) -> Shape:
    """Return the shape of an operand of a line over `work`, as it is broadcast to `dims`."""
    scale = size // math.prod(work) if size else 1
    if operand == work and size and scale == 1:
        return dims
    runs: list[tuple[int, int, bool]] = [(1, scale, False)]
    behind = scale
    for n, has in zip(reversed(work), reversed(operand_dims(work, operand)), strict=True):
        runs.append((behind, behind * n, has))
        behind *= n
    found: list[int] = []
    behind = 1
    for n in reversed(dims):
        has = next((has for begin, end, has in runs if begin <= behind < end), False)
        found.append(n if has else 1)
        behind *= n
    return tuple(reversed(found))


Kernel = Callable[..., Any]


def plain_kernel(be: ArrayBackend, steps: Sequence[BodyLine], returns: Sequence[int]) -> Kernel:
    """Return `function(*operands, out=None)`: the lines one after the other on entire arrays. Results are written to
    `out` once all lines are computed, so that it may share an operand's memory."""
    count = operand_count(steps)
    program: list[tuple[Kernel, int, int, tuple[int, ...]]] = []
    for step in steps:
        read = tuple(index if kind == "x" else count + index for kind, index in step.operands)
        # One and two operands have their own fields because a list of arguments costs as much as a small kernel.
        first, second = read[0] if read else 0, read[1] if len(read) == 2 else -1 if len(read) == 1 else -2
        program.append((step.op.kernel(be), first, second, read))
    places = [count + index for index in returns]
    # Results that may share an operand's memory are copied: a fused operator promises an array of its own.
    shared = [i for i, index in enumerate(returns) if steps[index].op.is_view or steps[index].op.may_alias]

    def kernel(*operands: Any, out: Any = None) -> Any:
        values = list(operands)
        append = values.append
        for function, first, second, read in program:
            if second >= 0:
                append(function(values[first], values[second]))
            elif second == -1:
                append(function(values[first]))
            else:
                append(function(*[values[i] for i in read]))
        results = [values[i] for i in places]
        for i in shared:
            results[i] = be.xp.array(results[i])
        result = results[0] if len(results) == 1 else tuple(results)
        return result if out is None else written(result, out)

    return kernel
