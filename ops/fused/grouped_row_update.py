"""This operator updates the rows of tables that integers name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.device import Array, Copy, Device, Launch
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.fused.grouped_row_sums import sum_of
from mspc.ops.fused.unchanged import unchanged_at_zero
from mspc.ops.fused.update import FusedUpdate
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.tensor.embedding import RowSums


class GroupedRowUpdate(Op):
    """For every one of `sums` the operator `update`, whose operand `gradient` is that sum. Both are written as lines
    without operands: `FusedUpdate(body=(...), ...)`, `GatherGrad(size=8, ...)`.

    The update changes nothing where its gradient is 0, so that rows which no integer names are neither read nor
    written. Operands are those of the first member, with the rows and the integers in place of the gradient, then those
    of the second, and so on; the result is the tuple of the members' results.
    """

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
            raise MspcError(f"GroupedRowUpdate: {self.update} changes parameters where operand {self.gradient} is 0")

    @classmethod
    def of(cls, update: FusedUpdate, gradient: int, sums: Sequence[RowSums]) -> GroupedRowUpdate:
        """The update of a table for each of these sums."""
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
        """For every member the sum, the update's operands with None for the gradient, and the rows and integers."""
        found: list[tuple[RowSums, list[Any], Sequence[Any]]] = []
        for m, line in enumerate(self.sums):
            own = operands[m * self.width : (m + 1) * self.width]
            others = [*own[: self.gradient], None, *own[self.gradient + 2 :]]
            found.append((sum_of(line), others, own[self.gradient : self.gradient + 2]))
        return found

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        """As much of a table as integers name at most, and all rows and integers."""
        found = 0.0
        for _, operands, summed in self.members(types):
            share = min(1.0, math.prod(summed[1].shape) / max(1, operands[0].shape[0]))
            written = operands[: len(self.member.writes)]
            found += share * sum(type.nbytes for type in (*operands, *written) if type is not None)
            found += sum(type.nbytes for type in summed)
        return int(found)

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")

    def infer(self, *types: Any) -> Type:
        if len(types) != len(self.sums) * self.width:
            raise MspcError(f"{self.name} takes {len(self.sums) * self.width} tensors, not {len(types)}")
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
                result = update(*operands)
                results += result if isinstance(result, tuple) else (result,)
            return tuple(results)

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(
        self, device: Device, inputs: Sequence[Array], out: Any, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        from mspc.ops.cuda.row_names import NamedRows  # late, as all that only a GPU needs
        from mspc.ops.cuda.row_updates import UpdatedRows, update_rows

        several: list[UpdatedRows] = []
        for m, (op, operands, (rows, ids)) in enumerate(self.members(inputs)):
            summed = NamedRows(op.lookup(rows.shape, ids.shape), rows, ids, operands[0])
            several.append(UpdatedRows(summed, operands, (copies or {}).get(m * self.width)))
        return update_rows(device, self.member, self.gradient, several)


@functools.lru_cache(maxsize=1024)
def fused_update_of(line: str) -> FusedUpdate:
    """The update of a line without operands. Raises MspcError for text that is none."""
    step = read_line(line)
    if step.operands or not isinstance(step.op, FusedUpdate):
        raise MspcError(f"GroupedRowUpdate: {line!r} is no FusedUpdate(key=value) without operands")
    return step.op
