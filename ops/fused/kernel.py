"""Kernels of fused operators run line by line for one block of the result after the other.

A block is so small that operands, intermediate values and results stay in the cache of a core. Every line
runs the operator's own array function on the same elements as unfused, so the results are the same bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.bases import Elementwise
from mspc.ops.cpu.blocks import SHARED, in_parallel, parts_of, thread_count, written
from mspc.ops.fused.body import (
    BodyLine,
    by_element,
    form_of,
    fusible,
    operand_count,
    reshapes,
    row_axes,
    types_of_lines,
)
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import ArrayBackend, Op
from mspc.ops.tensor.reshape import Cast, ReductionOp

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


SMALL = 1024
"""Elements up to which the lines run on entire arrays: these are in the cache anyway."""
CACHE = 1 << 20
"""Bytes that the blocks of a thread may fill together: the cache of one core."""
MIN_ELEMENTS, MAX_ELEMENTS = 8192, 65536
"""Elements of a block: as many as calls of array functions are worth, and no more than fit."""

Kernel = Callable[..., Any]


def plain_kernel(be: ArrayBackend, steps: Sequence[BodyLine], returns: Sequence[int]) -> Kernel:
    """Return `function(*operands)`: the lines one after the other on entire arrays."""
    count = operand_count(steps)
    program: list[tuple[Kernel, int, int, tuple[int, ...]]] = []
    for step in steps:
        read = _places(step, count)
        # One and two operands have their own fields because a list of arguments costs as much as a small kernel.
        first, second = read[0] if read else 0, read[1] if len(read) == 2 else -1 if len(read) == 1 else -2
        program.append((step.op.kernel(be), first, second, read))
    places = [count + index for index in returns]
    # Results that may share an operand's memory are copied: a fused operator promises an array of its own.
    shared = [i for i, index in enumerate(returns) if steps[index].op.is_view or steps[index].op.may_alias]

    def kernel(*operands: Any) -> Any:
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
        return results[0] if len(results) == 1 else tuple(results)

    return kernel


def blocked_kernel(be: ArrayBackend, steps: Sequence[BodyLine], returns: Sequence[int]) -> Kernel | None:
    """Return `function(*operands, out=None)`, block by block for large arrays; None for arrays that are not NumPy's."""
    if be.xp is not np:
        return None
    plain = plain_kernel(be, steps, returns)
    schedules: dict[tuple[Shape, ...], _BlockSchedule | None] = {}
    in_blocks = _in_blocks(steps)

    def schedule_of(operands: Sequence[Any]) -> _BlockSchedule | None:
        given = [TensorType(dtype_of(a.dtype), a.shape) for a in operands]
        types = types_of_lines(steps, given)
        large = in_blocks and max(t.size for t in types) > SMALL and all(_is_block_wise(s, given, types) for s in steps)
        return _BlockSchedule(be, steps, returns, operands, types) if large else None

    def kernel(*operands: Any, out: Any = None) -> Any:
        shapes = tuple([array.shape for array in operands])
        if shapes not in schedules:
            schedules[shapes] = schedule_of(operands)
        schedule = schedules[shapes]
        if schedule is not None:
            return schedule.run(operands, out)
        result = plain(*operands)
        return result if out is None else written(result, out)

    return kernel


def _in_blocks(steps: Sequence[BodyLine]) -> bool:
    """Return True if every element of the lines except closing reductions depends only on its own place."""
    if any(not (by_element(step.op) or step.reshapes or step.reduces) for step in steps):
        return False
    reduced = {i for i, step in enumerate(steps) if step.reduces}
    read = {index for step in steps for kind, index in step.operands if kind == "t"}
    return reduced.isdisjoint(read) and all(_root(steps, steps[i].operands[0])[0] == "t" for i in reduced)


def _is_block_wise(step: BodyLine, given: Sequence[TensorType], types: Sequence[TensorType]) -> bool:
    if step.reshapes or step.reduces:
        return True
    return fusible(form_of(step.op, [(given if kind == "x" else types)[i] for kind, i in step.operands])[0])


def _root(steps: Sequence[BodyLine], operand: tuple[str, int]) -> tuple[str, int]:
    """Return the operand under the views of a line's operand, or itself."""
    while operand[0] == "t" and steps[operand[1]].reshapes:
        operand = steps[operand[1]].operands[0]
    return operand


def _places(step: BodyLine, count: int) -> tuple[int, ...]:
    return tuple(index if kind == "x" else count + index for kind, index in step.operands)


@dataclass(frozen=True, slots=True)
class _Call:
    """A line as blocks run it. function: takes the operands' blocks, and `out` if there is a target. places: its
    operands among operands and results of lines; `at`: the index of its own result there. target: block that it writes
    to, of the full arrays' and then of scratch; -1 if the function allocates one. copy: full array to which the result
    is copied when the block is done, -1 for none."""

    function: Kernel
    places: tuple[int, ...]
    at: int
    target: int
    copy: int


class _BlockSchedule:
    """Schedule of a fused operator for operands of certain shapes.

    unreduced: lines other than reductions whose full results are needed. dims: of the iteration space of all lines.
    reads: (operand, its shape in these). split: the dimension of which a block has `size` elements; a block is at one
    index of the dimensions before it, and has all of those after it. folded: reductions over trailing dimensions,
    computed block by block: (line, remaining dimensions, function). later: reductions of full arrays: (line, function).
    """

    def __init__(self, be: ArrayBackend, steps: Sequence[BodyLine], returns: Sequence[int], operands: Sequence[Any],
                 types: Sequence[TensorType]) -> None:  # fmt: skip
        self.steps, self.returns, self.types = steps, returns, types
        given = [TensorType(dtype_of(a.dtype), a.shape) for a in operands]
        names = [step.op.name for step in steps]
        space = space_of(names, steps, given, types, _uneven(steps, operands, types))
        self.dims, count = space.dims, len(space.dims)
        self.reads: list[tuple[int, Shape]] = []
        reduced = {i: steps[i].operands[0][1] for i, step in enumerate(steps) if step.reduces}
        lengths = {i: row_of(types[at].shape, row_axes(steps[i].op, [types[at]]) or ()) for i, at in reduced.items()}
        before = {i: _before(self.dims, length) for i, length in lengths.items() if length}
        folded = {i: at for i, at in before.items() if at}  # a complete reduction has no blocks
        self.folded = [(i, at, _over_last(be, steps[i].op, count - at)) for i, at in folded.items()]
        self.later = [(i, steps[i].op.kernel(be)) for i in reduced if i not in folded]
        self.operand_of = {i: _root(steps, ("t", at))[1] for i, at in reduced.items()}
        wanted = [i if i not in reduced else self.operand_of[i] for i in returns if i not in folded]
        self.unreduced = list(dict.fromkeys(wanted))
        self.lines, self.scratch = self._lines(be, space, operands, [self.operand_of[i] for i in folded])
        width = max(t.dtype.itemsize for t in self.types)
        arrays = sum(shape == self.dims for _, shape in self.reads) + len(self.scratch) + len(self.unreduced)
        target = min(MAX_ELEMENTS, max(MIN_ELEMENTS, CACHE // (width * max(1, arrays))))
        last = min(folded.values(), default=count) - 1
        self.split = 0
        while self.split < last and math.prod(self.dims[self.split + 1 :]) > target:
            self.split += 1
        self.size = min(self.dims[self.split], max(1, target // math.prod(self.dims[self.split + 1 :])))

    def _sources(self, space: Space, shown: Sequence[int]) -> list[tuple[tuple[str, int], ...]]:
        """Return the operands of every line: ("x", index in `reads`) or ("t", line), looking through the reshaping
        lines in `shown`."""
        found: list[tuple[tuple[str, int], ...]] = []
        known: dict[tuple[int, Shape], int] = {}
        for step, shapes in zip(self.steps, space.shapes, strict=True):
            read: list[tuple[str, int]] = []
            for (kind, index), shape in zip(step.operands, shapes, strict=True):
                while kind == "t" and index in shown:
                    kind, index = self.steps[index].operands[0]
                place = known.setdefault((index, shape), len(known)) if kind == "x" else index
                read.append((kind, place))
            found.append(tuple(read))
        self.reads = list(known)
        return found

    def _lines(
        self, be: ArrayBackend, space: Space, operands: Sequence[Any], folded: Sequence[int]
    ) -> tuple[list[_Call], list[np.dtype[Any]]]:
        """Return the lines, and the element types of the scratch blocks that they need."""
        steps = self.steps
        given = [TensorType(dtype_of(a.dtype), a.shape) for a in operands]
        shown = [i for i, step in enumerate(steps) if step.reshapes and i not in self.unreduced]
        sources = self._sources(space, shown)
        count = len(self.reads)
        last = {source: number for number, read in enumerate(sources) if number not in shown for source in read}
        stored = {("t", index) for index in (*folded, *self.unreduced)}
        lines: list[_Call] = []
        scratch: list[np.dtype[Any]] = []
        free: list[int] = []
        slots: dict[tuple[str, int], int] = {}
        for number, step in enumerate(steps):
            if step.reduces or number in shown:
                continue
            op, _ = form_of(step.op, [(given if kind == "x" else self.types)[i] for kind, i in step.operands])
            dtype, function = self.types[number].dtype.numpy, _writing(be, op)
            over = [o for o in dict.fromkeys(sources[number]) if last[o] == number and o not in stored]
            dead = [slots[o] for o in over if o in slots]
            if op.in_place:
                free += dead
            # An operand may share the memory of a result, so that nothing may read operands once that is written.
            first_safe = number + (1 if op.in_place else 0)
            read_later = any(
                last.get(("x", i), -1) >= first_safe
                for i, (operand, shape) in enumerate(self.reads)
                if shape == self.dims and operands[operand].dtype == dtype
            )
            place = self.unreduced.index(number) if number in self.unreduced else -1
            target = -1
            if function is not None and place >= 0 and not read_later:
                target, place = place, -1
            elif function is not None:
                fitting = [slot for slot in free if scratch[slot] == dtype]
                if fitting:
                    free.remove(fitting[-1])
                else:
                    scratch.append(dtype)
                slots["t", number] = fitting[-1] if fitting else len(scratch) - 1
                target = len(self.unreduced) + slots["t", number]
            if not op.in_place:
                free += dead
            call = function or op.kernel(be)
            places = tuple(i if kind == "x" else count + i for kind, i in sources[number])
            lines.append(_Call(call, places, count + number, target, place))
        return lines, scratch

    def run(self, operands: Sequence[Any], out: Any = None) -> Any:
        """Return the results, written to `out` if it is given."""
        given = dict(zip(self.returns, parts_of(out), strict=True)) if out is not None else {}
        arrays: dict[int, Any] = {
            i: given[i] if i in given else np.empty(self.types[i].shape, self.types[i].dtype.numpy)
            for i in (*self.unreduced, *(i for i, *_ in self.folded))
        }
        blocks = [
            operands[i].reshape(()) if operands[i].size == 1 else operands[i].reshape(shape) for i, shape in self.reads
        ]
        unreduced = [arrays[i].reshape(self.dims) for i in self.unreduced]
        sums = [(i, function, arrays[i].reshape(self.dims[:remaining])) for i, remaining, function in self.folded]
        work = functools.partial(self._part, blocks, unreduced, sums)
        units = math.prod(self.dims[: self.split + 1])
        pieces = -(-units // self.size)
        threads = min(thread_count(), pieces) if math.prod(self.dims) >= SHARED else 1
        if threads == 1:
            work(0, units)
        else:
            share = -(-pieces // threads) * self.size
            in_parallel([functools.partial(work, i, min(i + share, units)) for i in range(0, units, share)])
        for i, function in self.later:
            shape = self.types[self.steps[i].operands[0][1]].shape
            result = function(arrays[self.operand_of[i]].reshape(shape))
            arrays[i] = written(result, given[i]) if i in given else result
        results = tuple(arrays[i] for i in self.returns)
        return results[0] if len(results) == 1 else results

    def _part(
        self, inputs: list[Any], unreduced: list[Any], sums: list[tuple[int, Kernel, Any]], begin: int, end: int
    ) -> None:
        split, length = self.split, self.dims[self.split]
        spare = [np.empty((self.size, *self.dims[split + 1 :]), dtype) for dtype in self.scratch]
        count = len(inputs)
        values: list[Any] = [None] * (count + len(self.steps))
        while begin < end:
            outer, start = divmod(begin, length)
            stop = min(start + self.size, length, start + end - begin)
            begin += stop - start
            lead: Shape = ()
            for n in reversed(self.dims[:split]):
                outer, index = divmod(outer, n)
                lead = (index, *lead)
            here = (*lead, slice(start, stop))
            for i, array in enumerate(inputs):
                values[i] = array[_within(here, array.shape)] if array.ndim else array
            targets = [array[here] for array in unreduced] + [array[: stop - start] for array in spare]
            for line in self.lines:
                read = [values[i] for i in line.places]
                if line.target >= 0:
                    values[line.at] = line.function(*read, out=targets[line.target])
                else:
                    values[line.at] = line.function(*read)
            for line in self.lines:
                if line.copy >= 0:
                    np.copyto(targets[line.copy], values[line.at])
            for i, function, array in sums:
                array[here] = function(values[count + self.operand_of[i]])


def _before(dims: Shape, length: int) -> int:
    """Return how many dimensions precede the last ones, which have `length` elements together."""
    return next(at for at in range(len(dims)) if math.prod(dims[at:]) == length)


def _uneven(steps: Sequence[BodyLine], operands: Sequence[Any], types: Sequence[TensorType]) -> set[int]:
    """Return cuts for operands with memory that is not contiguous from one dimension to the next."""
    found = set[int]()
    for step, type in zip(steps, types, strict=True):
        for kind, index in step.operands:
            array = operands[index] if kind == "x" else None
            if array is None or array.flags.c_contiguous or array.size == 1:
                continue
            behind, lead = 1, type.rank - array.ndim
            for d in range(array.ndim - 1, 0, -1):
                behind *= type.shape[lead + d]
                if array.strides[d - 1] != array.strides[d] * array.shape[d]:
                    found.add(behind)
    return found


def _within(index: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
    return tuple(
        entry if n != 1 else 0 if isinstance(entry, int) else slice(None)
        for entry, n in zip(index, shape, strict=False)
    )


def _over_last(be: ArrayBackend, op: Op, count: int) -> Kernel:
    reduction = replace(cast(ReductionOp, op), keep_dims=False, axis=-1).kernel(be)
    return lambda block: reduction(block.reshape(*block.shape[: block.ndim - count], -1))


def _writing(be: ArrayBackend, op: Op) -> Kernel | None:
    """Return the operator's function of blocks that writes to `out`; None if it always makes an array."""
    if isinstance(op, Cast | Identity) or reshapes(op):
        return _copy
    kind = type(op)
    if kind.kernel_into is not Elementwise.kernel_into:
        return op.kernel_into(be)
    bare = kind.kernel is Elementwise.kernel and kind.run is Op.run and kind.compute is Op.compute
    function = getattr(np, cast(Elementwise, op).array_function, None) if bare else None
    return function if isinstance(function, np.ufunc) else None


def _copy(x: Any, out: Any) -> Any:
    np.copyto(out, x, casting="unsafe")
    return out
