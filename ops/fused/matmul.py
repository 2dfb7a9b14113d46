"""A matmul with its epilogue: an addend, a bias, GeLU, or a multiplication by GeLU's derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, HALVES, TensorType, TupleType, Type, dtype_of
from mspc.ops.device import Array, Device, Launch, in_order
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.nn.activation import GeLU, GeLUGrad
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.sharding.rules import Rule


class FusedMatMul(Op):
    """activation(x @ y + addend + bias) over the last two dimensions. Operands are x, y, then addend (of the result's
    shape), bias (of its last dimension) and before, as far as there are any.

    activation: "" for none; "gelu"; or "gelu_gradient", which multiplies the matmul by GeLU's derivative at `before`.
    keeps_before: the result is a tuple with the operand of GeLU too, for the gradient. wide: x and y are halves; the
    matmul is not rounded to them, and the result, addend and bias are Float32.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    addend: bool = False
    bias: bool = False
    activation: str = ""
    keeps_before: bool = False
    wide: bool = False
    omitted = ("addend", "bias", "activation", "keeps_before", "wide")
    bprop = NotDifferentiable("operators are fused after all gradients are taken")
    samples = (
        sample((8, 4), (4, 16), (8, 16), (16,), addend=True, bias=True, gradient=False),
        sample((8, 4), (16, 4), (16,), transpose_b=True, bias=True, activation="gelu", gradient=False),
        sample((4, 8), (4, 16), transpose_a=True, activation="gelu", keeps_before=True, gradient=False),
        sample((2, 8, 4), (2, 4, 16), (2, 8, 16), activation="gelu_gradient", gradient=False),
        sample((8, 4), (4, 16), (8, 16), (16,), addend=True, bias=True, wide=True, gradient=False,
               dtypes=("BFloat16", "BFloat16", "Float32", "Float32")),
    )  # fmt: skip

    def product(self, label: str) -> Op:
        """Return the matmul without its epilogue, as the operator that a label begins with."""
        name = label.partition(" ")[0]
        return (MatMul if name == "MatMul" else BatchMatMul)(self.transpose_a, self.transpose_b)

    @property
    def in_place(self) -> bool:  # type: ignore[override]  # depends on the fields
        return self.addend and not self.activation

    @property
    def in_place_of(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the fields
        return (2,) if self.in_place else ()

    def rule(self, *types: TensorType) -> str | Rule:
        plain = BatchMatMul(self.transpose_a, self.transpose_b).rule(*types[:2])
        ins, _, out = plain.partition(" -> ")
        factors = out.split()
        sides = {"addend": out, "before": out, "bias": factors[-1]}
        names = self._names()[2:]
        if self.activation or names:
            # Addends and GeLU need the complete sum: the summed factor is not sharded.
            left, _, right = ins.partition(", ")
            ins = ", ".join(" ".join(f if f in factors else f"{f}!" for f in side.split()) for side in (left, right))
        results = f"{out}, {out}" if self.keeps_before else out
        return f"{', '.join([ins, *(sides[name] for name in names)])} -> {results}"

    def infer(self, *types: Any) -> Type:
        names = self._names()
        if len(types) != len(names):
            raise MspcError(
                f"{self.name} takes {len(names)} tensors ({', '.join(names)}), not {len(types)}", code="E0301"
            )
        found = BatchMatMul(self.transpose_a, self.transpose_b).infer(*types[:2])
        assert isinstance(found, TensorType)
        if self.wide and (found.dtype not in HALVES or self.activation):
            raise MspcError(f"{self.name}: a product of {found.dtype} with {self.activation!r} cannot be wide")
        found = TensorType(FLOAT32 if self.wide else found.dtype, found.shape)
        for name, operand in zip(names[2:], types[2:], strict=True):
            wanted = found if name != "bias" else found.with_shape(found.shape[-1:])
            if operand != wanted:
                raise MspcError(f"{self.name}: {name} is {operand}, not {wanted}")
        return TupleType((found, found)) if self.keeps_before else found

    def operations(self, types: Sequence[TensorType]) -> float:
        return BatchMatMul(self.transpose_a, self.transpose_b).operations(types)

    def _names(self) -> list[str]:
        if self.activation not in ("", "gelu", "gelu_gradient"):
            raise MspcError(f"{self.name}: activation is {self.activation!r}, not 'gelu' or 'gelu_gradient'")
        if self.keeps_before and self.activation != "gelu":
            raise MspcError(f"{self.name}: there is nothing before an activation to keep without 'gelu'")
        optional = {"addend": self.addend, "bias": self.bias, "before": self.activation == "gelu_gradient"}
        return ["x", "y", *(name for name, there in optional.items() if there)]

    def _parts(self, operands: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names(), operands, strict=True))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        product = BatchMatMul(self.transpose_a, self.transpose_b).kernel(be)
        gelu, gradient = GeLU().kernel(be), GeLUGrad().kernel(be)

        def kernel(*operands: Any) -> Any:
            parts = self._parts(operands)
            found = product(parts["x"], parts["y"])
            for name in ("addend", "bias"):
                if name in parts:
                    found = found + parts[name]
            if self.activation == "gelu":
                return (gelu(found), found) if self.keeps_before else gelu(found)
            if self.activation == "gelu_gradient":
                return gradient(found, parts["before"], parts["before"])
            return found

        return kernel

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        from mspc.ops.cpu.products import product_kernel  # late, as all that only a run needs

        product = product_kernel(self.transpose_a, self.transpose_b)
        gelu, gradient = GeLU().kernel(be), GeLUGrad().kernel(be)

        def into(*operands: Any, out: Any) -> Any:
            parts = self._parts(operands)
            target = out[1] if self.keeps_before else out
            found = product(parts["x"], parts["y"], target, parts.get("addend"), parts.get("bias"))
            if self.activation == "gelu":
                gelu(found, out=out[0] if self.keeps_before else found)
            elif self.activation:
                gradient(found, parts["before"], parts["before"], out=found)
            return out

        return into

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        """Return one matmul with its epilogue; or, if that is faster, the activation as a kernel of its own.

        In Float64 it always is, as cuBLASLt's GeLU takes 0.79788456 for sqrt(2 / pi), off by 1e-9 (an H100's errors are
        those that this number gives); and in Float32 that is not to be rounded, as cuBLASLt's GeLU is off by 5e-6
        there, and its derivative by 2e-5 (measured on an H100, the same in all algorithms), while an own kernel takes
        no longer.
        """
        parts = self._parts(inputs)
        target, saved = out if self.keeps_before else (out, None)
        before = saved if self.keeps_before else parts.get("before")
        x, y, addend, bias = parts["x"], parts["y"], parts.get("addend"), parts.get("bias")
        transposes = self.transpose_a, self.transpose_b
        dtype = dtype_of(target.dtype)
        joins = not self.activation or dtype in HALVES or (dtype == FLOAT32 and device.tf32)
        fused = device.matmul(
            x, y, target, *transposes, addend=addend, bias=bias, activation=self.activation, before=before
        ) if joins else None
        if not self.activation:
            return fused
        bare = saved if self.keeps_before else target
        product = device.matmul(x, y, bare, *transposes, addend=addend, bias=bias)
        if self.activation == "gelu":
            after = GeLU().launch(device, target, bare)
        else:
            after = GeLUGrad().launch(device, target, bare, before, before)
        apart = in_order(product, after)
        if apart is None or fused is None:
            return fused or apart
        kind = (self, *((array.shape, array.dtype.name) for array in inputs))
        return device.fastest(kind, [fused, apart])
