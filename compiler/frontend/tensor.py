"""Evaluates attributes and methods of tensors inside `construct`: `x.shape`, `x.reshape(...)`, `x.sum(axis=1)`.

Methods are functions of mspc.api.ops that take the tensor first; they are read as any function is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.api.ops.function_arguments import exchanged, permutation
from mspc.api.ops.method_table import find_method, method_names, misfit, respelled
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import TensorMethod, nearest
from mspc.ir.graph import Value


def attribute(tracer: Tracer, x: Value, name: str) -> Any:
    """`x.name`: something known at compile time, another tensor, or a method to be called.

    Raises:
        MspcError: tensors have no such attribute.
    """
    known = ATTRIBUTES.get(name)
    if known is not None:
        return known(tracer, x)
    if find_method(name) is not None:
        return TensorMethod(x, name)
    if name == "register_hook":
        return TensorMethod(x, name)
    if name == "value":
        return TensorMethod(x, "copy")
    if name in OUTSIDE:
        instead = OUTSIDE[name] or "compute with the tensor itself, or read its values where the network is called"
        raise tracer.error(f"x.{name} needs the contents of a tensor, which are not known at compile time", [instead])
    raise tracer.error(
        f"a tensor has no attribute '{name}'", nearest(name, [*ATTRIBUTES, *method_names()]), kind=AttributeError
    )


def method_function(
    tracer: Tracer, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """(the function behind a method that is called with these arguments, the tensor first; those with names as it has
    them).

    Raises:
        MspcError: there is no such method, or the arguments do not fit.
    """
    function = find_method(name)
    if function is None:
        raise tracer.error(f"Tensor.{name}() does not take tensors of the graph", kind=TypeError)
    named = respelled(function, kwargs)
    wrong = misfit(name, function, args, named)
    if wrong:
        raise tracer.error(wrong, kind=TypeError)
    return function, named


def _in_order(t: Tracer, x: Value, order: tuple[int, ...]) -> Any:
    return t.emit(t.op("Transpose", perm=order), x)


ATTRIBUTES: dict[str, Callable[[Tracer, Value], Any]] = {
    "shape": lambda t, x: x.shape,
    "dtype": lambda t, x: x.tensor_type.dtype,
    "ndim": lambda t, x: len(x.shape),
    "size": lambda t, x: x.tensor_type.size,
    "itemsize": lambda t, x: x.tensor_type.dtype.itemsize,
    "nbytes": lambda t, x: x.tensor_type.nbytes,
    "T": lambda t, x: _in_order(t, x, permutation((), len(x.shape))),
    "mT": lambda t, x: _in_order(t, x, exchanged("mT", len(x.shape), -1, -2)),
    "name": lambda t, x: x.name,
}
_ARRAY = "x.shape, x.dtype and x.size are known; mindspore.ops and mindspore.numpy compute what NumPy would"
OUTSIDE = {
    "asnumpy": _ARRAY, "numpy": _ARRAY, "item": "a tensor of one element may take the place of a number: x * y[0]",
    "tolist": "x[0], x[1] and `for row in x` give its elements", "data": "", "init_data": "",
    "set_data": "ops.assign(parameter, value) and `self.parameter = value` give a parameter a new value",
}  # fmt: skip
"""Methods that need values, and what to write instead."""
