"""`HyperMap` and `Map` apply a function to the elements of tuples and lists, including nested ones."""

from __future__ import annotations

from typing import Any


class HyperMap:
    """Calls a function with the first elements of its sequences, with the second ones, and so on; a tuple of its
    result, in the structure of the first sequence.

    Args:
        ops: the function; None takes it as the first argument of each call. reverse: call it with the last elements
        first; results stay in order.
    """

    def __init__(self, ops: Any = None, reverse: bool = False) -> None:
        self.ops, self.reverse = ops, reverse

    def __call__(self, *args: Any) -> Any:
        if self.ops is None:
            return _mapped(args[0], args[1:], self.reverse)
        return _mapped(self.ops, args, self.reverse)


class Map(HyperMap):
    """As HyperMap."""


def _mapped(function: Any, sequences: Any, reverse: bool) -> Any:
    first = sequences[0]
    if isinstance(first, (tuple, list)):
        order = -1 if reverse else 1
        rows = [[s[i] for s in sequences] for i in range(len(first))[::order]]
        found = [_mapped(function, row, reverse) for row in rows]
        return tuple(found[::order])
    return function(*sequences)
