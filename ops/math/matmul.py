"""Matrix multiplications: plain, batched, of finer precision, and of groups of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout, spread
from mspc.ir.types import INT32, TensorType, TupleType
from mspc.ops import gpu
from mspc.ops.control.structural import constrained
from mspc.ops.device import Array, Device, Launch, RowProducts
from mspc.ops.math.arithmetic import Add
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import (
    REGISTRY,
    ArrayBackend,
    Gradients,
    NotDifferentiable,
    Op,
    RankPlacement,
    RequestedSharding,
    require_float,
    require_same,
    sample,
)
from mspc.ops.operator_arguments import axis_in, ints_of, sequence_of
from mspc.ops.tensor.reshape import ReduceSum, sum_to_shape
from mspc.sharding.rules import broadcast_rule, factor_names

REQUEST = "enable_nd_tp"


@dataclass(frozen=True)
class FinerProduct:
    """Sharding of a matmul. stored: layout in which each operand arrives, None if the matmul uses that layout. used:
    layouts that the matmul uses. result: its out_strategy, None for the natural one."""

    stored: tuple[NamedLayout | None, NamedLayout | None]
    used: tuple[NamedLayout, NamedLayout]
    result: NamedLayout | None


def finer_product(name: str, transposed: tuple[bool, bool], entries: Sequence[object]) -> FinerProduct:
    """Return how a matmul of the layouts `entries` is computed. Raise MspcError if they are not layouts of matrices."""
    layouts = [entry for entry in entries if isinstance(entry, NamedLayout) and len(entry.axes) > 1]
    if len(entries) != 2 or len(layouts) != 2:
        raise MspcError(f"{name}: {REQUEST} needs a Layout for each of its two tensors")
    first, second = layouts
    *batch, m, k = _turned(first.axes, transposed[0])
    *other, inner, n = _turned(second.axes, transposed[1])
    shared = tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(k, inner, strict=False)))
    used_m = tuple(a for a in m if a not in n)
    result = None
    if (used_m, shared) != (m, k):
        axes = (*batch, (*used_m, *shared), n) if used_m != m else (*batch, used_m, (*n, *shared))
        result = _named(first, axes)
    return FinerProduct(
        (None if result is None else first, None if shared == inner else second),
        (
            _named(first, _turned((*batch, used_m, shared), transposed[0])),
            _named(second, _turned((*other, shared, n), transposed[1])),
        ),
        result,
    )


def _turned(axes: Sequence[tuple[int, ...]], transposed: bool) -> tuple[tuple[int, ...], ...]:
    *batch, row, column = axes
    return (*batch, column, row) if transposed else (*batch, row, column)


def _named(like: NamedLayout, axes: Sequence[tuple[int, ...]]) -> NamedLayout:
    last = len(like.device_matrix) - 1
    return replace(like, tensor_map=tuple(tuple(last - a for a in entry) or -1 for entry in axes))


class MatrixProduct(Op, abstract=True):
    """x @ y over the last two dimensions, each transposed first if its flag is set."""

    transpose_a: bool = False
    transpose_b: bool = False
    linear_in = (0, 1)
    promotes: ClassVar[str] = "floats"
    requests = (REQUEST,)
    one_type = True

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
        """Return the factors of the last two dimensions of both operands and of the result."""
        left = f"{k} {m}" if self.transpose_a else f"{m} {k}"
        right = f"{n} {k}" if self.transpose_b else f"{k} {n}"
        return left, right, f"{m} {n}"

    def products(self, b: Builder, x: Value, y: Value, dout: Value) -> tuple[Value, Value]:
        """Return the gradients of both operands, whose transposes are flags, before sums over broadcast dimensions."""
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
        return lambda x, y: matmul(x.swapaxes(-1, -2) if ta else x, y.swapaxes(-1, -2) if tb else y)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        from mspc.ops.cpu.products import product_kernel

        return product_kernel(self.transpose_a, self.transpose_b)

    def operations(self, types: Sequence[TensorType]) -> float:
        x, y = (operand.shape for operand in types[:2])
        rows, summed = (x[-1], x[-2]) if self.transpose_a else (x[-2], x[-1])
        columns = y[-2] if self.transpose_b else y[-1]
        batch = math.prod(map(max, zip_longest(reversed(x[:-2]), reversed(y[:-2]), fillvalue=1)))
        return 2.0 * batch * rows * summed * columns

    def launch(self, device: Device, out: Any, x: Array, y: Array) -> Launch | None:
        return device.matmul(x, y, out, self.transpose_a, self.transpose_b)


class MatMul(MatrixProduct):
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
                    notes=["BatchMatMul multiplies tensors with more dimensions"], code="E0303",
                )
        left, right, out = self.matrix_rule("m", "k", "n")
        return f"{left}, {right} -> {out}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return self.products(b, x, y, dout)

    samples = (
        sample((8, 16), (16, 8)),
        sample((8, 16), (8, 16), transpose_b=True),
        sample((16, 8), (16, 8), transpose_a=True),
        sample((16, 8), (8, 16), transpose_a=True, transpose_b=True),
    )


class BatchMatMul(MatrixProduct):
    """x[..., m, k] @ y[..., k, n] -> [..., m, n]; leading dimensions broadcast, flags as in MatMul."""


    def rule(self, x: TensorType, y: TensorType) -> str:
        for index, operand in enumerate((x, y)):
            if len(operand.shape) < 2:
                raise MspcError(
                    f"BatchMatMul needs at least 2 dimensions in input {index}, "
                    f"whose shape is {operand.shape}", code="E0303"
                )
        ins, _, out_batch = broadcast_rule((x.shape[:-2], y.shape[:-2])).partition(" -> ")
        left_batch, _, right_batch = ins.partition(", ")
        # The names of the batch factors come first, so that the matrix factors differ from them.
        names = factor_names(3, max(len(x.shape), len(y.shape)) - 2)
        left, right, out = self.matrix_rule(*names)
        return f"{left_batch} {left}, {right_batch} {right} -> {out_batch} {out}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
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
                f"{self.name} takes two tensors of 3 dimensions with one batch, not of shapes {x.shape} and {y.shape}",
                code="E0301",
            )
        return super().rule(x, y)


class BiasAdd(Op):
    """x plus a bias along dimension 1, or along the last one when `data_format` is "NHWC"."""

    data_format: str = "NCHW"
    additive = True
    one_type = True

    def as_broadcast(self, x: TensorType, bias: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        return Add(), (x.shape, self._along(x.shape, bias.shape))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        image, bias = types[0], MemoryOrder.of(types[1].shape)
        place = orders[0].place(self.channel(image.rank))
        format = {1: "NCHW", len(orders[0].parts) - 1: "NHWC"}.get(-1 if place is None else place)
        return None if format is None else Reordered(BiasAdd(format), (orders[0], bias), (orders[0],))

    def _along(self, shape: Sequence[int], bias: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which a bias is broadcast to `shape`."""
        return (*bias, *(1,) * (len(shape) - 1 - self.channel(len(shape))))

    def channel(self, rank: int) -> int:
        if self.data_format not in ("NCHW", "NHWC", "NCDHW"):
            raise MspcError(f"BiasAdd: data_format is {self.data_format!r}, not 'NCHW', 'NHWC' or 'NCDHW'")
        if rank < 2:
            raise MspcError(f"BiasAdd needs at least 2 dimensions in input 0, which has {rank}", code="E0303")
        return axis_in(self.name, -1 if self.data_format == "NHWC" else 1, rank)

    def rule(self, x: TensorType, bias: TensorType) -> str:
        names = factor_names(len(x.shape))
        return f"{' '.join(names)}, {names[self.channel(len(x.shape))]} -> {' '.join(names)}"

    def bprop(self, b: Builder, x: Value, bias: Value, out: Value, dout: Value) -> Gradients:
        channel = self.channel(len(x.shape))
        others = tuple(d for d in range(len(x.shape)) if d != channel)
        return dout, b.emit(ReduceSum(axis=others), dout)

    def compute(self, xp: Any, x: Any, bias: Any) -> Any:
        return x + bias.reshape(self._along(x.shape, bias.shape))

    def launch(self, device: Device, out: Any, x: Array, bias: Array) -> Launch | None:
        return Add().launch(device, out, x, bias.reshape(self._along(x.shape, bias.shape)))

    samples = (
        sample((8, 16), (16,)),
        sample((8, 8, 2, 4), (8,)),
        sample((8, 2, 2, 8), (8,), data_format="NHWC"),
    )
MAX_ROWS = "most_rows"
"""Attached attribute: if ranks share the experts, the maximum rows of one rank, in multiples of an even share."""
QUANTIZED = ("scale", "offset", "antiquant_scale", "antiquant_offset")
ENDS = ("Float64", "Float64", "Int64")


def groups_of(xp: Any, ends: Any, first: int, rows: int) -> Any:
    """Return the group of each of `rows` rows from `first` on; the number of groups for rows after the last end."""
    return (ends[None, :] <= xp.arange(first, first + rows)[:, None]).sum(1)


def group_slices(ends: Any, first: int, rows: int, begin: int, count: int) -> list[slice]:
    """Return the slice of each of `count` groups, of which number `begin` is the first, in `rows` rows from `first` on.

    ends: the ends of all groups, an array on the host.
    """
    borders = [0, *sorted(ends.tolist())]
    within = [min(max(border - first, 0), rows) for border in borders[begin : begin + count + 1]]
    return [slice(start, max(start, end)) for start, end in itertools.pairwise(within)]


class RowsByGroup(Op, abstract=True):
    """An operator on rows by group; the last operand, `ends`, says which rows belong to which group.

    Class attributes:
        family: the first word of the names of operators whose rows lie in this order.
        matrices: the operand with an entry for every group; -1 if that is the result.
    """

    family: ClassVar[str] = ""
    matrices: ClassVar[int] = 1

    def check(self, *types: TensorType) -> None:
        if types[0].dtype != INT32:
            require_float(self.name, *types[:-1])
        require_same(self.name, *types[:-1])
        if not types[-1].dtype.is_integer:
            raise MspcError(
                f"{self.name}: the ends of groups are {types[-1].dtype}, not integers", kind=TypeError, code="E0304"
            )

    def names(self, ends: TensorType) -> tuple[str, str, str]:
        """Return the names of factors: of the rows, of the groups, and of the ends."""
        raise NotImplementedError

    def require_groups(self, matrices: TensorType, ends: TensorType) -> None:
        """Raise MspcError if there are not as many ends as matrices."""

    def local_groups(self, ends: Any) -> int:
        """Return the number of groups of which this rank has matrices. ends: an array or a type."""
        raise NotImplementedError

    def own_rows(self, rows: TensorType, ends: TensorType) -> float:
        """Return how many of the rows belong to groups of which this rank has matrices, if all have equally many."""
        raise NotImplementedError

    def slices(self, ends: Any, rows: int) -> Iterator[tuple[int, slice]]:
        """Yield (number of an own group, a slice of its rows). ends: an array on the host."""
        raise NotImplementedError

    def pieces(self, xp: Any, ends: Any, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the same, or a mask of all rows [rows, 1] instead of a slice."""
        return self.slices(ends, rows)

    def grouping(self, rows: int, ends: Array) -> gpu.expert_rows.Grouping:
        """Return the groups of this many rows, for kernels."""
        raise NotImplementedError

    def relative(self, name: str, **fields: Any) -> Any:
        """Return another operator of the family."""
        return REGISTRY[f"{self.family}{name}"](**fields)

    def launch_matmuls(self, device: Device, multiply: RowProducts | None, ends: Array, rows: int) -> Launch | None:
        """Return the launch of the matmuls of all groups; None if there is no `multiply`."""
        return None if multiply is None else device.host_query([ends], lambda at: multiply(self.slices(at, rows)))


class ProductByGroup(RowsByGroup, abstract=True):
    transpose_b: bool = False
    linear_in = (0, 1)
    host_reads = (2,)

    def rule(self, x: TensorType, w: TensorType, ends: TensorType) -> str:
        if len(x.shape) != 2 or len(w.shape) != 3:
            raise MspcError(f"{self.name}: inputs of shapes {x.shape} and {w.shape} are no rows and matrices of groups")
        self.require_groups(w, ends)
        rows, groups, all_ends = self.names(ends)
        return f"{rows} k, {groups} {'n k' if self.transpose_b else 'k n'}, {all_ends} -> {rows} n"

    def bprop(self, b: Builder, x: Value, w: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(self.relative("Product", transpose_b=not self.transpose_b), dout, w, ends)
        left, right = (dout, x) if self.transpose_b else (x, dout)
        return dx, b.emit(self.relative("Outer"), left, right, ends), None

    def operations(self, types: Sequence[TensorType]) -> float:
        x, w, ends = types
        return 2.0 * self.own_rows(x, ends) * w.shape[1] * w.shape[2]

    def launch(self, device: Device, out: Any, x: Array, w: Array, ends: Array) -> Launch | None:
        multiply = device.products_of_rows(x, w, out, transpose_b=self.transpose_b)
        return self.launch_matmuls(device, multiply, ends, x.shape[0])

    def compute(self, xp: Any, x: Any, w: Any, ends: Any) -> Any:
        matrices = w.swapaxes(1, 2) if self.transpose_b else w
        made = xp.zeros((x.shape[0], matrices.shape[2]), x.dtype)
        for i, mine in self.pieces(xp, ends, x.shape[0]):
            if isinstance(mine, slice):
                xp.matmul(x[mine], matrices[i], out=made[mine])
            else:
                made += xp.matmul(xp.where(mine, x, xp.zeros((), x.dtype)), matrices[i])
        return made


class OuterByGroup(RowsByGroup, abstract=True):
    matrices = -1
    linear_in = (0, 1)
    host_reads = (2,)

    def rule(self, x: TensorType, y: TensorType, ends: TensorType) -> str:
        rows, groups, all_ends = self.names(ends)
        return f"{rows} k, {rows} n, {all_ends} -> {groups} k n"

    def bprop(self, b: Builder, x: Value, y: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(self.relative("Product", transpose_b=True), y, dout, ends)
        return dx, b.emit(self.relative("Product"), x, dout, ends), None

    def operations(self, types: Sequence[TensorType]) -> float:
        x, y, ends = types
        return 2.0 * self.own_rows(x, ends) * x.shape[1] * y.shape[1]

    def launch(self, device: Device, out: Any, x: Array, y: Array, ends: Array) -> Launch | None:
        return self.launch_matmuls(device, device.products_of_rows(x, y, out, outer=True), ends, x.shape[0])

    def compute(self, xp: Any, x: Any, y: Any, ends: Any) -> Any:
        made = xp.zeros((self.local_groups(ends), x.shape[1], y.shape[1]), x.dtype)
        for i, mine in self.pieces(xp, ends, x.shape[0]):
            left, right = (x[mine], y[mine]) if isinstance(mine, slice) else (xp.where(mine, x, 0 * x[:1]), y)
            made[i] += xp.matmul(left.T, right)
        return made


class EntryByGroup(RowsByGroup, abstract=True):
    linear_in = (1,)

    def rule(self, like: TensorType, b: TensorType, ends: TensorType) -> str:
        self.require_groups(b, ends)
        rows, groups, all_ends = self.names(ends)
        return f"{rows} n, {groups} n, {all_ends} -> {rows} n"

    def bprop(self, b: Builder, like: Value, rows: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        return None, b.emit(self.relative("Sums"), dout, ends), None

    def launch(self, device: Device, out: Any, like: Array, b: Array, ends: Array) -> Launch | None:
        return gpu.expert_rows.over_groups(device, "rows_of_groups", self.grouping(like.shape[0], ends), b, ends, out)

    def compute(self, xp: Any, like: Any, b: Any, ends: Any) -> Any:
        made = xp.zeros((like.shape[0], b.shape[1]), b.dtype)
        for i, mine in self.pieces(xp, ends, like.shape[0]):
            if isinstance(mine, slice):
                made[mine] = b[i]
            else:
                made = xp.where(mine, b[i], made)
        return made


class SumsByGroup(RowsByGroup, abstract=True):
    matrices = -1
    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")

    def rule(self, x: TensorType, ends: TensorType) -> str:
        rows, groups, all_ends = self.names(ends)
        return f"{rows} n, {all_ends} -> {groups} n"

    def launch(self, device: Device, out: Any, x: Array, ends: Array) -> Launch | None:
        return gpu.expert_rows.over_groups(device, "sums_of_groups", self.grouping(x.shape[0], ends), x, ends, out)

    def compute(self, xp: Any, x: Any, ends: Any) -> Any:
        made = xp.zeros((self.local_groups(ends), x.shape[1]), x.dtype)
        ones = xp.ones(x.shape[0], x.dtype)
        for i, mine in self.pieces(xp, ends, x.shape[0]):
            if isinstance(mine, slice):
                made[i] += xp.matmul(ones[mine], x[mine])
            else:
                made[i] += xp.matmul(mine[:, 0].astype(x.dtype), x)
        return made


class _Grouped(RowsByGroup, abstract=True):
    """Rows in the order of their groups: `ends` [groups] has the end of each group's rows.

    first: rows of other ranks before this one's. begin, count: the groups of which this rank has the matrices, if
    others have the rest; count is 0 if it has all. Rows of the others' groups are zeros, so that the ranks' results add
    up.
    """

    first: int = 0
    begin: int = 0
    count: int = 0
    omitted = ("first", "begin", "count")
    family = "Grouped"

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """Return the limits: a group may end with the last row."""
        return {len(types) - 1: types[0].shape[0] + 1}

    def localize(self, placement: RankPlacement) -> Op:
        rows = placement.in_layouts[0].slices_for(placement.rank, placement.in_types[0].shape)[0]
        layouts, types = placement.in_layouts, placement.in_types
        if self.matrices < 0:
            layouts, types = placement.out_layouts, placement.out_types
        at = max(self.matrices, 0)
        held = layouts[at].slices_for(placement.rank, types[at].shape)[0]
        if held == slice(0, types[at].shape[0]):
            return replace(self, first=rows.start)
        return replace(self, first=rows.start, begin=held.start, count=held.stop - held.start)

    def names(self, ends: TensorType) -> tuple[str, str, str]:
        return "m", f"e={self.local_groups(ends)}" if self.matrices < 0 else "e", "g!"

    def require_groups(self, matrices: TensorType, ends: TensorType) -> None:
        if matrices.shape[0] != self.local_groups(ends):
            raise MspcError(f"{self.name}: {matrices.shape[0]} groups have {ends.shape[0]} ends")

    def local_groups(self, ends: Any) -> int:
        return self.count or ends.shape[0]

    def own_rows(self, rows: TensorType, ends: TensorType) -> float:
        return rows.shape[0] * self.local_groups(ends) / max(1, ends.shape[0])

    def slices(self, ends: Any, rows: int) -> Iterator[tuple[int, slice]]:
        return enumerate(group_slices(ends, self.first, rows, self.begin, self.count or len(ends)))

    def pieces(self, xp: Any, ends: Any, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield slices on the CPU, and masks on a GPU, for which the host does not wait."""
        if xp.__name__ == "numpy":
            yield from self.slices(ends, rows)
            return
        group = groups_of(xp, ends, self.first, rows)
        yield from ((i, (group == self.begin + i)[:, None]) for i in range(self.local_groups(ends)))

    def grouping(self, rows: int, ends: Array) -> gpu.expert_rows.Grouping:
        groups = ends.shape[0]
        return gpu.expert_rows.Grouping(1, 1, groups, rows, self.first, self.begin, self.count or groups, False)


class GroupedProduct(ProductByGroup, _Grouped):
    """x [m, k] with the rows of every group times its matrix of w [groups, k, n], or [groups, n, k] transposed; rows
    after the last group give zeros."""

    samples = (
        sample((8, 4), (1, 4, 6), (1,), dtypes=ENDS, low=1, high=9),
        sample((8, 6), (1, 4, 6), (1,), transpose_b=True, dtypes=ENDS, low=1, high=9),
    )


class GroupedOuter(OuterByGroup, _Grouped):
    """For every group the matmul of the transposed rows of x [m, k] with those of y [m, n]: [groups, k, n]."""

    samples = (sample((8, 4), (8, 2), (2,), dtypes=ENDS, low=1, high=9),)


class GroupedRows(EntryByGroup, _Grouped):
    """For every row the row of its group in b [groups, n]; as many rows as `like` [m, n] has, zeros after the last
    group."""

    samples = (sample((8, 4), (2, 4), (2,), dtypes=ENDS, low=1, high=9, gradient=False),)


class GroupedSums(SumsByGroup, _Grouped):
    """The sums of the rows of every group of x [m, n]: [groups, n]."""

    samples = (sample((8, 4), (2,), dtypes=ENDS[1:], low=1, high=9, gradient=False),)


class GroupedMatmul(Op):
    """Several matmuls as one operator: a tuple of results. Called as `GroupedMatmul(split_item, group_type)(x, weight,
    bias, scale, offset, antiquant_scale, antiquant_offset, group_list)`; x, weight and bias are lists of tensors.

    group_type -1: result i is x[i] @ weight[i] + bias[i]. group_type 0: of one x [m, k], one weight [groups, k, n] and
    perhaps one bias [groups, n] the rows up to group_list[0] go with the first matrix, and so on. Quantised operands
    are refused.
    """

    split_item: int = 0
    group_type: int = -1
    count: int = 1
    biased: bool = False
    omitted = ("count", "biased")
    is_several = True
    bprop = NotDifferentiable("its products are differentiated")
    samples = (
        sample((8, 4), (2, 4, 6), (2,), group_type=0, dtypes=ENDS, low=1, high=9, gradient=False),
    )

    def call(
        self, x: Any, weight: Any, bias: Any = None, scale: Any = None, offset: Any = None, antiquant_scale: Any = None,
        antiquant_offset: Any = None, group_list: Any = None,
    ) -> tuple[Op, tuple[Any, ...]]:  # fmt: skip
        for name, given in zip(QUANTIZED, (scale, offset, antiquant_scale, antiquant_offset), strict=True):
            if given is not None:
                raise MspcError(f"{self.name}: {name} must be None; quantised products are not built")
        if self.group_type not in (-1, 0):
            raise MspcError(f"{self.name}: group_type is {self.group_type}, not -1 or 0")
        left, right, added = (sequence_of(self.name, (given,)) for given in (x, weight, bias or ()))
        if len(left) != len(right) or len(added) not in (0, len(left)) or not left:
            sizes = f"{len(left)}, {len(right)} and {len(added)}"
            raise MspcError(f"{self.name}: x, weight and bias are lists of {sizes} tensors")
        if (group_list is None) == (self.group_type == 0) or (self.group_type == 0 and len(left) > 1):
            raise MspcError(f"{self.name}: group_type 0 takes one x and a group_list, group_type -1 no group_list")
        ends = () if group_list is None else (group_list,)
        if ends and isinstance(group_list, (tuple, list)):
            ends = (np.array(ints_of(self.name, "group_list", group_list), np.int64),)
        return replace(self, count=len(left), biased=bool(added)), (*left, *right, *added, *ends)

    def infer(self, *types: Any) -> Any:
        made: list[TensorType] = []
        for op, operands in self.products(types):
            inferred = op.infer(*operands)
            assert isinstance(inferred, TensorType)
            made.append(inferred)
        return TupleType(tuple(made))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {len(types) - 1: types[0].shape[0] + 1} if self.group_type == 0 else {}

    def products(self, operands: Sequence[Any]) -> list[tuple[Op, tuple[Any, ...]]]:
        """Return the matmuls with their operands, without the addends."""
        n = self.count
        if self.group_type == 0:
            return [(GroupedProduct(), (operands[0], operands[1], operands[-1]))]
        return [(MatMul(), (operands[i], operands[n + i])) for i in range(n)]

    def rule(self, *types: TensorType) -> str:
        if self.group_type == 0 and not self.biased:
            return "m! k!, e! k! n!, e! -> m! n!"  # of the composite operator: its parts carry out a strategy
        raise MspcError(f"{self.name} is several operators: it has no sharding rule of its own")

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        entries = [entry for entry in spread(asked.in_strategy or ()) if entry != ()]
        given = asked.in_strategy is not None
        if given and len(entries) != len(inputs):
            raise MspcError(f"{self.name}: the strategy has {len(entries)} entries for {len(inputs)} tensors")
        places = {id(value): entry for value, entry in zip(inputs, entries, strict=False)}
        made: list[Value] = []
        for i, (op, operands) in enumerate(self.products(inputs)):
            product = b.emit(op, *operands)
            if MAX_ROWS in asked.attrs:
                product.attrs[MAX_ROWS] = asked.attrs[MAX_ROWS]
            if given:
                product.in_strategy = tuple(places[id(value)] for value in operands)
            if not self.biased:
                made.append(product)
                continue
            bias = inputs[2 * self.count + i]
            added = (product, bias, inputs[-1])[: 3 if self.group_type == 0 else 2]
            after = b.emit(GroupedRows() if self.group_type == 0 else Add(), *added)
            if given:
                slice_counts = (places[id(operands[0])][0], places[id(operands[1])][-1])
                after.in_strategy = (slice_counts, *[places[id(value)] for value in added[1:]])
            made.append(b.emit(Add(), product, after) if self.group_type == 0 else after)
        return made

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        made: list[Any] = []
        for i, (op, operands) in enumerate(self.products(inputs)):
            product = op.run(be, *operands)
            if self.biased:
                bias = inputs[2 * self.count + i]
                product = product + (GroupedRows().run(be, product, bias, inputs[-1]) if self.group_type == 0 else bias)
            made.append(product)
        return tuple(made)
