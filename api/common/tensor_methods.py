"""The methods of a Tensor that compute are functions of mspc.api.ops that take a tensor first, looked up on first use
and run at once, so that they give what they give in a compiled function."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.checked import LEAKS, refuse
from mspc.api.ops.function_arguments import sizes_of
from mspc.api.ops.method_table import find_method, method_names, misfit, respelled
from mspc.ir.diagnostics import MspcError, html_table
from mspc.ir.types import DType

SHOWN_ROWS, SHOWN_COLUMNS = 30, 12
"""The largest tensor that a notebook shows as a table."""


_SHARING = frozenset(
    "astype bool broadcast_to byte contiguous double expand expand_as flatten float half int long permute positive "
    "ravel reshape reshape_as short squeeze swapaxes swapdims to transpose type type_as view view_as".split()
)
"""Methods whose result is a view of the tensor if there is nothing to compute, as in MindSpore; others copy it."""


class _OnClass(type):
    """`Tensor.abs`, to be called with a tensor."""

    def __getattr__(cls, name: str) -> Any:
        found = _method(name)
        if found is None:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return found


class TensorMethods(metaclass=_OnClass):
    """Mixed into Tensor."""

    shape: tuple[int, ...]
    dtype: DType
    asnumpy: Callable[..., np.ndarray]

    def __getattr__(self, name: str) -> Any:
        found = _method(name)
        if found is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return types.MethodType(found, self)

    def computed(self, name: str, *args: Any) -> Any:
        """What the method of that name computes of the values, where a class has a method of its own before it."""
        function = _method(name)
        assert function is not None
        return function(self, *args)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *method_names()})

    def _repr_html_(self) -> str | None:
        """A table for notebooks, of a tensor of one or two dimensions that fits on a page."""
        if len(self.shape) not in (1, 2):
            return None
        rows, columns = (1, *self.shape)[-2:]
        if not (0 < rows <= SHOWN_ROWS and 0 < columns <= SHOWN_COLUMNS):
            return None
        return html_table(f"Tensor {list(self.shape)} {self.dtype}", (), self.asnumpy().reshape(rows, columns))

    def reshape(self, *shape: Any) -> Self:
        """The elements in their order in another shape; one size may be -1. Raises ValueError where it does not fit."""
        try:
            return self.computed("reshape", *shape)
        except MspcError:
            raise ApiValueError(f"cannot reshape {self.shape} to {sizes_of(shape)}") from None

    view = reshape

    @property
    def T(self) -> Self:
        """The dimensions in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Self:
        """The last two dimensions exchanged."""
        return self.swapaxes(-1, -2)


def _method(name: str) -> Callable[..., Any] | None:
    function = find_method(name)
    return None if function is None else _run_at_once(name, function)


@functools.cache
def _run_at_once(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a method; its result is always a tensor of its own, also where there is nothing to compute."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = respelled(function, kwargs)
        wrong = misfit(name, function, (self, *args), kwargs)
        if wrong:
            raise ApiTypeError(wrong)
        try:
            result = function(self, *args, **kwargs)
        except MspcError:
            raise
        except LEAKS as error:
            if inspect.isfunction(function):
                refuse(f"Tensor.{name}", function, (self, *args), kwargs, error)
            raise
        if name.endswith("_"):
            return self  # changed in place
        if result is not self:
            return result
        return self.alias() if name in _SHARING else self.copy()

    method.__name__ = method.__qualname__ = name
    method.__doc__ = function.__doc__
    method.__dict__["__wrapped__"] = function
    return method
