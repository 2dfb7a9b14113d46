"""Small functions among the public names."""

from __future__ import annotations

from typing import Any

from mspc.api.common.executor import CellGraphExecutor
from mspc.api.common.gradient import jit
from mspc.api.common.tensor import Tensor

_cell_graph_executor = CellGraphExecutor()
_CellGraphExecutor = CellGraphExecutor
_executor, _Executor = _cell_graph_executor, CellGraphExecutor
"""Their names in MindSpore 1."""
from_numpy = Tensor.from_numpy
ms_function = jit


def tensor(input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None) -> Tensor:
    """A Tensor."""
    return Tensor(input_data, dtype, shape, init)


def jit_class(cls: type) -> type:
    """Accepted; classes used in `construct` need no mark."""
    return cls


ms_class = jit_class


def lazy_inline(fn: Any = None, attrs: Any = None, policy: Any = None) -> Any:
    """Accepted as a decorator of `__init__`, bare or with arguments; cells are always inlined."""
    return fn if callable(fn) else lambda decorated: decorated
