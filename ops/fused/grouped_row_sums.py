"""This operator adds rows up by integers for many tables at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.device import Array, Device, Launch
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.tensor.embedding import RowSums


class GroupedRowSums(Op):
    """Every one of `sums`, written as lines without operands: `UnsortedSegmentSum(num_segments=8, offset=0)`.

    Operands are the rows and the integers of the first member, then those of the second, and so on; the result is the
    tuple of the members' results.
    """

    sums: tuple[str, ...] = ()
    traffic = "row_sums"
    bprop = NotDifferentiable("operators are fused after all gradients are taken")

    def __post_init__(self) -> None:
        if not self.sums:
            raise MspcError("GroupedRowSums has no members; it needs at least one")
        for line in self.sums:
            sum_of(line)

    @classmethod
    def of(cls, members: Sequence[RowSums]) -> GroupedRowSums:
        """These operators as one."""
        return cls(tuple(line_of(op, ()) for op in members))

    def members(self, operands: Sequence[Any]) -> list[tuple[RowSums, Sequence[Any]]]:
        """The operators, each with its operands."""
        return [(sum_of(line), operands[2 * i : 2 * i + 2]) for i, line in enumerate(self.sums)]

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")

    def infer(self, *types: Any) -> Type:
        if len(types) != 2 * len(self.sums):
            raise MspcError(f"{self.name} takes {2 * len(self.sums)} tensors, not {len(types)}")
        found: list[TensorType] = []
        for op, operands in self.members(types):
            inferred = op.infer(*operands)
            assert isinstance(inferred, TensorType)
            found.append(inferred)
        return TupleType(tuple(found))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        limits = [op.index_limits(*operands)[1] for op, operands in self.members(types)]
        return {2 * i + 1: limit for i, limit in enumerate(limits)}

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        kernels = [sum_of(line).kernel(be) for line in self.sums]
        return lambda *inputs: tuple(run(*inputs[2 * i : 2 * i + 2]) for i, run in enumerate(kernels))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.row_names import NamedRows  # late, as all that only a GPU needs
        from mspc.ops.cuda.row_sums import add_rows_of_several

        several = [
            NamedRows(op.lookup(rows.shape, ids.shape), rows, ids, made)
            for (op, (rows, ids)), made in zip(self.members(inputs), out, strict=True)
        ]
        return add_rows_of_several(device, "row_sums", several)


@functools.lru_cache(maxsize=1024)
def sum_of(line: str) -> RowSums:
    """The operator of a line without operands. Raises MspcError for text that is no sum of rows by integers."""
    step = read_line(line)
    if step.operands:
        raise MspcError(f"{line!r} names operands; write {step.op.name}(key=value) alone")
    if not isinstance(step.op, RowSums):
        raise MspcError(f"{step.op.name} does not add rows up by integers")
    return step.op
