"""This operator updates parameters by operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, DType, TensorType, TupleType, Type
from mspc.ops.device import computing_type
from mspc.ops.fused.body import BodyLine, line_of, operand_count, read_body, types_of_lines
from mspc.ops.fused.kernel import blocked_kernel, plain_kernel
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import ArrayBackend, NotDifferentiable, sample
from mspc.ops.optim.optimizer import Update

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
        """The lines of the body."""
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
        blocked, plain = blocked_kernel(be, steps, self.writes), plain_kernel(be, steps, self.writes)

        def kernel(*inputs: Any) -> Any:
            changed, operands = inputs[:count], [inputs[index] for index in read]
            if blocked is not None:
                return blocked(*operands, out=changed if count > 1 else changed[0])
            made = plain(*operands)
            for target, value in zip(changed, made if count > 1 else (made,), strict=True):
                target[...] = value
            return changed if count > 1 else changed[0]

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

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
