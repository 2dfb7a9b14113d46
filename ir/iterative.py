"""Searches of graphs, and recursion deeper than Python's stack: functions run in a loop, or on a larger stack.

A sum of a thousand terms is a chain of a thousand nodes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")
Item = TypeVar("Item", bound=Hashable)


def reached(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """Yield the starts and all items reached from them, each once and breadth first. following: of one item."""
    found = dict.fromkeys(starts)
    waiting = [*found]
    for item in waiting:
        yield item
        for each in following(item):
            if each not in found:
                found[each] = None
                waiting.append(each)


def iterative(function: Callable[Args, Generator[Any, Any, Result]]) -> Callable[Args, Result]:
    """Return a function for a generator that yields the arguments of a recursive call as a tuple and gets its result.

    Instead of `total += depth(value)` the generator has `total += yield (value,)`. A method yields `(self, value)`.
    Within one outer call, each inner call with the same objects is made once: a graph with few nodes can have very
    many paths if values are read more than once.
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
                known[tuple(map(id, given))] = given, result  # holds the arguments, so that their ids are not reused
                continue
            key = tuple(map(id, inner))
            if key in known:
                result = known[key][1]
            else:
                calls.append((inner, again(*inner)))
                result = None

    return run


DEPTH = 20_000
"""Python's recursion limit inside `deep_calls`: every call in the read source costs several of Python's own."""
STACK = 64 << 20
"""Bytes of stack that hold so many calls even if each goes through C, as calls of a class's own `__getattr__` do. The
usual 8 MiB of a process overflow half way, which ends the process without a message."""
DEPTH_IN_THREAD = 6_000
"""The limit in threads other than the first: their stack of 8 MiB does not grow."""


@contextmanager
def deep_calls() -> Generator[None]:
    """Allow calls to nest this deep inside the block; the first thread's stack may grow up to the process's limit."""
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
    """Let the stack grow to STACK, or as far as the system allows. Return a function that undoes it, or None if nothing
    was changed."""
    try:
        import resource  # not every system has it
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
