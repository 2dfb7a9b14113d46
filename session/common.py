"""What `mindspore.common` offers."""

from __future__ import annotations

from mspc.session import dtypes as dtype
from mspc.session import mindspore_initializer as initializer
from mspc.session import parameter, tensor
from mspc.session.functions import lazy_inline
from mspc.session.parameter import Parameter, ParameterTuple
from mspc.session.seed import get_seed, set_seed
from mspc.session.tensor import Tensor

__all__ = [
    "Parameter", "ParameterTuple", "Tensor", "dtype", "get_seed", "initializer", "lazy_inline", "parameter",
    "set_seed", "tensor",
]  # fmt: skip
