"""This operator updates many parameters by one optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, HALVES, TensorType, TupleType, Type
from mspc.ops.device import Array, Copy, Device, Launch
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.optim.optimizer import Update


class GroupedUpdate(Op):
    """`count` times the operator `update`, written as a line without operands: `AssignAdd()`.

    Operands are those of the first member, then those of the second, and so on; the result is the tuple of the
    members' results (all of them where a member has several). A gradient may be Float16 or BFloat16 where its
    parameter is Float32: it is widened first.
    """

    update: str = ""
    count: int = 1
    traffic = "updates"
    has_side_effect = True
    bprop = NotDifferentiable("it changes parameters")

    def __post_init__(self) -> None:
        update_of(self.update)
        if self.count < 1:
            raise MspcError(f"GroupedUpdate has {self.count} members; it needs at least one")

    @classmethod
    def of(cls, op: Update, count: int) -> GroupedUpdate:
        """`count` updates by `op`."""
        return cls(line_of(op, ()), count)

    @property
    def member(self) -> Update:
        """The operator of every member."""
        return update_of(self.update)

    @property
    def width(self) -> int:
        """Operands of a member."""
        return len(self.member.operands)

    @property
    def mutates(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the members
        return _of_members(self.update, self.count, "mutates")

    @property
    def copied(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the members
        return _of_members(self.update, self.count, "copied")

    def members(self, operands: Sequence[Any]) -> list[Sequence[Any]]:
        """The operands of every member."""
        return [operands[start : start + self.width] for start in range(0, len(operands), self.width)]

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")

    def infer(self, *types: Any) -> Type:
        if len(types) != self.count * self.width:
            raise MspcError(f"{self.name} takes {self.count * self.width} tensors, not {len(types)}")
        found: list[TensorType] = []
        for operands in self.members(types):
            inferred = self.member.infer(*[widened(self.member, operands, i) for i in range(self.width)])
            found += inferred.elements if isinstance(inferred, TupleType) else (cast(TensorType, inferred),)
        return TupleType(tuple(found))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        op, run, members = self.member, self.member.kernel(be), self.members
        place = gradient_index(op)

        def kernel(*inputs: Any) -> tuple[Any, ...]:
            results: list[Any] = []
            for operands in members(inputs):
                if place is not None and operands[place].dtype != operands[0].dtype:
                    operands = list(operands)
                    operands[place] = operands[place].astype(operands[0].dtype)
                result = run(*operands)
                results += result if isinstance(result, tuple) else (result,)
            return tuple(results)

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(
        self, device: Device, inputs: Sequence[Array], out: Any, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        from mspc.ops.cuda.update import launch_updates  # late: only a GPU needs it

        found = [copies.get(i * self.width) for i in range(self.count)] if copies else ()
        return launch_updates(device, self.member, self.members(inputs), found)


@functools.lru_cache(maxsize=1024)
def update_of(line: str) -> Update:
    """The operator of a line without operands. Raises MspcError for text that is no update of a parameter."""
    step = read_line(line)
    if step.operands:
        raise MspcError(f"GroupedUpdate: {line!r} names operands; write {step.op.name}(key=value) alone")
    if not isinstance(step.op, Update):
        raise MspcError(f"GroupedUpdate: {step.op.name} is no update of a parameter")
    return step.op


@functools.lru_cache(maxsize=1024)
def _of_members(line: str, count: int, kind: str) -> tuple[int, ...]:
    """The operands of all of so many members that are of a kind, `mutates` or `copied`, in each of them."""
    member = update_of(line)
    width = len(member.operands)
    return tuple(start + index for start in range(0, count * width, width) for index in getattr(member, kind))


def member_of(op: Any) -> Update | None:
    """The update that an operator is, or that every member of a group is; None for others."""
    found = op.member if isinstance(op, GroupedUpdate) else op
    return found if isinstance(found, Update) else None


def gradient_index(op: Update) -> int | None:
    """The operand that may be narrower than the parameter; None: there is none."""
    return op.operands.index("gradient") if "gradient" in op.operands else None


def widened(op: Update, types: Sequence[TensorType], index: int) -> TensorType:
    """The type in which a member takes an operand."""
    type = types[index]
    narrow = index == gradient_index(op) and type.dtype in HALVES and types[0].dtype == FLOAT32
    return TensorType(FLOAT32, type.shape) if narrow else type
