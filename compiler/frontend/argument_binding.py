"""Binds a call's arguments to a function's parameters, with Python's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.compiler.frontend.source import FunctionTree
from mspc.ir.diagnostics import MspcError


def bind(
    tree: FunctionTree,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    defaults: Sequence[Any],
    keyword_defaults: Mapping[str, Any],
    is_method: bool = False,
) -> dict[str, Any]:
    """The function's local names at its start.

    defaults: values of the last positional parameters. is_method: the first one is `self`, which
    messages do not count.

    Raises:
        MspcError: too few, too many or unknown arguments.
    """
    spec = tree.args
    positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    if not kwargs and len(args) == len(positional) and not (spec.vararg or spec.kwarg or spec.kwonlyargs):
        return dict(zip(positional, args, strict=True))
    bound = dict(zip(positional, args, strict=False))
    if spec.vararg:
        bound[spec.vararg.arg] = tuple(args[len(positional) :])
    elif len(args) > len(positional):
        raise _too_many(name, positional, len(args), len(defaults), int(is_method))
    only = [a.arg for a in spec.kwonlyargs]
    positional_only = {a.arg for a in spec.posonlyargs}
    extra: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in bound and key in positional:
            raise MspcError(f"{name}() got two values for argument '{key}'", kind=TypeError)
        if (key in positional and key not in positional_only) or key in only:
            bound[key] = value
        elif spec.kwarg:
            extra[key] = value
        else:
            raise MspcError(
                f"{name}() has no argument '{key}'", notes=[f"it takes {', '.join([*positional, *only])}"],
                kind=TypeError,
            )
    if spec.kwarg:
        bound[spec.kwarg.arg] = extra
    first_default = len(positional) - len(defaults)
    for i, key in enumerate(positional):
        if key not in bound and i >= first_default:
            bound[key] = defaults[i - first_default]
    for key in only:
        if key not in bound and key in keyword_defaults:
            bound[key] = keyword_defaults[key]
    missing = [key for key in (*positional, *only) if key not in bound]
    if missing:
        listed = ", ".join(f"'{key}'" for key in missing)
        raise MspcError(f"{name}() misses the argument{'s' * (len(missing) > 1)} {listed}", kind=TypeError)
    return bound


def _too_many(name: str, positional: Sequence[str], given: int, defaults: int, hidden: int) -> MspcError:
    """The error of a call with more arguments by position than there are; the first `hidden` are not shown."""
    takes = len(positional) - hidden
    count = f"{max(takes - defaults, 0)} to {takes}" if defaults else str(takes)
    listed = ", ".join(positional[hidden:])
    plural = "s" * (count != "1")
    return MspcError(f"{name}() takes {count} argument{plural} ({listed}), not {given - hidden}", kind=TypeError)
