"""Arguments of calls: bound by Python's rules, named in errors, and parameters that stay values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mspc.compiler.frontend.source import FunctionTree
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import describe
from mspc.ir.diagnostics import OWN_FILES, MspcError
from mspc.ir.graph import Parameter
from mspc.mindspore_api.common import parameter as session
from mspc.mindspore_api.ops.checked import explained
from mspc.ops.tensor.reshape import Cast


def bind(
    tree: FunctionTree, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], defaults: Sequence[Any],
    keyword_defaults: Mapping[str, Any], is_method: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the function's local names at its start.

    defaults: values of the last positional parameters. is_method: the first parameter is `self`, which messages do not
    count. Raise MspcError for too few, too many or unknown arguments.
    """
    spec = tree.args
    positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    if not kwargs and len(args) == len(positional) and not (spec.vararg or spec.kwarg or spec.kwonlyargs):
        return dict(zip(positional, args, strict=True))
    bound = dict(zip(positional, args, strict=False))
    if spec.vararg:
        bound[spec.vararg.arg] = tuple(args[len(positional) :])
    elif len(args) > len(positional):
        shown = positional[int(is_method) :]
        count = f"{max(len(shown) - len(defaults), 0)} to {len(shown)}" if defaults else str(len(shown))
        taken = f"takes {count} argument{'s' * (count != '1')} ({', '.join(shown)})"
        raise MspcError(f"{name}() {taken}, not {len(args) - int(is_method)}", kind=TypeError)
    only = [a.arg for a in spec.kwonlyargs]
    positional_only = {a.arg for a in spec.posonlyargs}
    extra: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in bound and key in positional:
            raise MspcError(f"{name}() got two values for argument '{key}'", kind=TypeError, code="E0209")
        if (key in positional and key not in positional_only) or key in only:
            bound[key] = value
        elif spec.kwarg:
            extra[key] = value
        else:
            raise MspcError(
                f"{name}() has no argument '{key}'", notes=[f"it takes {', '.join([*positional, *only])}"],
                kind=TypeError, code="E0209",
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
        raise MspcError(
            f"{name}() misses the argument{'s' * (len(missing) > 1)} {listed}", kind=TypeError, code="E0209"
        )
    return bound


@contextmanager
def naming_arguments(
    tracer: Tracer, label: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], depth: int
) -> Generator[None]:
    """Turn Python's errors about values inside a function, called `label` at this call depth, into messages that name
    its arguments. Other errors, including those in functions of the script that it calls, are not changed."""

    def named(error: MspcError) -> MspcError:
        in_script = len(error.frames) > depth and not error.frames[0].file.startswith(OWN_FILES)
        if error.python is None or in_script:
            return error
        message, notes = explained(label, function, args, kwargs, error.python, describe)
        kind = ValueError if isinstance(error.python, ValueError | ArithmeticError) else TypeError
        frames = tuple(frame for frame in error.frames if not frame.file.startswith(OWN_FILES))
        return MspcError(message, None, notes, frames, kind=kind)

    first = len(tracer.errors)
    try:
        yield
    except MspcError as error:
        raise named(error) from None
    finally:
        tracer.errors[first:] = map(named, tracer.errors[first:])


def as_it_is(tracer: Tracer, value: Any) -> Any:
    """Return the current value of a parameter as a cast to its own type. The cast is removed later if nothing
    overwrites the parameter before a reader. Return any other value unchanged."""
    if isinstance(value, session.Parameter):
        value = tracer.value(value)
    if not isinstance(value, Parameter) or value.kind != "parameter":
        return value
    return tracer.emit(Cast(dst_type=value.tensor_type.dtype), value)
