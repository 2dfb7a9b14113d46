"""Functions of the values of sparse tensors, `csr_relu` and `coo_relu`: places without a value stay so."""

from __future__ import annotations

import functools
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.sparse_tensor import COOTensor, CSRTensor
from mspc.ops.arguments import describe

_FUNCTIONS = """abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor inv isfinite isinf isnan log log1p
    neg relu relu6 round sigmoid sin sinh softsign sqrt square tan tanh""".split()
_NAMES = frozenset(f"{kind}_{function}" for kind in ("coo", "csr") for function in _FUNCTIONS)


def names() -> frozenset[str]:
    """The functions."""
    return _NAMES


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(name)
    kind, _, function = name.partition("_")
    return functools.partial(_of_coordinates if kind == "coo" else _of_rows, name, getattr(ops, function))


def _operand(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The only argument of a call, x. Raises TypeError where there is another, or none."""
    if len(args) + len(kwargs) != 1 or (kwargs and "x" not in kwargs):
        raise ApiTypeError(f"{name}() takes x alone")
    return args[0] if args else kwargs["x"]


def _of_coordinates(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    x = _operand(name, args, kwargs)
    if not isinstance(x, COOTensor):
        raise ApiTypeError(f"{name}(): x must be a COOTensor, not {describe(x)}")
    return COOTensor(x.indices, function(x.values), x.shape)


def _of_rows(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    x = _operand(name, args, kwargs)
    if not isinstance(x, CSRTensor):
        raise ApiTypeError(f"{name}(): x must be a CSRTensor, not {describe(x)}")
    return CSRTensor(x.indptr, x.indices, function(x.values), x.shape)
