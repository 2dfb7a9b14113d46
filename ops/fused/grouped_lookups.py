"""This operator looks rows up in many tables at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import DType, TensorType, TupleType, Type
from mspc.ops.device import Array, Device, Launch
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.tensor.embedding import RowsByIntegers
from mspc.ops.tensor.reshape import Cast


class GroupedLookups(Op):
    """Every one of `lookups`, written as lines without operands: `Gather(batch_dims=0, axis=0, ...)`.

    Operands are the table and the integers of the first member, then those of the second, and so on; the result is the
    tuple of the members' results. dst_type: the floating-point type to which they are rounded; None for the tables'.
    """

    lookups: tuple[str, ...] = ()
    dst_type: DType | None = None
    omitted = ("dst_type",)
    bprop = NotDifferentiable("operators are fused after all gradients are taken")

    def __post_init__(self) -> None:
        if not self.lookups:
            raise MspcError("GroupedLookups has no members; it needs at least one")
        for line in self.lookups:
            lookup_of(line)

    @classmethod
    def of(cls, members: Sequence[RowsByIntegers], dst_type: DType | None) -> GroupedLookups:
        """These operators as one."""
        return cls(tuple(line_of(op, ()) for op in members), dst_type)

    def members(self, operands: Sequence[Any]) -> list[tuple[RowsByIntegers, Sequence[Any]]]:
        """The operators, each with its operands."""
        return [(lookup_of(line), operands[2 * i : 2 * i + 2]) for i, line in enumerate(self.lookups)]

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        triples = zip(types[::2], types[1::2], results, strict=True)
        return sum(min(table.nbytes, made.nbytes) + ids.nbytes + made.nbytes for table, ids, made in triples)

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")

    def infer(self, *types: Any) -> Type:
        if len(types) != 2 * len(self.lookups):
            raise MspcError(f"{self.name} takes {2 * len(self.lookups)} tensors, not {len(types)}")
        found: list[TensorType] = []
        for op, operands in self.members(types):
            inferred = op.infer(*operands)
            assert isinstance(inferred, TensorType)
            if self.dst_type is not None and not (inferred.dtype.is_float and self.dst_type.is_float):
                raise MspcError(f"{self.name}: {inferred.dtype} is not rounded to {self.dst_type}")
            found.append(TensorType(self.dst_type or inferred.dtype, inferred.shape))
        return TupleType(tuple(found))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        limits = [op.index_limits(*operands)[1] for op, operands in self.members(types)]
        return {2 * i + 1: limit for i, limit in enumerate(limits)}

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        kernels = [lookup_of(line).kernel(be) for line in self.lookups]
        cast = None if self.dst_type is None else Cast(self.dst_type).kernel(be)

        def kernel(*inputs: Any) -> tuple[Any, ...]:
            made = (run(*inputs[2 * i : 2 * i + 2]) for i, run in enumerate(kernels))
            return tuple(made if cast is None else map(cast, made))

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.lookups import look_up  # late, as all that only a GPU needs
        from mspc.ops.cuda.row_names import NamedRows

        return look_up(device, [
            NamedRows(op.lookup(table.shape, ids.shape), table, ids, made)
            for (op, (table, ids)), made in zip(self.members(inputs), out, strict=True)
        ])  # fmt: skip


@functools.lru_cache(maxsize=1024)
def lookup_of(line: str) -> RowsByIntegers:
    """The operator of a line without operands. Raises MspcError for text that is no lookup of rows."""
    step = read_line(line)
    if step.operands:
        raise MspcError(f"{line!r} names operands; write {step.op.name}(key=value) alone")
    if not isinstance(step.op, RowsByIntegers):
        raise MspcError(f"{step.op.name} does not look rows up by integers")
    return step.op
