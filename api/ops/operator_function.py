"""Functions that are one operator: `ops.relu(x)`, of the operator's inputs and then its fields, in their order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mspc.api.ops.eager import PrimitiveTypeError
from mspc.api.ops.primitive import Primitive, frozen, primitive_class
from mspc.ops.op import Op


class OperatorFunction(Primitive):
    """An operator as a function: `leaky_relu(x, 0.1)` is `LeakyReLU(0.1)(x)`. Arguments may be named, as its rule names
    the inputs. An operator with a `call` of its own takes what that takes."""

    def applied(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Primitive, Sequence[Any]]:
        inputs, attributes = parameters_of(type(self.op))
        if inputs is None:
            return super().applied(args, kwargs)
        given = dict(zip((*inputs, *attributes), args, strict=False))
        unknown = [name for name in kwargs if name in given or name not in (*inputs, *attributes)]
        missing = [name for name in inputs if name not in given and name not in kwargs]
        if unknown or missing or len(args) > len(inputs) + len(attributes):
            raise PrimitiveTypeError(
                f"{self.name}: these arguments do not fit", notes=[f"it takes {', '.join((*inputs, *attributes))}"]
            )
        given |= kwargs
        own = {name: frozen(given[name]) for name in attributes if name in given}
        function = OperatorFunction.of(replace(self.op, **own)) if own else self
        return function, [given[name] for name in inputs]


@functools.cache
def function_of(operator: type[Op]) -> Primitive:
    """The function that is this operator with its default attributes."""
    made = type(
        operator.__name__,
        (OperatorFunction, primitive_class(operator)),
        {"__doc__": operator.__doc__, "__module__": "mspc.ops"},
    )
    return made()


@functools.cache
def parameters_of(operator: type[Op]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """(names of the inputs, names of the fields that may follow); (names, ()) or (None, ()) for an own `call`."""
    own = operator.call is not Op.call
    parameters = list(inspect.signature(operator.call if own else operator.rule).parameters.values())[1:]
    if any(p.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or p.default is not p.empty for p in parameters):
        return None, ()
    names = tuple(p.name for p in parameters)
    return names, () if own else tuple(f.name for f in fields(operator))  # type: ignore[arg-type]  # a dataclass
