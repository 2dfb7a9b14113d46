"""This module has small functions that are public names."""

from __future__ import annotations

from typing import Any

from mspc.api.common.executor import CellGraphExecutor
from mspc.api.common.gradient import jit
from mspc.api.common.no_grad import _no_grad as _no_grad
from mspc.api.common.operator_engine import PyNativeExecutor
from mspc.api.common.tensor import Tensor
from mspc.api.setting_kind import place_of_caller, say_once

_cell_graph_executor = CellGraphExecutor()
_CellGraphExecutor = CellGraphExecutor
_executor, _Executor = _cell_graph_executor, CellGraphExecutor
"""Their names in MindSpore 1."""
_pynative_executor = PyNativeExecutor()
from_numpy = Tensor.from_numpy
ms_function = jit


def tensor(input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None) -> Tensor:
    """A Tensor."""
    return Tensor(input_data, dtype, shape, init)


def mutable(input_data: Any, dynamic_len: bool = False) -> Any:
    """Returns what it is given: numbers and tuples that a compiled function gets are known when it is compiled, as a
    warning says where they hold numbers; tensors may change from call to call in any case. Within a compiled function
    numbers become tensors, whose values only the run knows."""
    if dynamic_len or not isinstance(input_data, Tensor):
        say_once(
            "mutable",
            f"{place_of_caller()}mutable() changes nothing here: another number, or another length, is another graph",
        )
    return input_data


def is_tensor(obj: Any) -> bool:
    """Whether it is a Tensor."""
    return isinstance(obj, Tensor)


def jit_class(cls: type) -> type:
    """Accepted; classes used in `construct` need no mark."""
    return cls


ms_class = jit_class


def lazy_inline(fn: Any = None, attrs: Any = None, policy: Any = None) -> Any:
    """A decorator of `__init__`, bare or with arguments: equal cells of the class that a `for` statement calls become
    one graph, which a loop runs, where that is possible. Cells elsewhere are inlined."""

    def marked(decorated: Any) -> Any:
        decorated.is_lazily_inlined = True
        return decorated

    return marked(fn) if callable(fn) else marked
