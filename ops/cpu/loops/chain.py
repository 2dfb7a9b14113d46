"""A chain of lines, elementwise ones and reductions, as a nest of loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.ops.bases import axes_of
from mspc.ops.cpu.loops.nest import Nest, Sum
from mspc.ops.cpu.loops.passes import LoopInput, LoopValue, Total
from mspc.ops.cuda.chain import Operands, element_of, reduction_of
from mspc.ops.cuda.elementwise import expression
from mspc.ops.cuda.random import with_arguments
from mspc.ops.device import C_TYPES
from mspc.ops.fused.body import BodyLine, expanded, moves_elements, types_of_lines
from mspc.ops.fused.space import Space, space_of

Shape = tuple[int, ...]


class Chain:
    """Lines and their nest.

    operands: which operand of the chain every read is. results: for every line that is returned ("write", "row" or
    "sum", its place among these). seeds: the numbers that lines draw with.
    """

    def __init__(self, nest: Nest, operands: Sequence[int], results: Sequence[tuple[str, int]],
                 seeds: Sequence[int]) -> None:  # fmt: skip
        self.nest, self.operands, self.results, self.seeds = nest, operands, results, seeds


def chain_of(steps: Sequence[BodyLine], returns: Sequence[int], given: Sequence[TensorType]) -> Chain | None:
    """The chain of these lines on operands of these types; None where it cannot be one nest of loops."""
    if any(moves_elements(step.op) for step in steps):
        return None
    try:
        lines, ends = expanded(steps, returns, given)
        types = types_of_lines(lines, given)
        space = space_of([step.op.name for step in lines], lines, given, types)
    except MspcError:
        return None
    known = all(type.dtype.name in C_TYPES for type in (*given, *types))
    if not known or not space.dims or not math.prod(space.dims):
        return None
    return _Maker(lines, ends, given, types, space).chain()


class _Maker:
    def __init__(self, lines: Sequence[BodyLine], returns: Sequence[int], given: Sequence[TensorType],
                 types: Sequence[TensorType], space: Space) -> None:  # fmt: skip
        self.steps, self.returns, self.given, self.types, self.space = lines, returns, given, types, space
        self.size = math.prod(space.dims)
        self.axes = {
            i: axes_of(space.dims, self._source(i).shape, cast(Any, step.op).axes(self._source(i).rank))
            for i, step in enumerate(lines)
            if step.reduces and self._source(i).size == self.size
        }
        self.columns = space.columns or self._own_columns()

    def _source(self, number: int) -> TensorType:
        """The type of what a reduction reduces."""
        kind, index = self.steps[number].operands[0]
        return self.given[index] if kind == "x" else self.types[index]

    def _own_columns(self) -> int:
        """The last dimensions that are a row because reductions, which nothing reads, are over these alone."""
        count = len(self.space.dims)
        rows = {count - axes[0] for axes in self.axes.values() if axes and axes == tuple(range(axes[0], count))}
        rows.discard(count)
        return rows.pop() if len(rows) == 1 else 0

    def _is_by_row(self, number: int) -> bool:
        count = len(self.space.dims)
        if number in self.axes:
            return bool(self.columns) and self.axes[number] == tuple(range(count - self.columns, count))
        return number in self.space.by_row

    def chain(self) -> Chain | None:
        """The chain, where every line has C++ and every reduction goes over all elements."""
        given = Operands(self.steps, self.types, self.space, self.given)
        read = {index for step in self.steps for kind, index in step.operands if kind == "t"}
        names: list[str] = []
        made: list[LoopValue] = []
        sums: dict[int, Sum] = {}
        for number, (step, type) in enumerate(zip(self.steps, self.types, strict=True)):
            values, kinds = given.values(number, names), given.types(number)
            by_row = self._is_by_row(number)
            names.append(values[0] if step.reshapes else f"t{number}")
            if step.reduces:
                if number not in self.axes:
                    return None
                how, count = reduction_of(step.op, kinds[0])
                total = Total(values[0], how, count, kinds[0].dtype, type.dtype)
                if by_row:
                    made.append(LoopValue(f"t{number}", type.dtype, "", tuple(values), total, by_row=True))
                elif number in read:
                    return None
                else:
                    sums[number] = self._sum(total, self.axes[number])
            elif not step.reshapes:
                op = element_of(step, kinds)
                if not op.cuda:
                    return None
                # A rounding that nobody sees is left to the store.
                plain = number not in read and op.name == "Cast"
                text = values[0] if plain else expression(op, values, kinds, type.dtype)
                made.append(LoopValue(f"t{number}", type.dtype, text, tuple(values), by_row=by_row))
        return self._complete(given, made, names, sums)

    def _complete(
        self, given: Operands, made: Sequence[LoopValue], names: Sequence[str], sums: dict[int, Sum]
    ) -> Chain | None:
        texts, seeds = with_arguments([line.text for line in made])
        lines = [
            LoopValue(line.name, line.dtype, text, line.reads, line.total, line.by_row)
            for line, text in zip(made, texts, strict=True)
        ]
        reads = [LoopInput(name, self.given[i].dtype, _strides(shape)) for name, i, shape in given.reads]
        full = [i for i in self.returns if i not in sums and not self._is_by_row(i)]
        rows = [i for i in self.returns if self._is_by_row(i)]
        if any(self.types[i].size != self.size for i in full):
            return None
        nest = Nest(
            self.space.dims, self.columns, reads, lines,
            [(names[i], self.types[i].dtype) for i in full], [(names[i], self.types[i].dtype) for i in rows],
            list(sums.values()), len(seeds),
        )  # fmt: skip
        order = {i: ("write", place) for place, i in enumerate(full)}
        order |= {i: ("row", place) for place, i in enumerate(rows)}
        order |= {i: ("sum", place) for place, i in enumerate(sums)}
        return Chain(nest, [i for _, i, _ in given.reads], [order[i] for i in self.returns], seeds)

    def _sum(self, total: Total, axes: Sequence[int]) -> Sum:
        dims = self.space.dims
        kept = tuple(1 if d in axes else n for d, n in enumerate(dims))
        return Sum(total, _strides(kept), math.prod(kept))


def _strides(shape: Shape) -> Shape:
    """Steps in elements, 0 along dimensions of one element."""
    return tuple(0 if n == 1 else math.prod(shape[d + 1 :]) for d, n in enumerate(shape))
