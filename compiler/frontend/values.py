"""Defines values of the interpreted program that are neither tensors nor plain Python objects, and running functions.

Tensors are values of the graph; all that is known at compile time is an ordinary Python object.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from mspc.compiler.frontend.source import FunctionSource
from mspc.ir.diagnostics import Frames, MspcError, value_repr
from mspc.ir.graph import Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.common.parameter import Parameter as Weight
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell


class Poisoned(Exception):
    """A statement reads what an earlier mistake, already noted, left without a value."""


class Unrolled(Exception):
    """Equal cells cannot be one graph, since something is done for one of them alone."""


class TooManyErrors(Exception):
    """Ends a trace that has enough to report."""


class Poison:
    """The value of a name whose statement had a mistake; reading it skips the reader without another
    message."""


POISON = Poison()
MISSING = object()
"""What looking up a name gives where there is none."""
UNSET = object()
"""What looking up a name gives that the function assigns, but not before this point."""


class Returned:
    """The end of a function: its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


BREAK = object()
CONTINUE = object()
END = object()
"""All up to the end of the innermost loop, or `with`, has been run."""

NEVER_ENDS = "the loop never ends: its condition always holds, and nothing leaves it"

LEFT, RETURNED = "left", "returned"
KINDS = ("continued", LEFT, RETURNED)
"""Ways to leave a block ahead of its end: by `continue`, `break` and `return`."""


class Exit:
    """The end of a block that may have been left in several ways.

    flags: for each of `KINDS` whether the block was left so: True, False, or a Bool of shape (). value: what is
    returned, where it was left by `return`; elsewhere zeros of the same types.
    """

    __slots__ = ("flags", "value")

    def __init__(self, flags: dict[str, Any], value: Any) -> None:
        self.flags = flags
        self.value = value

    def may(self, kind: str) -> bool:
        return self.flags[kind] is not False


def exit_of(signal: Any) -> Exit:
    """The same for every signal; of `None` and `END` all flags are False."""
    if isinstance(signal, Exit):
        return signal
    kind = RETURNED if isinstance(signal, Returned) else {CONTINUE: "continued", BREAK: LEFT}.get(signal)
    return Exit({each: each == kind for each in KINDS}, signal.value if isinstance(signal, Returned) else MISSING)


def simplest(signal: Exit) -> Any:
    """The signal that says the same, where only one way is possible."""
    flags = signal.flags
    if any(isinstance(flag, Value) for flag in flags.values()):
        return signal
    if flags[RETURNED]:
        return Returned(signal.value)
    return BREAK if flags[LEFT] else CONTINUE if flags["continued"] else END


@dataclass(frozen=True)
class Closure:
    """A function or lambda that is defined inside a traced function."""

    source: FunctionSource
    frame: Frame
    defaults: tuple[Any, ...]
    keyword_defaults: Mapping[str, Any]

    @property
    def name(self) -> str:
        return getattr(self.source.tree, "name", "<lambda>")

    def __call__(self, *_: Any) -> Any:
        """Closures are read, never run; they are callable so that requests for gradients accept them."""
        raise AssertionError(f"{self.name} is run outside of the front end")


@dataclass(frozen=True)
class TensorMethod:
    """`x.sum` before it is called."""

    value: Value
    name: str


@dataclass(frozen=True, eq=False)
class Undecided:
    """What a name refers to behind an `if` on the contents of a tensor whose branches left values that are no tensors
    of one type and shape. What is done with it is done with the one that it is, where both are known.

    within: the tensors among them are known inside of the branches alone. holds: the condition of `left`, where it is
    known here.
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
    """The condition of the first of these values that is `Undecided` where both of its sides are known."""
    for value in values:
        if isinstance(value, Undecided) and not value.within and value.holds is not None:
            return value.holds
    return None


def is_read(fn: Any) -> bool:
    """Whether what is called is code whose operators look at their operands themselves."""
    return isinstance(fn, Cell | Closure | types.MethodType) or (
        isinstance(fn, types.FunctionType) and not hasattr(fn, "check_arguments")
    )


def on_way(value: Any, holds: Value, way: int) -> Any:
    """What a value is where a condition holds, way 0, or elsewhere, way 1."""
    while isinstance(value, Undecided) and value.holds is holds:
        value = value.right if way else value.left
    return value


def _of_one_way(value: Any) -> str:
    return f"{describe(value)} of {len(value)}" if isinstance(value, tuple | list | dict) else describe(value)


@dataclass(frozen=True)
class TensorRange:
    """`range(...)` of integers of which the run knows one at least, a tensor."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True)
class OneOf:
    """The one of these items that stands at a place that only the run knows; the first one stands at `first`."""

    items: tuple[Any, ...]
    place: Value
    first: int = 0


@dataclass(frozen=True)
class OnlyInLoop:
    """What a name refers to behind a loop that may have made no turn, and has first given it a value."""

    name: str


class Frame:
    """One running function: its names and its current line."""

    __slots__ = (
        "_local_names", "_spans", "call_frames", "caller", "depth", "enclosing", "following", "globals", "locals",
        "phase", "precision", "scope", "source", "to_float",
    )  # fmt: skip

    def __init__(
        self,
        source: FunctionSource,
        names: dict[str, Any],
        global_names: Mapping[str, Any],
        enclosing: Callable[[str], Any] | None,
        caller: Frame | None,
        call_frames: Frames,
    ) -> None:
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
        """What comes behind the statement in the blocks around it, outermost first; None for a loop."""
        self._local_names: frozenset[str] | None = None
        self._spans: dict[ast.AST, Frames] = {}

    @property
    def local_names(self) -> frozenset[str]:
        if self._local_names is None:
            self._local_names = self.source.assigned
        return self._local_names

    @contextmanager
    def followed_by(self, statements: list[ast.stmt] | None) -> Generator[None]:
        """Inside of a block that `statements` follow; None is a loop."""
        outer = self.following
        self.following = (*outer, statements)
        try:
            yield
        finally:
            self.following = outer

    def frames(self, node: ast.AST) -> Frames:
        """The call stack at `node`, innermost first; lines of files without a shown name are left out."""
        if not self.source.file.name:
            return self.call_frames
        found = self._spans.get(node)
        if found is None:
            found = self._spans[node] = (self.source.location(node), *self.call_frames)
        return found

    def error(
        self,
        node: ast.AST,
        message: str,
        notes: Iterable[str] = (),
        kind: type[Exception] | None = None,
    ) -> MspcError:
        return MspcError(message, notes=notes, frames=self.frames(node), kind=kind or RuntimeError)

    def lookup(self, name: str) -> Any:
        """The value of a name as this function sees it: its own, then those of the functions around it,
        then the module's and Python's. `UNSET` for an own name without a value yet, `MISSING` where
        there is none.
        """
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

    def known_names(self) -> list[str]:
        """Names that could have been meant, for messages."""
        return [*self.locals, *self.globals, *vars(builtins)]


def describe(value: Any) -> str:
    """A short text of a value for messages, without addresses."""
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
    """A note that guesses what was meant."""
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
    """All graph values in nested tuples, lists and dicts, in order."""
    if isinstance(value, Value):
        return [value]
    if isinstance(value, tuple | list):
        return [v for item in value for v in tensors_in(item)]
    if isinstance(value, dict):
        return [v for item in value.values() for v in tensors_in(item)]
    if isinstance(value, Undecided) and not value.within:
        return tensors_in((value.left, value.right))
    return []
