"""These classes of operators are a function of `ops` with arguments given ahead: `Cross(1)(x, y)` is `cross(x, y,
dim=1)`. The index has a row for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.ops.composite_marks import CompositeMarks


class FunctionAhead(CompositeMarks):
    """A function of `ops`, with what the operator is made with."""

    _function: Callable[[], Any]
    """Gives the function."""
    signature: inspect.Signature
    """Of the constructor: what the operator is made with."""
    renamed: dict[str, str]
    """Arguments that the function calls otherwise, by the operator's names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(self.signature.parameters) or "nothing"
            raise ApiTypeError(f"{name}: {error}", [f"it is made with {takes}"]) from None
        bound.apply_defaults()
        given = {self.renamed.get(field, field): value for field, value in bound.arguments.items()}
        function = type(self)._function()
        self.applied = functools.partial(function, **given) if given else function
        self.__dict__.update(bound.arguments)

    def __call__(self, *inputs: Any) -> Any:
        return self.applied(*inputs)


def class_of(
    name: str, called: str, function: Callable[[], Any], signature: inspect.Signature, renamed: dict[str, str]
) -> type[FunctionAhead]:
    """The class of that name. called: what the function is called. function: gives it, when an operator is made."""
    described = f"`ops.{called}`, made with {', '.join(signature.parameters) or 'nothing'}; called with its tensors."
    body = {"_function": staticmethod(function), "signature": signature, "renamed": renamed, "__doc__": described}
    return type(name, (FunctionAhead,), {**body, "__module__": __name__})
