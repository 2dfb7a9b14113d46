"""`Morph` makes an operator of a user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.parallel.shard import shard
from mspc.ops.operator_arguments import describe


class Morph:
    """Calls `fn`, whose operators become part of the graph and are differentiated there.

    infer_shape and infer_dtype are taken and not called: shapes and element types follow from the operators.

    Raises:
        TypeError: one of them is no function.
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
        """Say how inputs and results are sharded, and return the operator; see `mindspore.shard`."""
        self.fn = shard(self.fn, in_strategy, out_strategy)
        return self

    def add_prim_attr(self, name: str, value: Any) -> Morph:
        """Attach a fact, and return the operator; none of them changes anything."""
        self.attrs[name] = value
        return self
