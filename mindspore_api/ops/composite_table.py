"""Operators that are a function of `ops` with arguments given before: `Cross(1)(x, y)` is `cross(x, y, dim=1)`. The
index has a row for each. Marks of scripts on operators that are several operators here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Self

from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.ops.primitive import check_strategy
from mspc.mindspore_api.placement import note_place
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe

PARTS = "it is several operators here, each sharded as its operands are"


class CompositeMarks:
    """The base of classes that scripts make and call as an operator. Its marks are checked, and change nothing, as a
    warning says of those that would."""

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Self:
        """Take a strategy; one that shards nothing is quiet. Raises TypeError or ValueError if it is none."""
        name = type(self).__name__
        given = [check_strategy(each, f"{name}.shard: {what}_strategy")
                 for what, each in (("in", in_strategy), ("out", out_strategy))]  # fmt: skip
        entries = [entry for strategy in given for entry in strategy or ()]
        if any(not isinstance(entry, tuple) or any(shards != 1 for shards in entry) for entry in entries):
            say_once(f"{name}.shard", f"{place_of_caller()}{name}.shard() changes nothing here: {PARTS}")
        return self

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Take a fact for dumps, which show the operators that it is made of, without its `value`. Raises TypeError if
        the name is no string."""
        own = type(self).__name__
        if not isinstance(name, str):
            raise ApiTypeError(f"{own}.add_prim_attr: the name must be a string, not {describe(name)}")
        shown = f"{own}.add_prim_attr({name!r})"
        say_once(shown, f"{place_of_caller()}{shown} changes nothing here: {PARTS}")
        return self

    def set_stage(self, stage: int) -> Self:
        """As an attribute `stage`."""
        return self.add_prim_attr("stage", stage)

    add_pipeline_stage = set_stage

    def set_device(self, device_target: str) -> Self:
        """As an attribute `primitive_target`."""
        return self.add_prim_attr("primitive_target", device_target)

    def recompute(self, mode: bool = True) -> Self:
        """As an attribute `recompute`."""
        return self.add_prim_attr("recompute", mode)

    def place(self, role: str, rank_id: int) -> None:
        """Check a process for the operator; a warning says that it changes nothing. Raises TypeError, ValueError."""
        note_place(f"{type(self).__name__}.place", role, rank_id)


class FunctionAhead(CompositeMarks):
    """A function of `ops`, with the operator's arguments."""

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
    """The class of that name. called: the function's name. function: gives it, when an operator is made."""
    described = f"`ops.{called}`, made with {', '.join(signature.parameters) or 'nothing'}; called with its tensors."
    body = {"_function": staticmethod(function), "signature": signature, "renamed": renamed, "__doc__": described}
    return type(name, (FunctionAhead,), {**body, "__module__": __name__})
