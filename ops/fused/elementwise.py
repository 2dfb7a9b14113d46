"""One operator for several elementwise ones, with one pass over memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, Type, dtype_of
from mspc.ops.device import Array, Device, Launch, RankSum
from mspc.ops.fused.body import (
    BodyLine,
    Moved,
    RankOp,
    expanded,
    line_of,
    moves_elements,
    operand_count,
    read_body,
    resolved,
    types_of_lines,
)
from mspc.ops.fused.kernel import Space, plain_kernel, space_of
from mspc.ops.op import ArrayBackend


class FusedElementwise(RankOp):
    """The operators of `body`, one a line, each applied to operands x0, x1, ... and results t0, t1, ... of lines.

    All lines have the same number of elements, in shapes to which the operands are broadcast; reductions may close
    chains, and lines may read reductions of rows (`ops/fused/kernel.py`). `returns` are the lines that are the
    operator's results: one tensor, or a tuple of several.
    """

    body: tuple[str, ...] = ()
    returns: tuple[int, ...] = ()
    in_place = True
    any_types = True
    widens = False  # its lines do, each rounding its own result

    def __post_init__(self) -> None:
        read_body(self.body, self.returns)

    @classmethod
    def of(cls, steps: Sequence[BodyLine], returns: Sequence[int]) -> FusedElementwise:
        """Return the operator of these lines."""
        return cls(tuple(line_of(step.op, step.operands) for step in steps), tuple(returns))

    def infer(self, *types: Any) -> Type:
        steps = steps_of(self)
        if len(types) != operand_count(steps):
            raise MspcError(f"{self.name} takes {operand_count(steps)} tensors, not {len(types)}", code="E0301")
        for index, operand in enumerate(types):
            if not isinstance(operand, TensorType):
                raise MspcError(f"{self.name}: input {index} is {operand}, not a tensor", code="E0312")
        found = step_types(self, types)
        try:
            space_of_steps(self, types)
        except MspcError as error:
            raise MspcError(f"{self.name}: {error.message}", notes=error.notes) from None
        results = tuple(found[index] for index in self.returns)
        return results[0] if len(results) == 1 else TupleType(results)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return plain_kernel(be, steps_of(self), self.returns)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return self.kernel(be) if be.xp is np else None

    def launch(
        self, device: Device, out: Any, *inputs: Array, summed: tuple[int, RankSum] | None = None
    ) -> Launch | None:  # fmt: skip
        """See `Op.launch`. summed: the operand that is a sum over ranks, and the addresses of its summands."""
        from mspc.ops.cuda.chain import launch_chain  # late: only a GPU needs it

        given = tuple(TensorType(dtype_of(array.dtype), tuple(array.shape)) for array in inputs)
        steps, returns, types, space, moved = expanded_steps(self, given)
        return launch_chain(device, steps, types, space, returns, inputs, out, moved, summed)


def steps_of(op: FusedElementwise) -> tuple[BodyLine, ...]:
    """Return the parsed lines of the operator."""
    return read_body(op.body, op.returns)


def step_types(op: FusedElementwise, operand_types: Sequence[TensorType]) -> list[TensorType]:
    """Return the type of every line's result. Raise MspcError if the operands do not fit."""
    return list(_step_types(op, tuple(operand_types)))


@functools.lru_cache(maxsize=4096)
def _step_types(op: FusedElementwise, operand_types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Do the same, once for all equal layers."""
    return tuple(types_of_lines(steps_of(op), operand_types))


def space_of_steps(op: FusedElementwise, operand_types: Sequence[TensorType]) -> Space:
    """Return the iteration space of the lines. Raise MspcError if the operands do not fit, or there is none."""
    return _space_of_steps(op, tuple(operand_types))


@functools.lru_cache(maxsize=4096)
def _space_of_steps(op: FusedElementwise, operand_types: tuple[TensorType, ...]) -> Space:
    if has_moves(op):
        return expanded_steps(op, operand_types).space
    return space_of(op.body, steps_of(op), operand_types, _step_types(op, operand_types))


class Expanded(NamedTuple):
    """Lines with operators along rows expanded and moves resolved: the lines, those that are returned, their types,
    their space, and their reads after the operands."""

    steps: Sequence[BodyLine]
    returns: Sequence[int]
    types: Sequence[TensorType]
    space: Space
    moved: Sequence[Moved]


def expanded_steps(op: FusedElementwise, given: tuple[TensorType, ...]) -> Expanded:
    """Return the lines of the operator in the form for kernels. Raise MspcError if there are none."""
    return expanded_lines(steps_of(op), op.returns, given)


@functools.lru_cache(maxsize=4096)
def expanded_lines(lines: tuple[BodyLine, ...], ends: tuple[int, ...], given: tuple[TensorType, ...]) -> Expanded:
    """Return the same for lines that do not belong to an operator yet, `ends` of which are returned."""
    steps, returns = expanded(lines, ends, given)
    moved: list[Moved] = []
    if any(moves_elements(step.op) for step in steps):
        steps, returns, moved = resolved(steps, returns, given, types_of_lines(steps, given))
        given = (*given, *(each.type for each in moved))
    types = types_of_lines(steps, given)
    cuts = set[int]().union(*(each.cuts() for each in moved))
    space = space_of([step.op.name for step in steps], steps, given, types, needed=cuts)
    if any(math.prod(each.dims) != math.prod(space.dims) for each in moved):
        raise MspcError("a line that moves elements has fewer of them than others of the fused operator")
    return Expanded(tuple(steps), tuple(returns), tuple(types), space, tuple(moved))


def loaded_bytes(expanded: Expanded, given: Sequence[TensorType], in_tiles: bool = False) -> list[float]:
    """Return the bytes that a kernel loads of each of its operands.

    Reads at several places count once if these are visited in memory order, and more if memory transfers more than
    needed; in_tiles: it uses all transferred bytes, as a kernel does that only moves.
    """
    plain = {index for step in expanded.steps for kind, index in step.operands if kind == "x"}
    moved: list[list[tuple[float, float]]] = [[] for _ in given]
    for each in expanded.moved:
        if each.operand >= 0:
            nbytes, times = each.loaded(given[each.operand])
            moved[each.operand].append((nbytes, 1.0 if in_tiles else times))
    found: list[float] = []
    for number, (type, reads) in enumerate(zip(given, moved, strict=True)):
        total = sum(nbytes * times for nbytes, times in reads) + type.nbytes * (number in plain)
        found.append(total if any(times > 1 for _, times in reads) else min(total, type.nbytes))
    return found


def has_moves(op: FusedElementwise) -> bool:
    """Whether a line moves elements."""
    return any(moves_elements(step.op) for step in steps_of(op))


def moved_operands(op: FusedElementwise) -> set[int]:
    """Return the operands of which some line reads other positions than its own, so that no result may overwrite
    them."""
    steps = steps_of(op)
    found = set[int]()
    behind = {i for i, step in enumerate(steps) if moves_elements(step.op)}
    for number in reversed(range(len(steps)) if behind else ()):
        if number in behind:
            found.update(index for kind, index in steps[number].operands if kind == "x")
            behind.update(index for kind, index in steps[number].operands if kind == "t")
    return found


def replaceable_operands(op: FusedElementwise) -> list[set[int]]:
    """Return the operands that each result may overwrite: those it is computed from. None for a reduction, even with as
    many elements, because reductions are stored while other results are still being computed."""
    lines = steps_of(op)
    needed: list[set[int]] = []
    for line in lines:
        needed.append(set[int]().union(*({i} if kind == "x" else needed[i] for kind, i in line.operands)))
    return [set() if lines[line].reduces else needed[line] for line in op.returns]
