"""This module says which operators take complex numbers outside of a network, where there are no gradients."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import refuse_bool, refuse_complex
from mspc.ir.types import Type
from mspc.ops.op import Op

_WITHOUT_GRADIENT = frozenset(
    """ACos Acosh AddExt Asin Asinh Atan Atanh BatchMatMul BatchMatMulExt Cos Cosh CumProd CumSum CumsumExt
    Eig EmbeddingLookup Equal Exp Expm1 Gather GatherD GatherNd Identity IndexSelect Inv IsClose IsFinite IsInf IsNan
    Log Log1p MaskedFill MatMul MatMulExt MeanExt NotEqual OnesLikeExt Outer Pow Reciprocal ReduceAll ReduceAny
    ReduceMean ReduceProd RepeatInterleaveInt RepeatInterleaveTensor ReverseV2 Rsqrt ScatterAdd ScatterNd ScatterNdAdd
    ScatterNdSub ScatterNdUpdate ScatterSub ScatterUpdate Select Sign Sin Sinh SplitTensor SplitV SplitWithSize Sqrt
    Square SubExt Tan Tanh TensorScatterAdd TensorScatterSub TensorScatterUpdate TraceV2 Tril Triu UnsortedSegmentSum
    Assign AssignAdd AssignSub InplaceAdd InplaceSub InplaceUpdate InplaceCopy""".split()
)
"""Operators whose kernels compute with complex numbers though their gradients do not."""


def check_complex(op: Op, types: Sequence[Type]) -> None:
    """Raises MspcError where an operator knows real numbers alone, and would drop the imaginary parts, or numbers alone
    and is given Bool."""
    refuse_bool(op, types)
    if op.name not in _WITHOUT_GRADIENT:
        refuse_complex(op, types)
