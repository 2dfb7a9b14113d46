"""Operators that are a function of `ops` with some arguments given first: `Cross(1)(x, y)` is `cross(x, y, dim=1)`. The
index has a row for each. Also marks of scripts on operators that are several operators here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Self

from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.ops.primitive import OperatorMarks, check_strategy
from mspc.mindspore_api.placement import note_place
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe

PARTS = "it is several operators here, each sharded as its operands are"


class CompositeMarks(OperatorMarks):
    """Base of classes that scripts instantiate and call as an operator. Their marks are checked, and change nothing; a
    warning says so if they would."""

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Self:
        """Check a strategy; warn if it shards anything. Raise TypeError or ValueError if it is none."""
        name = type(self).__name__
        given = [check_strategy(each, f"{name}.shard: {what}_strategy")
                 for what, each in (("in", in_strategy), ("out", out_strategy))]  # fmt: skip
        entries = [entry for strategy in given for entry in strategy or ()]
        if any(not isinstance(entry, tuple) or any(shards != 1 for shards in entry) for entry in entries):
            say_once(f"{name}.shard", f"{place_of_caller()}{name}.shard() changes nothing here: {PARTS}")
        return self

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Accept a fact for dumps; a warning says that dumps show the operators that it is made of, without its
        `value`. Raise TypeError if the name is no string."""
        own = type(self).__name__
        if not isinstance(name, str):
            raise ApiTypeError(f"{own}.add_prim_attr: the name must be a string, not {describe(name)}")
        shown = f"{own}.add_prim_attr({name!r})"
        say_once(shown, f"{place_of_caller()}{shown} changes nothing here: {PARTS}")
        return self

    def place(self, role: str, rank_id: int) -> None:
        """Check a process for the operator; a warning says that it changes nothing. Raise TypeError or ValueError for
        invalid arguments."""
        note_place(f"{type(self).__name__}.place", role, rank_id)


class FunctionAhead(CompositeMarks):
    """A function of `ops`, with the operator's arguments."""

    _function: Callable[[], Any]
    """Returns the function."""
    signature: inspect.Signature
    """Signature of the constructor."""
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
    """Return the class of that name. called: the function's name. function: returns it, when an operator is made."""
    described = f"`{called}`, made with {', '.join(signature.parameters) or 'nothing'}; called with its tensors."
    body = {"_function": staticmethod(function), "signature": signature, "renamed": renamed, "__doc__": described}
    return type(name, (FunctionAhead,), {**body, "__module__": __name__})
