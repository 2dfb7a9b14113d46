"""Calls that nest deep while something is read run here, on a stack that has room for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

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
