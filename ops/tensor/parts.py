"""Parts of tensors, and margins of one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Value
from mspc.ir.types import TensorType
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexBlock, IndexMap, padded
from mspc.ops.math.arithmetic import Sub
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, int_of, ints_of
from mspc.ops.tensor.moving import Pad, TensorParts
from mspc.ops.tensor.reshape import ReduceSum
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import factor_names


class Slice(Op):
    """x[begin : begin + size] in every dimension; a size of -1 takes the rest. `Slice()(x, begin, size)`."""

    takes_complex = True
    begin: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    may_alias = True
    moves = True
    linear_in = (0,)
    settings = (("begin", ints_of), ("size", ints_of))

    def strided(self, shape: Sequence[int]) -> StridedSlice:
        """Return the same slice with ends. Raise MspcError if it leaves the tensor."""
        if not len(self.begin) == len(self.size) == len(shape):
            raise MspcError(
                f"Slice: begin {self.begin} and size {self.size} must name all dimensions of {tuple(shape)}"
            )
        ends: list[int] = []
        for d, (start, count, n) in enumerate(zip(self.begin, self.size, shape, strict=True)):
            end = n if count == -1 else start + count
            if not 0 <= start < end <= n:
                raise MspcError(f"Slice: begin {start} and size {count} leave dimension {d} of size {n}")
            ends.append(end)
        return StridedSlice(begin=self.begin, end=tuple(ends), strides=(1,) * len(ends))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return self.strided(types[0].shape).reordered(types, orders)

    def index_map(self, *types: TensorType) -> IndexMap:
        return self.strided(types[0].shape).index_map(*types)

    def rule(self, x: TensorType) -> str:
        return self.strided(x.shape).rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return self.strided(x.shape).bprop(b, x, out, dout)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.strided(inputs[0].shape).run(be, *inputs)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.strided(inputs[0].shape).launch(device, out, *inputs)

    def localize(self, placement: RankPlacement) -> Op:
        return self.strided(placement.in_types[0].shape).localize(placement)

    samples = (
        sample((8, 16), begin=(0, 4), size=(8, 8)),
        sample((8, 4, 16), begin=(2, 0, 0), size=(-1, 4, 16)),
    )


class _Parts(TensorParts, abstract=True):
    """Parts of sizes of their own."""

    def rule(self, x: TensorType) -> str:
        axis, sizes = self.pieces(x.shape)
        least = int(x.shape[axis] > 0)
        if any(size < least for size in sizes) or sum(sizes) != x.shape[axis]:
            raise MspcError(
                f"{self.name}: dimension {axis} of input 0 is {x.shape[axis]}, but the parts are {tuple(sizes)}"
            )
        names = factor_names(len(x.shape))
        parts = factor_names(len(sizes), len(names))
        operand = (*names[:axis], f"{names[axis]}!", *names[axis + 1 :])
        outs = [
            " ".join((*names[:axis], f"{part}={size}!", *names[axis + 1 :]))
            for part, size in zip(parts, sizes, strict=True)
        ]
        return f"{' '.join(operand)} -> {', '.join(outs)}"


class SplitWithSize(_Parts):
    """Split into parts of the given sizes. Called as `SplitWithSize()(input, split_sizes, dim)`."""

    split_sizes: tuple[int, ...] = ()
    dim: int = 0
    settings = (("split_sizes", ints_of), ("dim", int_of))
    optional_settings = 1
    samples = (sample((8, 16), split_sizes=(4, 12), dim=-1), sample((3, 8), split_sizes=(1, 2)))

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        return axis_in(self.name, self.dim, len(shape)), self.split_sizes


class SplitTensor(_Parts):
    """Parts of `split_size`, the last one smaller if it does not divide.

    Called as `SplitTensor()(input, split_size, dim)`.
    """

    split_size: int = 1
    dim: int = 0
    settings = (("split_size", int_of), ("dim", int_of))
    optional_settings = 1
    samples = (sample((8, 16), split_size=4, dim=1), sample((8, 4), split_size=3))

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        axis = axis_in(self.name, self.dim, len(shape))
        if self.split_size < 1:
            raise MspcError(f"SplitTensor: split_size is {self.split_size}, not at least 1")
        count, rest = divmod(shape[axis], self.split_size)
        return axis, (self.split_size,) * count + ((rest,) if rest or not count else ())


class PadV3(Op):
    """x with a margin of one value. Called as `PadV3()(x, paddings, value)`.

    paddings holds (before, after) pairs, the last dimension first; dimensions that get a margin are not sharded.
    Only the mode "constant" is supported.
    """

    mode: str = "constant"
    paddings_contiguous: bool = True
    paddings: tuple[int, ...] = ()
    one_type = True
    samples = (
        sample((8, 16), (), paddings=(2, 1)),
        sample((8, 4, 8), (), paddings=(0, 0, 1, 3)),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if self.mode != "constant" or not self.paddings_contiguous:
            raise MspcError(
                f"PadV3: mode {self.mode!r} with paddings_contiguous={self.paddings_contiguous} is not supported",
                notes=["only 'constant' with contiguous paddings is"],
            )
        if not 2 <= len(args) <= 3:
            raise MspcError(f"PadV3 takes 2 to 3 arguments (x, paddings, value), not {len(args)}", code="E0301")
        paddings = args[1].value.tolist() if isinstance(args[1], Constant) else args[1]
        value = args[2] if len(args) == 3 and args[2] is not None else 0.0
        return replace(self, paddings=ints_of(self.name, "paddings", paddings)), (args[0], value)

    def strategy_dims(self, rule: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the dimensions with an entry for the paddings, as in MindSpore's strategy; they are no tensor here."""
        return (rule.inputs[0], ((),), ())

    def padding(self, rank: int) -> Pad:
        """Return the same margins for all dimensions in order. Raise MspcError if they do not fit."""
        count = len(self.paddings)
        if count % 2 or count > 2 * rank:
            raise MspcError(f"PadV3: paddings {self.paddings} are no pairs for at most {rank} dimensions")
        pairs = [(self.paddings[i], self.paddings[i + 1]) for i in range(0, count, 2)]
        return Pad(tuple([(0, 0)] * (rank - len(pairs)) + pairs[::-1]))

    def index_map(self, *types: TensorType) -> IndexMap:
        inside = padded(types[0].shape, self.padding(types[0].rank).paddings)
        return IndexMap(inside.dims, (*inside.pieces, IndexBlock(1, ())))

    def rule(self, x: TensorType, value: TensorType) -> str:
        left, _, right = self.padding(len(x.shape)).rule(x).partition("->")
        return f"{left},  ->{right}"

    def bprop(self, b: Builder, x: Value, value: Value, out: Value, dout: Value) -> Gradients:
        (dx,) = self.padding(len(x.shape)).bprop(b, x, out, dout)
        assert dx is not None
        total, inner = b.emit(ReduceSum(), dout), b.emit(ReduceSum(), dx)
        return dx, b.emit(Sub(), total, inner)

    def compute(self, xp: Any, x: Any, value: Any) -> Any:
        pairs = self.padding(x.ndim).paddings
        shape = [n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True)]
        out = xp.full(shape, value, x.dtype)
        out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pairs, strict=True))] = x
        return out
