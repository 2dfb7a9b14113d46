"""Tensor, Parameter, initializers, element types, seed, as `mindspore.common`."""

from __future__ import annotations

from mspc.api.common import dtype, initializer, parameter, tensor
from mspc.api.common.api import lazy_inline
from mspc.api.common.parameter import Parameter, ParameterTuple
from mspc.api.common.seed import get_seed, set_seed
from mspc.api.common.tensor import Tensor

__all__ = [
    "Parameter", "ParameterTuple", "Tensor", "dtype", "get_seed", "initializer", "lazy_inline", "parameter",
    "set_seed", "tensor",
]  # fmt: skip
