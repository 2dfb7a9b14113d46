"""`mindspore.common`: the Tensor, the Parameter, initializers, element types, and the seed."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.common import dtype, initializer, parameter, tensor
from mspc.api.common.api import jit, lazy_inline, mutable
from mspc.api.common.jit_config import JitConfig
from mspc.api.common.parameter import Parameter, ParameterTuple
from mspc.api.common.row_tensor import RowTensor
from mspc.api.common.seed import get_seed, set_seed
from mspc.api.common.tensor import Tensor

_OF_THE_WHOLE = """Generator Symbol default_generator enable_dynamic from_numpy get_rng_state initial_seed is_tensor
jit_class manual_seed no_inline recompute set_dump set_recursion_limit set_rng_state""".split()
"""Names that `mindspore` has, too."""
__all__ = [
    "JitConfig", "Parameter", "ParameterTuple", "RowTensor", "Tensor", "dtype", "get_seed", "initializer", "jit",
    "lazy_inline", "mutable", "parameter", "set_seed", "tensor", *_OF_THE_WHOLE, *dtype.NAMES, *dtype.FUNCTIONS,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _OF_THE_WHOLE:
        return importlib.import_module("mspc.api.names").find(name)
    if name in dtype.NAMES or name in dtype.FUNCTIONS:
        return getattr(dtype, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
