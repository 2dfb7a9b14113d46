"""These operators make tensors of one value with the arguments of `mindspore.mint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ops.op import Op
from mspc.ops.operator_arguments import dtype_arg, split_call
from mspc.ops.tensor.creation import Fill, OnesLike, ZerosLike


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
