"""`HyperMap` and `Map`: a function over the elements of tuples and lists, those inside others included."""

from __future__ import annotations

from typing import Any


class HyperMap:
    """Calls a function with the first elements of its sequences, with the second ones, and so on; a tuple of what it
    returns, in the structure of the first sequence.

    Args:
        ops: the function; None takes it as the first argument of each call.
    """

    def __init__(self, ops: Any = None, reverse: bool = False) -> None:
        self.ops = ops

    def __call__(self, *args: Any) -> Any:
        if self.ops is None:
            return _mapped(args[0], args[1:])
        return _mapped(self.ops, args)


class Map(HyperMap):
    """As HyperMap."""


def _mapped(function: Any, sequences: Any) -> Any:
    first = sequences[0]
    if isinstance(first, (tuple, list)):
        return tuple([_mapped(function, [s[i] for s in sequences]) for i in range(len(first))])
    return function(*sequences)
