"""Classes of MindSpore's operators that are a function of `ops` with arguments given ahead: `Cross(1)(x, y)` is
`cross(x, y, dim=1)`. The index has a row for each."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.composed_marks import Composed


class FunctionAhead(Composed):
    """A function of `ops`, with what the operator is made with."""

    function: str
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
        function = getattr(ops, self.function)
        self.applied = functools.partial(function, **given) if given else function
        self.__dict__.update(bound.arguments)

    def __call__(self, *inputs: Any) -> Any:
        return self.applied(*inputs)


def class_of(name: str, function: str, signature: inspect.Signature, renamed: dict[str, str]) -> type[FunctionAhead]:
    """The class of that name."""
    described = f"`ops.{function}`, made with {', '.join(signature.parameters) or 'nothing'}; called with its tensors."
    body = {"function": function, "signature": signature, "renamed": renamed, "__doc__": described}
    return type(name, (FunctionAhead,), {**body, "__module__": __name__})
