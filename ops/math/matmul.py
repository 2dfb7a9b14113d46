"""These operators are matrix products, and the bias that follows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_same
from mspc.ops.control.constraint import constrained
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.finer_product import REQUEST, finer_product
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op, RequestedSharding, sample
from mspc.ops.operator_arguments import axis_in
from mspc.ops.tensor.broadcast import ReduceSum, sum_to_shape
from mspc.sharding.rules import broadcast_rule, factor_names


class _Product(Op, abstract=True):
    """x @ y over the last two dimensions, each transposed first where its flag says so."""

    transpose_a: bool = False
    transpose_b: bool = False
    linear_in = (0, 1)
    promotes: ClassVar[str] = "common"
    requests = (REQUEST,)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        if asked.in_strategy is None or not asked.attrs.get(REQUEST):
            return None
        plan = finer_product(self.name, (self.transpose_a, self.transpose_b), asked.in_strategy)
        operands = [
            value if layout is None else constrained(b, value, layout)
            for value, layout in zip(inputs, plan.stored, strict=True)
        ]
        product = b.emit(self, *operands)
        product.in_strategy, product.out_strategy = plan.used, asked.out_strategy
        if product.out_strategy is None and plan.result is not None:
            product.out_strategy = (plan.result,)
        return (product,)

    def matrix_rule(self, m: str, k: str, n: str) -> tuple[str, str, str]:
        """Factors of the last two dimensions of both operands and of the result."""
        left = f"{k} {m}" if self.transpose_a else f"{m} {k}"
        right = f"{n} {k}" if self.transpose_b else f"{k} {n}"
        return left, right, f"{m} {n}"

    def products(self, b: Builder, x: Value, y: Value, dout: Value) -> tuple[Value, Value]:
        """Gradients of both operands, whose transposes are flags, before sums over broadcast dimensions."""
        ta, tb = self.transpose_a, self.transpose_b
        op = type(self)
        dx = b.emit(op(tb, True), y, dout) if ta else b.emit(op(False, not tb), dout, y)
        dy = b.emit(op(True, ta), dout, x) if tb else b.emit(op(not ta, False), x, dout)
        return dx, dy

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        from mspc.ops.cpu.products import multiplied  # late, as all that only a run needs

        matmul, ta, tb = multiplied if be.xp is np else be.xp.matmul, self.transpose_a, self.transpose_b
        if not ta and not tb:
            return matmul

        def transposed_both(x: Any, y: Any) -> Any:
            return matmul(x.swapaxes(-1, -2), y.swapaxes(-1, -2))

        def transposed_left(x: Any, y: Any) -> Any:
            return matmul(x.swapaxes(-1, -2), y)

        def transposed_right(x: Any, y: Any) -> Any:
            return matmul(x, y.swapaxes(-1, -2))

        return transposed_both if ta and tb else transposed_left if ta else transposed_right

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        from mspc.ops.cpu.products import product_kernel

        return product_kernel(self.transpose_a, self.transpose_b)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def operations(self, types: Sequence[TensorType]) -> float:
        x, y = (operand.shape for operand in types[:2])
        rows, summed = (x[-1], x[-2]) if self.transpose_a else (x[-2], x[-1])
        columns = y[-2] if self.transpose_b else y[-1]
        batch = math.prod(map(max, zip_longest(reversed(x[:-2]), reversed(y[:-2]), fillvalue=1)))
        return 2.0 * batch * rows * summed * columns

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, y = inputs
        return device.matmul(x, y, out, self.transpose_a, self.transpose_b)


class MatMul(_Product):
    """x[m, k] @ y[k, n] -> [m, n]; x is [k, m] when transpose_a, y is [n, k] when transpose_b.

    Sharding k leaves partial sums. With the strategy ((a, b), (a, b)) on a * b ranks both operands are stored so, and
    gathered: x along k, y along k, so that the result is sharded (a, b).
    """


    def asks(self, asked: RequestedSharding, ranks: int) -> bool:
        return super().asks(asked, ranks) or self._is_gathered(asked.in_strategy, ranks)

    def _is_gathered(self, strategy: Any, ranks: int) -> bool:
        """Whether both operands are stored in slices that all ranks share out in one way, ((a, b), (a, b))."""
        if self.transpose_a or self.transpose_b or strategy is None or len(strategy) != 2:
            return False
        first, second = cast("tuple[Any, Any]", strategy)
        if not isinstance(first, tuple) or first != second or first == (1, 1):
            return False
        return math.prod(cast("tuple[int, ...]", first)) == ranks

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        strategy = cast(Any, asked.in_strategy)
        if asked.attrs.get(REQUEST) or strategy is None:
            return super().decompose(b, asked, inputs)
        rows, columns = strategy[0]
        stored = [constrained(b, value, entry) for value, entry in zip(inputs, strategy, strict=True)]
        product = b.emit(self, *stored)
        product.in_strategy, product.out_strategy = ((rows, 1), (1, columns)), asked.out_strategy
        return (product,)

    def rule(self, x: TensorType, y: TensorType) -> str:
        for index, operand in enumerate((x, y)):
            if len(operand.shape) != 2:
                raise MspcError(
                    f"MatMul needs 2 dimensions in input {index}, whose shape is {operand.shape}",
                    notes=["BatchMatMul multiplies tensors with more dimensions"],
                )
        left, right, out = self.matrix_rule("m", "k", "n")
        return f"{left}, {right} -> {out}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return self.products(b, x, y, dout)

    samples = (
        sample((8, 16), (16, 8)),
        sample((8, 16), (8, 16), transpose_b=True),
        sample((16, 8), (16, 8), transpose_a=True),
        sample((16, 8), (8, 16), transpose_a=True, transpose_b=True),
    )


class BatchMatMul(_Product):
    """x[..., m, k] @ y[..., k, n] -> [..., m, n]; leading dimensions broadcast, flags as in MatMul."""


    def rule(self, x: TensorType, y: TensorType) -> str:
        for index, operand in enumerate((x, y)):
            if len(operand.shape) < 2:
                raise MspcError(
                    f"BatchMatMul needs at least 2 dimensions in input {index}, "
                    f"whose shape is {operand.shape}"
                )
        ins, _, out_batch = broadcast_rule((x.shape[:-2], y.shape[:-2])).partition(" -> ")
        left_batch, _, right_batch = ins.partition(", ")
        # The names of the batch factors come first, so that the matrix factors differ from them.
        names = factor_names(3, max(len(x.shape), len(y.shape)) - 2)
        left, right, out = self.matrix_rule(*names)
        return f"{left_batch} {left}, {right_batch} {right} -> {out_batch} {out}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        dx, dy = self.products(b, x, y, dout)
        return sum_to_shape(b, dx, x.shape), sum_to_shape(b, dy, y.shape)

    samples = (
        sample((8, 4, 8), (8, 8, 4)),
        sample((2, 8, 4, 8), (2, 8, 4, 8), transpose_b=True),
        sample((8, 8, 4), (8, 8, 8), transpose_a=True),
        sample((4, 8, 4), (4, 8, 8), transpose_a=True, transpose_b=True),
        sample((8, 4, 8), (8, 8)),
        sample((2, 1, 4, 8), (8, 8, 4)),
    )


class BatchMatMulExt(BatchMatMul):
    """x[b, m, k] @ y[b, k, n] -> [b, m, n]."""

    samples = (sample((8, 4, 8), (8, 8, 4)), sample((2, 8, 4), (2, 4, 16)))

    def rule(self, x: TensorType, y: TensorType) -> str:
        if (len(x.shape), len(y.shape)) != (3, 3) or x.shape[0] != y.shape[0]:
            raise MspcError(
                f"{self.name} takes two tensors of 3 dimensions with one batch, not of shapes {x.shape} and {y.shape}"
            )
        return super().rule(x, y)


class BiasAdd(Op):
    """x plus a bias along dimension 1, or along the last one when `data_format` is "NHWC"."""

    data_format: str = "NCHW"
    additive = True

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        x, bias = types
        return Add(), (x.shape, self._along(x.shape, bias.shape))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        image, bias = types[0], MemoryOrder.of(types[1].shape)
        place = orders[0].place(self.channel(image.rank))
        format = {1: "NCHW", len(orders[0].parts) - 1: "NHWC"}.get(-1 if place is None else place)
        return None if format is None else Reordered(BiasAdd(format), (orders[0], bias), (orders[0],))

    def _along(self, shape: Sequence[int], bias: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which a bias is broadcast to `shape`."""
        return (*bias, *(1,) * (len(shape) - 1 - self.channel(len(shape))))

    def channel(self, rank: int) -> int:
        if self.data_format not in ("NCHW", "NHWC", "NCDHW"):
            raise MspcError(f"BiasAdd: data_format is {self.data_format!r}, not 'NCHW', 'NHWC' or 'NCDHW'")
        if rank < 2:
            raise MspcError(f"BiasAdd needs at least 2 dimensions in input 0, which has {rank}")
        return axis_in(self.name, -1 if self.data_format == "NHWC" else 1, rank)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def rule(self, x: TensorType, bias: TensorType) -> str:
        names = factor_names(len(x.shape))
        return f"{' '.join(names)}, {names[self.channel(len(x.shape))]} -> {' '.join(names)}"

    def bprop(self, b: Builder, x: Value, bias: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        channel = self.channel(len(x.shape))
        others = tuple(d for d in range(len(x.shape)) if d != channel)
        return dout, b.emit(ReduceSum(axis=others), dout)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, bias = inputs
        return x + bias.reshape(self._along(x.shape, bias.shape))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, bias = inputs
        return Add().launch(device, (x, bias.reshape(self._along(x.shape, bias.shape))), out)

    samples = (
        sample((8, 16), (16,)),
        sample((8, 8, 2, 4), (8,)),
        sample((8, 2, 2, 8), (8,), data_format="NHWC"),
    )
