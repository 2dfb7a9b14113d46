"""These operators make tensors of one value, with the arguments of `mindspore.mint` or from a number that a graph
computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.operator_arguments import dtype_arg, plain, shape_of, split_call
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.ops.tensor.creation import Fill, OnesLike, ZerosLike, shape_rule


class ZerosLikeExt(ZerosLike):
    """Zeros of the shape of x. Called as `ZerosLikeExt()(x, dtype)`; None is the element type of x."""

    samples = ZerosLike.samples

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return _in_type(self, args)


class OnesLikeExt(OnesLike):
    """Ones of the shape of x. Called as `OnesLikeExt()(x, dtype)`; None is the element type of x."""

    samples = ZerosLike.samples

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return _in_type(self, args)


def _in_type(op: ZerosLike | OnesLike, args: Sequence[Any]) -> tuple[Op, tuple[Any, ...]]:
    tensors, found = split_call(op.name, args, 1, ("dtype",), optional=1)
    dtype = found.get("dtype")
    if dtype is None or dtype_arg(op.name, "dtype", dtype) == tensors[0].dtype:
        return op, tensors
    return Fill(dtype_arg(op.name, "dtype", dtype), tuple(tensors[0].shape), op.uniform() or 0), ()


class FillV2(Op):
    """A tensor of one value, a tensor of one element. Called as `FillV2()(shape, value)`."""

    shape: tuple[int, ...] = ()
    linear_in = (0,)
    samples = (sample((), shape=(8, 16)), sample((), dtypes=("Int32",), shape=(8,), gradient=False))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            raise MspcError(f"{self.name} takes 2 arguments (shape, value), not {len(args)}", kind=TypeError)
        return replace(self, shape=shape_of(self.name, "shape", plain(args[0]))), args[1:]

    def rule(self, value: TensorType) -> str:
        if value.shape:
            raise MspcError(f"{self.name}: value has shape {value.shape}, not that of a number")
        return shape_rule(self.shape)

    def bprop(self, b: Builder, value: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (sum_to_shape(b, dout, ()),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.full(self.shape, inputs[0], inputs[0].dtype)

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, shape=placement.out_layouts[0].local_shape(self.shape))
