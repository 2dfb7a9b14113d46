"""MindSpore's compiler is asked by these functions; here they answer that there is nothing to ask."""

from __future__ import annotations

from typing import Any, TypeVar

from mspc.api.errors import ApiTypeError
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe

Made = TypeVar("Made")


def _changes_nothing(name: str, why: str) -> None:
    say_once(name, f"{place_of_caller()}{name}() changes nothing here: {why}")


def no_inline(fn: Made = None) -> Made:
    """A decorator: the function itself. Says that it changes nothing: what is called twice is read once, and computed
    for every call."""
    _changes_nothing("no_inline", "functions are always inlined, and equal calls are read once")
    return fn


def set_recursion_limit(recursion_limit: int = 1000) -> None:
    """Says that it changes nothing: calls may be nested as deep as Python's own. Raises TypeError for no integer."""
    if isinstance(recursion_limit, bool) or not isinstance(recursion_limit, int):
        raise ApiTypeError(f"set_recursion_limit(): it must be an integer, not {describe(recursion_limit)}")
    _changes_nothing("set_recursion_limit", "calls may be nested as deep as Python's own, see sys.setrecursionlimit")


def set_dump(target: Any, enabled: bool = True) -> None:
    """Says that it changes nothing, whatever target and enabled are: values are written by ops.TensorDump."""
    _changes_nothing("set_dump", "ops.TensorDump(...) writes tensors, and `mspc verify` compares them with another run")


def enable_dynamic(**kwargs: Any) -> Any:
    """A decorator that declares sizes of arguments; the function itself. Says that it changes nothing, whatever kwargs
    are: a graph is compiled for every shape that a function is called with."""
    _changes_nothing("enable_dynamic", "a function is compiled for every shape that it is called with")
    return lambda fn: fn


def prepare(block: Any, output_recompute: Any, context_fn: Any) -> None:
    """Mark a cell as one whose values are computed again. Raises TypeError for what is no Cell."""
    if not hasattr(block, "recompute") or not hasattr(block, "get_flags"):
        raise ApiTypeError(f"recompute() takes a Cell, not {describe(block)}")
    if output_recompute or context_fn is not None:
        _changes_nothing("recompute(output_recompute, context_fn)", "what is computed again follows from the graph")
    if not block.get_flags().get("recompute"):
        block.recompute()
