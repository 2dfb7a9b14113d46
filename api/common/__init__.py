"""Tensor, Parameter, initializers, element types, seed, as `mindspore.common`."""

from __future__ import annotations

from mspc.api.common import dtype, initializer, parameter, tensor
from mspc.api.common.api import jit, lazy_inline, mutable
from mspc.api.common.jit_config import JitConfig
from mspc.api.common.parameter import Parameter, ParameterTuple
from mspc.api.common.row_tensor import RowTensor
from mspc.api.common.seed import get_seed, set_seed
from mspc.api.common.tensor import Tensor

__all__ = [
    "JitConfig", "Parameter", "ParameterTuple", "RowTensor", "Tensor", "dtype", "get_seed", "initializer", "jit",
    "lazy_inline", "mutable", "parameter", "set_seed", "tensor",
]  # fmt: skip
