"""Values of the interpreted program that are neither tensors nor plain Python objects, and running functions.

Tensors are values of the graph; everything known at compile time is an ordinary Python object.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np

from mspc.compiler.frontend.source import FunctionSource, assigned_names
from mspc.ir.diagnostics import Frames, MspcError, value_repr
from mspc.ir.graph import Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.temporary import temporarily
from mspc.mindspore_api.common.parameter import Parameter as Weight
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell


class Poisoned(Exception):
    """Raised if a statement reads a name left without a value by an earlier error that has been noted."""


class Unrolled(Exception):
    """Raised if equal cells cannot be one graph because something is done for one of them alone."""


class TooManyErrors(Exception):
    """Raised to end a trace that has enough errors to report."""


POISON = object()
"""Value of a name whose statement had an error. A statement that reads it is skipped without another message."""
MISSING = object()
"""Result of looking up a name that does not exist."""
UNSET = object()
"""Result of looking up a name that the function assigns, but has not assigned yet."""


class Returned:
    """End of a function with its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


BREAK = object()
CONTINUE = object()
END = object()
"""Everything up to the end of the innermost loop, or `with`, has been run."""

NEVER_ENDS = "the loop never ends: its condition always holds, and nothing leaves it"

LEFT, RETURNED = "left", "returned"
KINDS = ("continued", LEFT, RETURNED)
"""Ways to leave a block early: by `continue`, `break` and `return`."""


class Exit:
    """End of a block that may have been left in several ways.

    flags: for each of `KINDS` whether the block was left that way: True, False, or a Bool of shape (). value: the
    returned value if it was left by `return`, otherwise zeros of the same types.
    """

    __slots__ = ("flags", "value")

    def __init__(self, flags: dict[str, Any], value: Any) -> None:
        self.flags = flags
        self.value = value

    def may(self, kind: str) -> bool:
        return self.flags[kind] is not False


def exit_of(signal: Any) -> Exit:
    """Return the same as an Exit for any signal. All flags are False for `None` and `END`."""
    if isinstance(signal, Exit):
        return signal
    kind = RETURNED if isinstance(signal, Returned) else {CONTINUE: "continued", BREAK: LEFT}.get(signal)
    return Exit({each: each == kind for each in KINDS}, signal.value if isinstance(signal, Returned) else MISSING)


def simplest(signal: Exit) -> Any:
    """Return the simplest equivalent signal if only one way is possible, otherwise `signal`."""
    flags = signal.flags
    if any(isinstance(flag, Value) for flag in flags.values()):
        return signal
    if flags[RETURNED]:
        return Returned(signal.value)
    return BREAK if flags[LEFT] else CONTINUE if flags["continued"] else END


@dataclass(frozen=True)
class Closure:
    """A function or lambda defined inside a traced function."""

    source: FunctionSource
    frame: Frame
    defaults: tuple[Any, ...]
    keyword_defaults: Mapping[str, Any]

    @property
    def name(self) -> str:
        return getattr(self.source.tree, "name", "<lambda>")

    def __call__(self, *_: Any) -> Any:
        """Raise AssertionError: closures are read, never run. Gradient requests take callable objects only."""
        raise AssertionError(f"{self.name} is run outside of the front end")


@dataclass(frozen=True)
class TensorMethod:
    """A method of a tensor, such as `x.sum`, that is not called yet."""

    value: Value
    name: str


@dataclass(frozen=True, eq=False)
class Undecided:
    """Value of a name after an `if` on the contents of a tensor, if the branches left values that are not tensors of
    one type and shape. An operation on it applies to the value of the path taken, if both are known.

    within: its tensors are known only inside the branches. holds: the condition of `left`, if it is known here.
    """

    left: Any
    right: Any
    within: bool = False
    holds: Value | None = None

    def __str__(self) -> str:
        return f"{_of_one_way(self.left)} or {_of_one_way(self.right)}, depending on the contents of a tensor"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(f"it is {self}")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __getitem__ = _refuse
    __hash__ = object.__hash__


def way_of(*values: Any) -> Value | None:
    """Return the condition of the first `Undecided` value of which both sides are known, or None."""
    for value in values:
        if isinstance(value, Undecided) and not value.within and value.holds is not None:
            return value.holds
    return None


def is_read(fn: Any) -> bool:
    """Return whether `fn` is traced code, whose operators check their operands themselves."""
    return isinstance(fn, Cell | Closure | types.MethodType) or (
        isinstance(fn, types.FunctionType) and not hasattr(fn, "check_arguments")
    )


def on_way(value: Any, holds: Value, way: int) -> Any:
    """Return the value on one path of a condition: way 0 if it holds, way 1 otherwise."""
    while isinstance(value, Undecided) and value.holds is holds:
        value = value.right if way else value.left
    return value


def _of_one_way(value: Any) -> str:
    return f"{describe(value)} of {len(value)}" if isinstance(value, tuple | list | dict) else describe(value)


@dataclass(frozen=True)
class TensorRange:
    """`range(...)` of integers, at least one of which is a tensor known only at run time."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True)
class OneOf:
    """The item at an index known only at run time. `first` is the index of the first of these items."""

    items: tuple[Any, ...]
    place: Value
    first: int = 0


@dataclass(frozen=True)
class OnlyInLoop:
    """Value of a name that first gets a value in a loop that may run no iteration, after that loop."""

    name: str


class Frame:
    """One running function: its names and its current line."""

    __slots__ = (
        "_local_names", "_spans", "call_frames", "caller", "depth", "enclosing", "following", "globals", "locals",
        "phase", "precision", "scope", "source", "to_float",
    )  # fmt: skip

    def __init__(
        self, source: FunctionSource, names: dict[str, Any], global_names: Mapping[str, Any],
        enclosing: Callable[[str], Any] | None, caller: Frame | None, call_frames: Frames,
    ) -> None:  # fmt: skip
        self.source = source
        self.locals = names
        self.globals = global_names
        self.enclosing = enclosing
        self.caller = caller
        self.call_frames = call_frames
        self.scope = caller.scope if caller else "Default"
        self.phase = caller.phase if caller else "forward"
        self.precision: Any = caller.precision if caller else None
        self.to_float: Any = caller.to_float if caller else None
        self.depth = caller.depth + 1 if caller else 0
        self.following: tuple[list[ast.stmt] | None, ...] = ()
        """Statements that follow in the enclosing blocks, outermost first; None for a loop."""
        self._local_names: frozenset[str] | None = None
        self._spans: dict[ast.AST, Frames] = {}

    @property
    def local_names(self) -> frozenset[str]:
        return assigned_names(self.source.tree) if self._local_names is None else self._local_names

    def followed_by(self, statements: list[ast.stmt] | None) -> AbstractContextManager[None]:
        """Enter a block that `statements` follow; None for a loop."""
        return temporarily(self, following=(*self.following, statements))

    def frames(self, node: ast.AST) -> Frames:
        """Return the call stack at `node`, innermost first. Lines of files without a displayed name are left out."""
        if not self.source.file.name:
            return self.call_frames
        found = self._spans.get(node)
        if found is None:
            found = self._spans[node] = (self.source.location(node), *self.call_frames)
        return found

    def error(
        self, node: ast.AST, message: str, notes: Iterable[str] = (), kind: type[Exception] | None = None,
        code: str = "",
    ) -> MspcError:  # fmt: skip
        return MspcError(message, notes=notes, frames=self.frames(node), kind=kind or RuntimeError, code=code)

    def lookup(self, name: str) -> Any:
        """Return the value of a name as this function sees it: its own names first, then those of the enclosing
        functions, the module and Python's builtins. Return `UNSET` for an own name without a value yet, `MISSING`
        for an unknown name."""
        found = self.locals.get(name, MISSING)
        if found is not MISSING:
            return found
        if name in self.local_names:
            return UNSET
        if self.enclosing is not None:
            found = self.enclosing(name)
            if found is not MISSING:
                return found
        found = self.globals.get(name, MISSING)
        return vars(builtins).get(name, MISSING) if found is MISSING else found

    def is_global(self, name: str) -> bool:
        """Return whether a name is neither this function's nor an enclosing one's, but the module's."""
        if name in self.locals or name in self.local_names:
            return False
        if self.enclosing is not None:
            outer = getattr(self.enclosing, "__self__", None)
            if isinstance(outer, Frame):
                return outer.is_global(name)
            if self.enclosing(name) is not MISSING:
                return False
        return name in self.globals


def describe(value: Any) -> str:
    """Return a short text of a value for messages, without addresses."""
    if isinstance(value, Weight):
        return f"{value.message_label} of shape {value.shape}"
    if isinstance(value, Parameter) and value.kind == "parameter":
        return f"parameter '{value.name}' {value.type}"
    if isinstance(value, Value):
        return f"a tensor {value.type}"
    if isinstance(value, TensorMethod):
        return f"method {value.name}() of {describe(value.value)}"
    if isinstance(value, Undecided):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value_repr(value)
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, OneOf):
        return f"one of {len(value.items)} elements, by the contents of a tensor"
    if isinstance(value, TensorRange):
        return "a range that a tensor counts"
    if isinstance(value, Closure | type) or hasattr(value, "__name__"):
        return f"'{getattr(value, 'name', None) or getattr(value, '__name__', '')}'"
    return f"a {type(value).__name__}"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return a note with the most similar known name, or no note."""
    close = difflib.get_close_matches(name, list(known), 1)
    return [f"did you mean '{close[0]}'?"] if close else []


COMPUTED = (Value, TensorMethod, Undecided)
"""Types of values that only a run of the graph knows and that no object of the script holds."""


def contains_tensor(value: Any, kinds: tuple[type, ...] = (*COMPUTED, Weight)) -> bool:
    """Return whether `value` is or holds a tensor that only a run of the graph knows. Parameters are such tensors."""
    return next(values_in(value, kinds), None) is not None


def values_in(value: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield the values of these types that `value` is or holds, in order."""
    if isinstance(value, kinds):
        yield value
        return
    items: Iterable[Any] = ()
    if isinstance(value, functools.partial):
        items = (value.args, value.keywords)
    elif isinstance(value, tuple | list | set | frozenset):
        items = value
    elif isinstance(value, dict):
        items = value.values()
    elif isinstance(value, slice):
        items = (value.start, value.stop, value.step)
    for item in items:
        yield from values_in(item, kinds)


def tensors_in(value: Any) -> list[Value]:
    """Return all graph values in nested tuples, lists and dicts, in order."""
    if isinstance(value, Value):
        return [value]
    if isinstance(value, tuple | list):
        return [v for item in value for v in tensors_in(item)]
    if isinstance(value, dict):
        return [v for item in value.values() for v in tensors_in(item)]
    if isinstance(value, Undecided) and not value.within:
        return tensors_in((value.left, value.right))
    return []
