"""Functions that are one operator: `ops.relu(x)` takes the operator's inputs and then its fields, in their order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mspc.mindspore_api.ops.eager import PrimitiveTypeError
from mspc.mindspore_api.ops.primitive import Primitive, check_types, frozen, primitive_class
from mspc.ops.op import Op

Argument = tuple[tuple[str, ...], Any]
"""(the names of an argument, its default)."""
NEEDED = inspect.Parameter.empty
"""The default of an argument that has none."""


class OperatorFunction(Primitive):
    """An operator as a function: `leaky_relu(x, 0.1)` is `LeakyReLU(0.1)(x)`. Arguments may be named like the
    parameters of its rule. An operator with its own `call` takes that method's arguments.

    takes: the arguments of such a `call`, with MindSpore's names.
    """

    takes: Sequence[Argument] = ()
    is_shared = True

    def applied(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Primitive, Sequence[Any]]:
        inputs, attributes = parameters_of(type(self.op))
        if inputs is None:
            return super().applied(*by_position(self.takes, args, kwargs))
        kwargs = {input_of(name, inputs, attributes): value for name, value in kwargs.items()}
        given = dict(zip((*inputs, *attributes), args, strict=False))
        unknown = [name for name in kwargs if name in given or name not in (*inputs, *attributes)]
        missing = [name for name in inputs if name not in given and name not in kwargs]
        if unknown or missing or len(args) > len(inputs) + len(attributes):
            wrong = f"{len(args)} by position"
            if unknown:
                wrong = f"{unknown[0]!r} is given twice" if unknown[0] in given else f"there is no {unknown[0]!r}"
            elif missing:
                wrong = f"{missing[0]!r} is missing"
            takes = f"it takes {', '.join((*inputs, *attributes))}"
            raise PrimitiveTypeError(f"{self.name}: these arguments do not fit: {wrong}", notes=[takes])
        given |= kwargs
        own = {name: frozen(given[name]) for name in attributes if name in given}
        function = OperatorFunction.of(replace(self.op, **own)) if own else self
        check_types(function.op, list(own))
        return function, [given[name] for name in inputs]


@functools.cache
def function_of(operator: type[Op], takes: tuple[Argument, ...] = ()) -> Primitive:
    """Return the function for this operator with its default attributes. takes: see `OperatorFunction`."""
    made = type(
        operator.__name__,
        (OperatorFunction, primitive_class(operator)),
        {"__doc__": operator.__doc__, "__module__": "mspc.ops", "takes": takes},
    )
    return made()


@functools.cache
def parameters_of(operator: type[Op]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return (names of the inputs, names of the fields that may follow, excluding those for the compiler alone);
    (names, ()) or (None, ()) for an own `call` or `settings`."""
    if operator.settings:
        return None, ()
    own = operator.call is not Op.call
    parameters = list(inspect.signature(operator.call if own else operator.rule).parameters.values())[1:]
    if any(p.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or p.default is not p.empty for p in parameters):
        return None, ()
    names = tuple(p.name for p in parameters)
    known = [f.name for f in fields(operator)]  # type: ignore[arg-type]  # a dataclass
    return names, () if own else tuple(name for name in known if name not in operator.omitted)


_FIRST = frozenset("abs bboxes indices input input_x tensor variable x".split())
_SECOND = frozenset("angle img_metas mat2 other value vec2 y".split())
"""Names that MindSpore's functions have for the first and the second input, whatever the operator's rule calls them."""


def input_of(name: str, inputs: Sequence[str], attributes: Sequence[str]) -> str:
    """Return the operator's name for an argument."""
    if name not in (*inputs, *attributes):
        for place, names in enumerate((_FIRST, _SECOND)):
            if name in names and place < len(inputs):
                return inputs[place]
    return name


def by_position(
    takes: Sequence[Argument], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call with named arguments moved to their positions, as far as their names are known."""
    left, found = dict(kwargs), list(args)
    for names, default in takes[len(args) :]:
        name = next((name for name in names if name in left), None)
        if name is None and (default is NEEDED or not left):
            break
        found.append(default if name is None else left.pop(name))
    return found, left
