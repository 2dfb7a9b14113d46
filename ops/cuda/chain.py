"""Chains of elementwise operators, with the reductions that close them, are one CUDA kernel each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from mspc.ir.types import BOOL, TensorType
from mspc.ops.bases import axes_of
from mspc.ops.cuda.elementwise import (
    KernelOperand,
    LoopLine,
    LoopReduction,
    MovedRead,
    Offset,
    coordinate,
    defined,
    expression,
    launch_loop,
    type_of,
    vectors_of,
)
from mspc.ops.cuda.reductions import how_of
from mspc.ops.cuda.row_chains import RowChain, launch_rows, takes_totals
from mspc.ops.cuda.scans import ScanOperands
from mspc.ops.device import Array, Device, Launch, RankSum, all_of, computing_type, in_order
from mspc.ops.fused.body import BodyLine, Moved
from mspc.ops.fused.kernel import Space


class ChainOperands:
    """The arrays that a chain reads, followed by its reads of these at other positions."""

    def __init__(self, arrays: Sequence[Array], moved: Sequence[Moved], space: Space) -> None:
        self.arrays, self.moved, self.dims = arrays, moved, space.dims
        self.types = [type_of(array) for array in arrays] + [each.type for each in moved]

    def read(self, name: str, index: int, shape: tuple[int, ...]) -> KernelOperand:
        """Add an operand under this name, in a shape that is broadcast to the space."""
        if index < len(self.arrays):
            return KernelOperand(name, self.arrays[index], shape)
        each = self.moved[index - len(self.arrays)]
        array = self.arrays[each.operand] if each.operand >= 0 else None
        large = max(math.prod(self.dims), array.size if array is not None else 0) >= 2**31
        where = tuple((self._offset(each, place), begin, end) for place, begin, end in each.where)
        moved = MovedRead(each.dtype, array, self._offset(each, each.at), where, "long long" if large else "int")
        return KernelOperand(name, array, shape, moved)

    def _offset(self, each: Moved, place: Any) -> Offset:
        return Offset(place.offset, each.steps(place, self.dims))


def launch_chain(device: Device, lines: Sequence[BodyLine], types: Sequence[TensorType], space: Space,
                 returns: Sequence[int], inputs: Sequence[Array], out: Any, moved: Sequence[Moved] = (),
                 summed: tuple[int, RankSum] | None = None) -> Launch | None:  # fmt: skip
    """Return the launch of a chain; None if a line has no `cuda` expression or the loop cannot be generated. types: of
    the lines' results. returns: lines that are stored, in the order of `out`. moved: operands after the others. summed:
    the operand that is a sum over ranks."""
    operands = ChainOperands(inputs, moved, space)
    if space.columns:
        return _launch_rows(device, lines, types, space, returns, operands, out, summed)
    if summed is not None:
        return None
    given = Operands(lines, types, space, operands.types)
    results = _stored(returns, out)
    lowered = loop_lines(lines, types, given, frozenset(), round_in_store=True)
    if lowered is None:
        return None
    totals: dict[tuple[int, ...], list[LoopReduction]] = {}
    for number, total in lowered.aside.items():
        axes = _axes(lines[number], given.types(number)[0], space)
        totals.setdefault(axes, []).append(replace(total, array=results[number]))
    text = [defined(line.name, line.dtype, line.text) for line in lowered.made]
    writes = [(lowered.names[i], results[i]) for i in sorted(results) if not lines[i].reduces]
    reads = [operands.read(name, index, shape) for name, index, shape in given.reads]
    launches: list[Launch] = []
    along = [*totals] or [()]
    for axes in along:
        # Reductions along other axes take a pass each; the last one stores, perhaps over operands of the others.
        stored = writes if axes == along[-1] else []
        made = launch_loop(device, reads, text, stored, totals.get(axes, []), space.dims, axes)
        if made is None:
            return None
        launches.append(made)
    return all_of(launches)


def computed_operands(operands: Sequence[tuple[str, int]], lines: Sequence[BodyLine], types: Sequence[TensorType],
                      space: Space, inputs: Sequence[Array], moved: Sequence[Moved],
                      first: TensorType, axis: int) -> ScanOperands | None:  # fmt: skip
    """Return operands of a scan along `axis`: ("x", array) or ("t", line), computed element by element; None if a line
    has no `cuda` expression. first: the type of the first one."""
    chain = ChainOperands(inputs, moved, space)
    given = Operands(lines, types, space, chain.types)
    lowered = loop_lines(lines, types, given, frozenset())
    if lowered is None:
        return None
    loads: dict[str, tuple[str, str]] = {}
    held: list[str] = []
    inner, whole = math.prod(first.shape[axis + 1 :]), math.prod(first.shape[axis:])
    behind = [math.prod(space.dims[d:]) for d in range(len(space.dims) + 1)]
    along = [d for d in range(len(space.dims)) if behind[d] > inner and behind[d + 1] < whole]
    coordinates = [coordinate("at", space.dims, d) for d in range(len(space.dims))]
    for name, index, shape in given.reads:
        each = chain.read(name, index, shape)
        source = f"p{index if index < len(inputs) else moved[index - len(inputs)].operand}"
        strides = Offset(0, vectors_of(each, space.dims)[0])
        read = each.moved or MovedRead(each.dtype, each.array, strides, (), "long long")
        plain = shape == space.dims and each.moved is None
        value, type = f"{source}[at]" if plain else read.element(source, coordinates), computing_type(each.dtype)
        if any(steps[d] for steps in read.vectors for d in along):
            loads[name] = type, value
        else:
            held.append(f"const {type} {name} = [&](Index at) {{ return wide({value}); }}(place_of(known, 0, 1));")
    for i in {i for kind, i in operands if kind == "x"}:
        loads[f"own{i}"] = computing_type(type_of(inputs[i]).dtype), f"p{i}[at]"
    text = " ".join(defined(line.name, line.dtype, line.text) for line in lowered.made)
    texts = {
        "fields": "".join(f"{type} {name}; " for name, (type, _) in loads.items()), "held": " ".join(held),
        "loads": ", ".join(f"wide({value})" for _, value in loads.values()),
        "names_of_raw": "".join(f"const {type} {name} = raw.{name}; " for name, (type, _) in loads.items()),
    }  # fmt: skip
    for operand, (kind, i) in itertools.zip_longest("xyz", operands, fillvalue=("", 0)):
        value = f"(A)wide(own{i})" if kind == "x" else f"(A)wide({lowered.names[i]})" if kind else "(A)0"
        texts[str(operand)] = f"{text if kind == 't' else ''} return {value};"
    arrays = {f"p{i}": array for i, array in enumerate(inputs)}
    return ScanOperands(len(operands), first.shape, first.dtype, arrays, texts)


class Operands:
    """The operands of lines: their names in expressions, each in the shapes in which it is broadcast."""

    def __init__(
        self, lines: Sequence[BodyLine], types: Sequence[TensorType], space: Space, given: Sequence[TensorType]
    ) -> None:
        self._lines, self._types, self._shapes, self._own = lines, types, space.shapes, given
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}

    @property
    def reads(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """(name, operand of the chain, shape) of all that was read so far."""
        return [(name, index, shape) for (index, shape), name in self._names.items()]

    def types(self, number: int) -> list[TensorType]:
        """Return the types of a line's operands."""
        return [(self._own if kind == "x" else self._types)[i] for kind, i in self._lines[number].operands]

    def values(self, number: int, names: Sequence[str]) -> list[str]:
        """Return the names of a line's operands; `names` are those of earlier lines' results."""
        found: list[str] = []
        for (kind, index), shape in zip(self._lines[number].operands, self._shapes[number], strict=True):
            if kind == "t":
                found.append(names[index])
                continue
            name = f"x{index}" if all(i != index for i, _ in self._names) else f"x{index}_{len(self._names)}"
            found.append(self._names.setdefault((index, shape), name))
        return found


class LoweredLines(NamedTuple):
    """Lines as C++. names: of every line's value. made: the values in order, with reductions along rows. aside: other
    reductions by line."""

    names: list[str]
    made: list[LoopLine]
    aside: dict[int, LoopReduction]


def loop_lines(
    lines: Sequence[BodyLine], types: Sequence[TensorType], given: Operands, by_row: Collection[int],
    round_in_store: bool = False,
) -> LoweredLines | None:  # fmt: skip
    """Return the lines as C++ for a CPU or a GPU, or None if one has no `cuda` expression.

    by_row: lines with one value for every row. round_in_store: a last cast is left to the store.
    """
    read = {index for line in lines for kind, index in line.operands if kind == "t"}
    lowered = LoweredLines([], [], {})
    for number, (line, type) in enumerate(zip(lines, types, strict=True)):
        values, kinds = given.values(number, lowered.names), given.types(number)
        name = f"t{number}"
        lowered.names.append(values[0] if line.reshapes else name)
        if line.reduces:
            total = LoopReduction(values[0], *reduction_of(line.op, kinds[0]), kinds[0].dtype, type.dtype)
            if number in by_row:
                lowered.made.append(LoopLine(name, type.dtype, "", tuple(values), total, by_row=True))
            else:
                lowered.aside[number] = total
        elif not line.reshapes:
            op = element_of(line, kinds)
            if not op.cuda:
                return None
            plain = round_in_store and number not in read and op.name == "Cast"
            text = values[0] if plain else expression(op, values, kinds, type.dtype)
            own = ["running"] if "{s}" in op.cuda else []
            lowered.made.append(LoopLine(name, type.dtype, text, (*values, *own), by_row=number in by_row))
    return lowered


def _axes(line: BodyLine, type: TensorType, space: Space) -> tuple[int, ...]:
    return axes_of(space.dims, type.shape, cast(Any, line.op).axes(type.rank))


def _stored(returns: Sequence[int], out: Any) -> dict[int, Array]:
    arrays = cast("Sequence[Array]", out) if isinstance(out, (tuple, list)) else (out,)
    return dict(zip(returns, arrays, strict=True))


def element_of(line: BodyLine, types: Sequence[TensorType]) -> Any:
    """Return the operator that computes an element of a line's result."""
    form = line.op.as_broadcast(*types)
    return line.op if form is None else form[0]


def reduction_of(op: Any, type: TensorType) -> tuple[str, int]:
    """Return (how a reduction combines the elements of an operand of this type, its divisor)."""
    axes: tuple[int, ...] = op.axes(type.rank) or tuple(range(type.rank))
    count = math.prod(type.shape[d] for d in axes) if op.reduction == "mean" else 1
    return how_of(op.reduction, type.dtype == BOOL), count


def _launch_rows(device: Device, lines: Sequence[BodyLine], types: Sequence[TensorType], space: Space,
                 returns: Sequence[int], operands: ChainOperands, out: Any,
                 summed: tuple[int, RankSum] | None) -> Launch | None:  # fmt: skip
    """Return the launch of lines that read row reductions. Other reductions run in separate passes before, except
    column totals that fit the kernel."""
    size = math.prod(space.dims)
    given = Operands(lines, types, space, operands.types)
    results = _stored(returns, out)
    lowered = loop_lines(lines, types, given, space.by_row)
    if lowered is None:
        return None
    made, names = lowered.made, lowered.names
    behind = set[str]()
    aside: dict[tuple[int, ...], list[LoopReduction]] = {}
    for number, line in enumerate(lines):
        kinds, by_row = given.types(number), number in space.by_row
        values = given.values(number, names)
        if line.reduces and (kinds[0].size != size or (not by_row and values[0] in behind)):
            return None
        if line.reduces and not by_row:
            total = replace(lowered.aside[number], array=results[number])
            aside.setdefault(_axes(line, kinds[0], space), []).append(total)
        if line.reduces or not behind.isdisjoint(values):
            behind.add(names[number])
    full = [i for i in results if i not in space.by_row and not lines[i].reduces]
    reads = [operands.read(name, i, shape) for name, i, shape in given.reads]
    chain = RowChain(
        space.dims, space.columns, reads, made,
        [(names[i], results[i]) for i in full], [(names[i], results[i]) for i in results if i in space.by_row],
    )  # fmt: skip
    whole = tuple(range(len(space.dims) - space.columns))
    if size and whole in aside and takes_totals(device, chain, aside[whole]):
        chain.totals = aside.pop(whole)
    if summed is not None and (aside or not _is_loaded_once(chain, given, operands, *summed)):
        return None
    text = [defined(each.name, each.dtype, each.text) for each in made if each.name not in behind]
    launches = [launch_loop(device, reads, text, [], totals, space.dims, axes) for axes, totals in aside.items()]
    return in_order(*launches, launch_rows(device, chain)) if size else None


def _is_loaded_once(
    chain: RowChain, given: Operands, operands: ChainOperands, number: int, summed: RankSum
) -> bool:
    """Return True, and set `summed` of the chain, if its kernel reads an operand in packs under one name and nowhere
    else: every rank may then hold a part of it."""
    names = [name for name, index, _ in given.reads if index == number]
    elsewhere = any(each.operand == number for each in operands.moved)
    if len(names) != 1 or elsewhere:
        return False
    (read,) = (read for read in chain.reads if read.name == names[0])
    chain.summed = names[0], summed
    return chain.is_packed(read) and read.array.size == math.prod(chain.dims)
