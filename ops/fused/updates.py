"""One operator that updates parameters by elementwise operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, FLOAT32, HALVES, DType, TensorType, TupleType, Type
from mspc.ops import gpu
from mspc.ops.cpu.blocks import parts_of
from mspc.ops.device import Array, Copy, Device, Launch, computing_type
from mspc.ops.fused.body import BodyLine, RankOp, line_of, member_of_line, operand_count, read_body, types_of_lines
from mspc.ops.fused.kernel import plain_kernel
from mspc.ops.math.arithmetic import Add, Mul, Neg, Sub
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import ArrayBackend, NotDifferentiable, sample
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.reshape import Cast

_TWO = ("Mul(x1, x2)", "Add(t0, x3)", "Mul(x3, x2)", "Sub(x0, t2)")


class FusedUpdate(Update):
    """Operand i becomes the result of line `writes[i]` of `body`, once all operands are read; see `FusedElementwise`.

    numbers: operands that are scalars; all others have the shape of operand 0. Results are the new values of the first
    operands, as many as `writes` are.
    """

    body: tuple[str, ...] = (line_of(Identity(), [("x", 1)]),)
    writes: tuple[int, ...] = (0,)
    numbers: tuple[int, ...] = ()
    any_types = True
    widens = False  # its lines do, each rounding its own result
    bprop = NotDifferentiable("operators are fused after all gradients are taken")
    samples = (
        sample((8, 16), (8, 16), gradient=False, body=("Mul(x0, x1)",)),
        sample((16,), (16,), gradient=False, body=("Mul(x0, x1)",)),
        sample((8, 16), (8, 16), (), (8, 16), gradient=False, body=_TWO, writes=(1, 3), numbers=(2,)),
        sample((16,), (16,), (), (16,), gradient=False, body=_TWO, writes=(1, 3), numbers=(2,)),
    )

    def __post_init__(self) -> None:
        count = len(self.operands)
        if len(self.writes) > count or not all(len(self.writes) <= index < count for index in self.numbers):
            raise MspcError(f"{self.name} of {count} operands cannot have writes {self.writes}, numbers {self.numbers}")

    @property
    def operands(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on the lines
        count = max(len(self.writes), operand_count(self.lines()))
        return tuple(f"x{index}" for index in range(count))

    def lines(self) -> tuple[BodyLine, ...]:
        return read_body(self.body, self.writes, len(self.writes))

    @property
    def scalars(self) -> tuple[int, ...]:  # type: ignore[override]  # said by an attribute
        return self.numbers

    @property
    def outputs(self) -> int:  # type: ignore[override]  # depends on an attribute
        return len(self.writes)

    @property
    def mutates(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on an attribute
        return tuple(range(len(self.writes)))

    copied = (0,)

    def infer(self, *types: Any) -> Type:
        super().parsed_rule(*types)
        found = types_of_lines(self.lines(), types)
        for index, line in enumerate(self.writes):
            if found[line] != types[index]:
                raise MspcError(f"{self.name}: {self.body[line]!r} gives {found[line]}, not {types[index]}")
        return types[0] if len(self.writes) == 1 else TupleType(tuple(types[: len(self.writes)]))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        steps, count = self.lines(), len(self.writes)
        read = sorted({index for step in steps for kind, index in step.operands if kind == "x"})
        places = {index: place for place, index in enumerate(read)}
        steps = tuple(
            BodyLine(step.op, tuple((kind, places[i] if kind == "x" else i) for kind, i in step.operands))
            for step in steps
        )
        plain = plain_kernel(be, steps, self.writes)

        def kernel(*inputs: Any) -> Any:
            changed = inputs[:count]
            return plain(*(inputs[index] for index in read), out=changed if count > 1 else changed[0])

        return kernel

    def statements(self, dtypes: Sequence[DType]) -> str:
        from mspc.ops.cuda.elementwise import expression  # late: only a GPU needs it

        if not has_one_type(dtypes, self.numbers):
            return ""
        given = [TensorType(dtype, ()) for dtype in dtypes]
        lines: list[str] = []
        types = types_of_lines(steps := self.lines(), given)
        for number, (step, type) in enumerate(zip(steps, types, strict=True)):
            names = [f"{kind}{index}" for kind, index in step.operands]
            kinds = [(given if kind == "x" else types)[index] for kind, index in step.operands]
            computed = computing_type(type.dtype)
            lines.append(f"const {computed} t{number} = ({computed})({expression(step.op, names, kinds, type.dtype)});")
        return "\n".join([*lines, *(f"x{index} = t{line};" for index, line in enumerate(self.writes))])


def has_one_type(dtypes: Sequence[DType], numbers: Sequence[int]) -> bool:
    """Whether elements of all operands are computed with in one type; those of scalars may be Bool, too."""
    kinds = {computing_type(dtype) for i, dtype in enumerate(dtypes) if i not in numbers or dtype != BOOL}
    return len(kinds) == 1 and kinds.issubset(("float", "double"))


# This module finds out whether an update leaves elements unchanged, from its lines.


_ZERO, _LESS_ZERO = "+0", "-0"
_NUMBERS = ("number", "-number")
_SIGNS = {_ZERO: _LESS_ZERO, _LESS_ZERO: _ZERO, "number": "-number", "-number": "number"}


def unchanged_at_zero(update: FusedUpdate, gradient: int) -> bool:
    """Return True if every element stays as it is, to the bit, if the operand `gradient` is +0, as an empty sum is.

    Scalars count as finite and not negative. With a negative learning rate the dense update makes a parameter of -0 +0,
    and with one that is infinite or NaN it makes every element NaN: these are then left as they are.
    """
    known: dict[tuple[str, int], str] = {("x", index): f"x{index}" for index in range(len(update.operands))}
    known |= dict.fromkeys((("x", index) for index in update.numbers), "number")
    known["x", gradient] = _ZERO
    for number, line in enumerate(update.lines()):
        known["t", number] = _value(line, [known[place] for place in line.operands])
    return all(known["t", line] == f"x{index}" for index, line in enumerate(update.writes))


def _value(line: BodyLine, given: list[str]) -> str:
    """Return the value of a line: a zero of a sign, a number of a sign, an operand as it is, or "" if unknown.

    By IEEE 754: x - +0 and x + -0 are x, also if x is -0 or NaN; a finite number of no sign leaves a zero its own.
    """
    kind = type(line.op)  # others are computed in some other way, as an Add with a factor is
    if kind is Identity:
        return given[0]
    if isinstance(line.op, Cast):
        return given[0] if given[0] in _SIGNS and line.op.dst_type.is_float else ""
    if kind is Neg:
        return _SIGNS.get(given[0], "")
    if kind is Mul:
        return _product(given[0], given[1])
    if kind is Sub:
        return given[0] if given[1] == _ZERO else ""
    if kind is Add and _LESS_ZERO in given:
        return given[1] if given[0] == _LESS_ZERO else given[0]
    return ""


def _product(first: str, second: str) -> str:
    if first in _NUMBERS:
        first, second = second, first
    if first not in _SIGNS or second not in _NUMBERS:
        return ""
    return first if second == "number" else _SIGNS[first]


# This operator updates many parameters by one optimizer.


class GroupedUpdate(RankOp):
    """`count` times the operator `update`, written as a line without operands: `AssignAdd()`.

    Operands are those of the first member, then those of the second, and so on; the result is the tuple of the members'
    results (all of them if a member has several). A gradient may be Float16 or BFloat16 if its parameter is Float32: it
    is widened first.
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
        """Return `count` updates by `op`."""
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
        """Return the operands of every member."""
        return [operands[start : start + self.width] for start in range(0, len(operands), self.width)]

    def infer(self, *types: Any) -> Type:
        if len(types) != self.count * self.width:
            raise MspcError(f"{self.name} takes {self.count * self.width} tensors, not {len(types)}", code="E0301")
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
                results += parts_of(run(*operands))
            return tuple(results)

        return kernel

    def launch(
        self, device: Device, out: Any, *inputs: Array, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        found = [copies.get(i * self.width) for i in range(self.count)] if copies else ()
        return gpu.update.launch_updates(device, self.member, self.members(inputs), found)


def update_of(line: str) -> Update:
    """Return the operator of a line without operands. Raise MspcError for text that is no update of a parameter."""
    return member_of_line(line, Update, "is no update of a parameter", "GroupedUpdate: ")


@functools.lru_cache(maxsize=1024)
def _of_members(line: str, count: int, kind: str) -> tuple[int, ...]:
    """Return the operands of all `count` members that are of a kind, `mutates` or `copied`, in each of them."""
    member = update_of(line)
    width = len(member.operands)
    return tuple(start + index for start in range(0, count * width, width) for index in getattr(member, kind))


def member_of(op: Any) -> Update | None:
    """Return the update that an operator is, or that every member of a group is; None for others."""
    found = op.member if isinstance(op, GroupedUpdate) else op
    return found if isinstance(found, Update) else None


def gradient_index(op: Update) -> int | None:
    """Return the operand that may be narrower than the parameter, or None."""
    return op.operands.index("gradient") if "gradient" in op.operands else None


def widened(op: Update, types: Sequence[TensorType], index: int) -> TensorType:
    """Return the type to which a member converts an operand."""
    type = types[index]
    narrow = index == gradient_index(op) and type.dtype in HALVES and types[0].dtype == FLOAT32
    return TensorType(FLOAT32, type.shape) if narrow else type
