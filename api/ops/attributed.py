"""`_add_attr` makes a function whose operators carry attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.ops.primitive import frozen
from mspc.ir.text.values import value_text
from mspc.ops.operator_arguments import describe


class Attributed:
    """Calls `fn`; in a network the operators that this makes carry `attrs`, as with `add_prim_attr`."""

    def __init__(self, fn: Callable[..., Any], attrs: dict[str, Any]) -> None:
        self.fn, self.attrs = fn, attrs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def add_attr(fn: Any, **attrs: Any) -> Attributed:
    """`fn`, whose operators in a network carry the facts that are given by name; dumps show them.

    Raises:
        TypeError: fn cannot be called, or a fact is nothing that a dump can show.
    """
    if not callable(fn):
        raise ApiTypeError(f"_add_attr: fn must be a function, not {describe(fn)}")
    frozen_attrs = {name: frozen(value) for name, value in attrs.items()}
    for name, value in frozen_attrs.items():
        try:
            value_text(value)
        except TypeError:
            raise ApiTypeError(f"_add_attr: {name} must be plain values, not {describe(attrs[name])}") from None
    return Attributed(fn, frozen_attrs)
