"""Runs recursive functions over graphs without Python's stack, which ends after about a thousand calls: a sum of a
thousand terms is a chain of as many nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator
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
