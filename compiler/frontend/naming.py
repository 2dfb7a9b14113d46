"""Names mistakes that come to light inside of functions and cells of mspc in terms of what the script hands to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mspc.api.ops.checked import explained
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import describe
from mspc.ir.diagnostics import OWN_FILES, MspcError


@contextmanager
def naming_arguments(
    tracer: Tracer, label: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], depth: int
) -> Generator[None]:
    """What Python says of values inside of a function, called `label` at this depth, becomes a message that names its
    arguments; other mistakes, those in a function of the script that it calls among them, stay as they are."""

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
