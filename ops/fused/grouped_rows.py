"""Operators that look rows up, add them up, or update them, by integers for many tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import DType, TensorType, TupleType, Type
from mspc.ops import gpu
from mspc.ops.cpu.blocks import parts_of
from mspc.ops.device import Array, Copy, Device, Launch
from mspc.ops.fused.body import RankOp, line_of, member_of_line, read_line
from mspc.ops.fused.updates import FusedUpdate, unchanged_at_zero
from mspc.ops.op import ArrayBackend, NotDifferentiable
from mspc.ops.tensor.embedding import RowsByIntegers, RowSums
from mspc.ops.tensor.reshape import Cast


class _GroupedRows(RankOp, abstract=True):
    """Every one of `lines`, operators on rows by integers, written without operands: `Gather(axis=0, ...)`.

    Operands are the rows or the table and the integers of the first member, then those of the second, and so on; the
    result is the tuple of the members' results.
    """

    @property
    def lines(self) -> tuple[str, ...]:
        """The members' lines."""
        raise NotImplementedError

    @staticmethod
    def member(line: str) -> Any:
        """Return the operator of a line. Raise MspcError if it is none of the group's."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        if not self.lines:
            raise MspcError(f"{self.name} has no members; it needs at least one")
        for line in self.lines:
            self.member(line)

    def members(self, operands: Sequence[Any]) -> list[tuple[Any, Sequence[Any]]]:
        """Return the operators, each with its operands."""
        return [(self.member(line), operands[2 * i : 2 * i + 2]) for i, line in enumerate(self.lines)]

    def infer(self, *types: Any) -> Type:
        if len(types) != 2 * len(self.lines):
            raise MspcError(f"{self.name} takes {2 * len(self.lines)} tensors, not {len(types)}", code="E0301")
        return TupleType(tuple(self.stored(op.infer(*operands)) for op, operands in self.members(types)))

    def stored(self, type: TensorType) -> TensorType:
        """Return the type in which a member's result is stored."""
        return type

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        limits = [op.index_limits(*operands)[1] for op, operands in self.members(types)]
        return {2 * i + 1: limit for i, limit in enumerate(limits)}

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        kernels = [self.member(line).kernel(be) for line in self.lines]
        return lambda *inputs: tuple(run(*inputs[2 * i : 2 * i + 2]) for i, run in enumerate(kernels))

    def named_rows(self, inputs: Sequence[Array], out: Any) -> list[Any]:
        """Return the members' rows as kernels take them."""
        return [
            gpu.rows_by_number.NamedRows(op.lookup(rows.shape, ids.shape), rows, ids, made)
            for (op, (rows, ids)), made in zip(self.members(inputs), out, strict=True)
        ]


class GroupedRowSums(_GroupedRows):
    """Sums of rows by integers for many tables: `sums` are lines as `UnsortedSegmentSum(num_segments=8, offset=0)`."""

    sums: tuple[str, ...] = ()
    traffic = "row_sums"

    @classmethod
    def of(cls, members: Sequence[RowSums]) -> GroupedRowSums:
        """Return these operators as one."""
        return cls(tuple(line_of(op, ()) for op in members))

    @property
    def lines(self) -> tuple[str, ...]:
        return self.sums

    @staticmethod
    def member(line: str) -> Any:
        return sum_of(line)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.rows_by_number.add_rows_of_several(device, "row_sums", self.named_rows(inputs, out))


def sum_of(line: str) -> RowSums:
    """Return the operator of a line without operands. Raise MspcError for text that is no sum of rows by integers."""
    return member_of_line(line, RowSums, "does not add rows up by integers")


class GroupedLookups(_GroupedRows):
    """Lookups of rows in many tables: `lookups` are lines as `Gather(batch_dims=0, axis=0, ...)`.

    dst_type: the floating-point type to which the results are rounded; None for the tables'.
    """

    lookups: tuple[str, ...] = ()
    dst_type: DType | None = None
    omitted = ("dst_type",)
    refuses_indices = True

    @classmethod
    def of(cls, members: Sequence[RowsByIntegers], dst_type: DType | None) -> GroupedLookups:
        """Return these operators as one."""
        return cls(tuple(line_of(op, ()) for op in members), dst_type)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.lookups

    @staticmethod
    def member(line: str) -> Any:
        return member_of_line(line, RowsByIntegers, "does not look rows up by integers")

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        triples = zip(types[::2], types[1::2], results, strict=True)
        return sum(min(table.nbytes, made.nbytes) + ids.nbytes + made.nbytes for table, ids, made in triples)

    def stored(self, type: TensorType) -> TensorType:
        if self.dst_type is not None and not (type.dtype.is_float and self.dst_type.is_float):
            raise MspcError(f"{self.name}: {type.dtype} is not rounded to {self.dst_type}")
        return TensorType(self.dst_type or type.dtype, type.shape)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        look_up = super().kernel(be)
        if self.dst_type is None:
            return look_up
        cast = Cast(self.dst_type).kernel(be)
        return lambda *inputs: tuple(map(cast, look_up(*inputs)))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.rows_by_number.look_up(device, self.named_rows(inputs, out))


# This operator updates the rows of tables that integers name.


class GroupedRowUpdate(RankOp):
    """The operator `update` applied to every one of `sums`, with that sum as its operand `gradient`. Both are lines
    without operands: `FusedUpdate(body=(...), ...)`, `GatherGrad(size=8, ...)`. The update must change nothing for a
    gradient of 0, so that rows without an index are neither read nor written. Operands are those of the first member,
    with rows and indices in place of the gradient, then those of the second, and so on; the result is the tuple of the
    members' results."""

    update: str = ""
    gradient: int = 1
    sums: tuple[str, ...] = ()
    traffic = "updates"
    has_side_effect = True
    bprop = NotDifferentiable("it changes parameters")

    def __post_init__(self) -> None:
        if not self.sums:
            raise MspcError("GroupedRowUpdate has no members; it needs at least one")
        for line in self.sums:
            sum_of(line)
        update = fused_update_of(self.update)
        if not len(update.writes) <= self.gradient < len(update.operands) or self.gradient in update.numbers:
            raise MspcError(f"GroupedRowUpdate: operand {self.gradient} of {self.update} can be no gradient")
        if not unchanged_at_zero(update, self.gradient):
            raise MspcError(f"GroupedRowUpdate: {self.update} changes parameters although operand {self.gradient} is 0")

    @classmethod
    def of(cls, update: FusedUpdate, gradient: int, sums: Sequence[RowSums]) -> GroupedRowUpdate:
        """Return the update of a table for each of these sums."""
        return cls(line_of(update, ()), gradient, tuple(line_of(op, ()) for op in sums))

    @property
    def member(self) -> FusedUpdate:
        """The operator of every member."""
        return fused_update_of(self.update)

    @property
    def width(self) -> int:
        """Operands of a member."""
        return len(self.member.operands) + 1

    @property
    def mutates(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the members
        written = range(len(self.member.writes))
        return tuple(m * self.width + index for m in range(len(self.sums)) for index in written)

    @property
    def copied(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the members
        return tuple(range(0, len(self.sums) * self.width, self.width))

    def members(self, operands: Sequence[Any]) -> list[tuple[RowSums, list[Any], Sequence[Any]]]:
        """Return, for every member, the sum, the update's operands with None for the gradient, and the rows and
        integers."""
        found: list[tuple[RowSums, list[Any], Sequence[Any]]] = []
        for m, line in enumerate(self.sums):
            own = operands[m * self.width : (m + 1) * self.width]
            others = [*own[: self.gradient], None, *own[self.gradient + 2 :]]
            found.append((sum_of(line), others, own[self.gradient : self.gradient + 2]))
        return found

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        """Return the bytes of as much of a table as integers name at most, and of all rows and integers."""
        found = 0.0
        for _, operands, summed in self.members(types):
            share = min(1.0, math.prod(summed[1].shape) / max(1, operands[0].shape[0]))
            written = operands[: len(self.member.writes)]
            found += share * sum(type.nbytes for type in (*operands, *written) if type is not None)
            found += sum(type.nbytes for type in summed)
        return int(found)

    def infer(self, *types: Any) -> Type:
        if len(types) != len(self.sums) * self.width:
            raise MspcError(f"{self.name} takes {len(self.sums) * self.width} tensors, not {len(types)}", code="E0301")
        found: list[TensorType] = []
        for op, operands, summed in self.members(types):
            operands[self.gradient] = op.infer(*summed)
            lookup = op.lookup(summed[0].shape, summed[1].shape)
            if lookup.batch != 1 or lookup.middle != 1:
                raise MspcError(f"{self.name}: {op.name} does not add up along the first axis")
            self.member.infer(*operands)
            found += operands[: len(self.member.writes)]
        return TupleType(tuple(found))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        places = [m * self.width + self.gradient + 1 for m in range(len(self.sums))]
        return {i: op.index_limits(*own)[1] for i, (op, _, own) in zip(places, self.members(types), strict=True)}

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        update, sums = self.member.kernel(be), [sum_of(line).kernel(be) for line in self.sums]

        def kernel(*inputs: Any) -> tuple[Any, ...]:
            results: list[Any] = []
            for add, (_, operands, summed) in zip(sums, self.members(inputs), strict=True):
                operands[self.gradient] = add(*summed)
                results += parts_of(update(*operands))
            return tuple(results)

        return kernel

    def launch(
        self, device: Device, out: Any, *inputs: Array, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        several: list[gpu.rows_by_number.UpdatedRows] = []
        for m, (op, operands, (rows, ids)) in enumerate(self.members(inputs)):
            summed = gpu.rows_by_number.NamedRows(op.lookup(rows.shape, ids.shape), rows, ids, operands[0])
            several.append(gpu.rows_by_number.UpdatedRows(summed, operands, (copies or {}).get(m * self.width)))
        return gpu.rows_by_number.update_rows(device, self.member, self.gradient, several)


@functools.lru_cache(maxsize=1024)
def fused_update_of(line: str) -> FusedUpdate:
    """Return the update of a line without operands. Raise MspcError for text that is none."""
    step = read_line(line)
    if step.operands or not isinstance(step.op, FusedUpdate):
        raise MspcError(f"GroupedRowUpdate: {line!r} is no FusedUpdate(key=value) without operands")
    return step.op
