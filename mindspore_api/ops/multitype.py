"""Functions that dispatch on the types of their arguments, are mapped over nested values, or are made from another
function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.mindspore_api.common.api import RowTensor
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.parallel.layout import shard
from mspc.ops.operator_arguments import describe

_KINDS: dict[str, Callable[[Any], bool]] = {
    "Bool": lambda value: isinstance(value, bool),
    "Int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Float": lambda value: isinstance(value, float),
    "Number": lambda value: isinstance(value, int | float),
    "String": lambda value: isinstance(value, str),
    "Tuple": lambda value: isinstance(value, tuple),
    "List": lambda value: isinstance(value, list),
    "None": lambda value: value is None,
    "NoneType": lambda value: value is None,
    "Function": callable,
    **dict.fromkeys(("RowTensor", "RowTensorInner"), lambda value: isinstance(value, RowTensor)),
    **dict.fromkeys(("SparseTensor", "COOTensor", "CSRTensor", "MapTensor"), lambda _: False),
}
"""Those of sparse tensors fit nothing: gradients are dense tensors here."""


class MultitypeFuncGraph:
    """Chooses one of the registered functions by the kinds of its arguments: "Tensor", "Number", "Int", "Float",
    "Bool", "String", "Tuple", "List", "None", "Function" or "RowTensor" for each. Raise TypeError if a kind is none of
    these, or no function takes the arguments of a call."""

    def __init__(self, name: str, read_value: bool = False) -> None:
        self.name = name
        self._functions: list[tuple[tuple[str, ...], Callable[..., Any]]] = []

    def register(self, *kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that registers a function for arguments of these kinds."""
        for kind in kinds:
            if kind != "Tensor" and kind not in _KINDS:
                known = f"it takes {', '.join(['Tensor', *_KINDS])}"
                raise ApiTypeError(f"MultitypeFuncGraph {self.name!r}: there is no kind {kind!r}", [known])

        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            self._functions.append((kinds, function))
            return function

        return keep

    def chosen(self, args: Sequence[Any], is_tensor: Callable[[Any], bool]) -> Callable[..., Any]:
        """Return the function for these arguments, the one registered last if there are several."""
        for kinds, function in reversed(self._functions):
            fits = zip(kinds, args, strict=False)
            if len(kinds) == len(args) and all(
                is_tensor(arg) if kind == "Tensor" else not is_tensor(arg) and _KINDS[kind](arg) for kind, arg in fits
            ):
                return function
        found = ", ".join("Tensor" if is_tensor(arg) else type(arg).__name__ for arg in args)
        known = "; ".join(", ".join(kinds) for kinds, _ in self._functions) or "none"
        raise ApiTypeError(
            f"MultitypeFuncGraph {self.name!r} has no function for ({found})", [f"registered are {known}"]
        )

    def __call__(self, *args: Any) -> Any:
        return self.chosen(args, lambda value: isinstance(value, Tensor))(*args)


class Morph:
    """Calls `fn`; its operators become part of the graph and are differentiated there.

    infer_shape and infer_dtype are accepted and not called: shapes and element types follow from the operators. Raise
    TypeError if one of them is no function.
    """

    def __init__(self, fn: Any, infer_shape: Any = None, infer_dtype: Any = None) -> None:
        for name, value in (("fn", fn), ("infer_shape", infer_shape), ("infer_dtype", infer_dtype)):
            if not callable(value) and (value is not None or name == "fn"):
                raise ApiTypeError(f"Morph: {name} must be a function, not {describe(value)}")
        self.fn: Callable[..., Any] = fn
        self.attrs: dict[str, Any] = {}

    def __call__(self, *inputs: Any) -> Any:
        return self.fn(*inputs)

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Morph:
        """Set the strategies of inputs and results, and return the operator; see `mindspore.shard`."""
        self.fn = shard(self.fn, in_strategy, out_strategy)
        return self

    def add_prim_attr(self, name: str, value: Any) -> Morph:
        """Attach a fact, and return the operator; none of them changes anything."""
        self.attrs[name] = value
        return self
