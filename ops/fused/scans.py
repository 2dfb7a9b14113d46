"""Scans with the elementwise operators before them, with one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, Type, dtype_of
from mspc.ops.device import Array, Device, Launch
from mspc.ops.fused.body import BodyLine, RankOp, operand_count, read_body, read_line, types_of_lines
from mspc.ops.fused.elementwise import expanded_lines
from mspc.ops.fused.kernel import plain_kernel
from mspc.ops.math.scans import ScanOp
from mspc.ops.op import ArrayBackend


class FusedScan(RankOp):
    """A scan, the last line of `body`, of operands that the lines before it compute element by element."""

    body: tuple[str, ...] = ()
    any_types = True
    widens = False  # its lines do

    def __post_init__(self) -> None:
        self.parts()

    def parts(self) -> tuple[ScanOp, BodyLine, tuple[BodyLine, ...], tuple[int, ...]]:
        """Return the scan, its line, the lines before it, and those that it reads."""
        last = read_line(self.body[-1] if self.body else "")
        if not isinstance(last.op, ScanOp):
            raise MspcError(f"{self.name} ends with {last.op.name}, which is no scan")
        read = tuple(dict.fromkeys(i for kind, i in last.operands if kind == "t"))
        return last.op, last, read_body(self.body[:-1], read, operand_count([last])), read

    def operand_types(self, *types: TensorType) -> list[TensorType]:
        """Return the types of the scan's operands."""
        _, last, lines, _ = self.parts()
        count = operand_count([*lines, last])
        if len(types) != count:
            raise MspcError(f"{self.name} takes {count} tensors, not {len(types)}", code="E0301")
        made = types_of_lines(lines, types)
        return [(types if kind == "x" else made)[i] for kind, i in last.operands]

    def infer(self, *types: Any) -> Type:
        return self.parts()[0].infer(*self.operand_types(*types))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        scan, last, lines, read = self.parts()
        chain, whole, count = plain_kernel(be, lines, read), scan.kernel(be), operand_count(lines)

        def kernel(*inputs: Any) -> Any:
            made = chain(*inputs[:count])
            found = dict(zip(read, made if isinstance(made, tuple) else (made,), strict=True))
            return whole(*(inputs[i] if kind == "x" else found[i] for kind, i in last.operands))

        return kernel

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        from mspc.ops.cuda.chain import computed_operands  # late: only a GPU needs it

        scan, last, lines, read = self.parts()
        given = tuple(TensorType(dtype_of(array.dtype), tuple(array.shape)) for array in inputs)
        steps, places, types, space, moved = expanded_lines(lines, read, given)
        own = [(kind, places[read.index(i)] if kind == "t" else i) for kind, i in last.operands]
        first = self.operand_types(*given)[0]
        axis = scan.slices(first.shape).axis
        operands = computed_operands(own, steps, types, space, inputs, moved, first, axis)
        return None if operands is None else scan.launched(device, out, operands)
