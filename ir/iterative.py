"""Recursion deeper than Python's stack: functions over graphs run in a loop, and deep calls get a larger stack.

A sum of a thousand terms is a chain of as many nodes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")


def iterative(function: Callable[Args, Generator[Any, Any, Result]]) -> Callable[Args, Result]:
    """Make a function of a generator that yields the arguments of a call of itself, as a tuple, and gets its result.

    Instead of `total += depth(value)` the generator has `total += yield (value,)`. A method yields `(self, value)`.
    Within one call from outside, each inner call with the same objects is made once: a graph in which values are read
    twice again and again has few nodes and very many paths.
    """

    again: Callable[..., Generator[Any, Any, Result]] = function

    @wraps(function)
    def run(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        known: dict[tuple[int, ...], tuple[Any, Any]] = {}
        calls: list[tuple[Any, Generator[Any, Any, Result]]] = [(args, function(*args, **kwargs))]
        result: Any = None
        while True:
            given, generator = calls[-1]
            try:
                inner = generator.send(result)
            except StopIteration as end:
                result = end.value
                calls.pop()
                if not calls:
                    return result
                known[tuple(map(id, given))] = given, result  # with the arguments, as an id must not be used again
                continue
            key = tuple(map(id, inner))
            if key in known:
                result = known[key][1]
            else:
                calls.append((inner, again(*inner)))
                result = None

    return run


DEPTH = 20_000
"""Python's own recursion limit meanwhile: every call in what is read costs several of Python's."""
STACK = 64 << 20
"""Bytes of stack that so many calls fit into, where each goes through C, as those of a class's own `__getattr__` do. In
the 8 MiB that a process usually has they end half way, and the process with them, without a word."""
DEPTH_IN_THREAD = 6_000
"""The limit in other threads than the first, whose stack of 8 MiB does not grow."""


@contextmanager
def deep_calls() -> Generator[None]:
    """Let calls nest that deep; the first thread's stack grows as far as the process may let it."""
    is_first = threading.current_thread() is threading.main_thread()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH if is_first else DEPTH_IN_THREAD))
    restore = _enlarge_stack() if is_first else None
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if restore is not None:
            restore()


def _enlarge_stack() -> Callable[[], None] | None:
    """Let the stack grow to STACK, or as far as the system allows. Returns what takes that back, None where nothing was
    changed."""
    try:
        import resource  # where a system has it
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
