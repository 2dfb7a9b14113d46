"""Functions that choose, and that make and read tuples, as MindSpore's own operators of graphs do."""

from __future__ import annotations

from typing import Any


def switch(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition, of one element, holds, else `y`.

    Examples:
        >>> print(ops.switch(Tensor(True), Tensor(1), Tensor(2)))
        1
    """
    return x if condition else y


def switch_layer(place: Any, layers: Any) -> Any:
    """The layer at a place of a tuple, a list or a CellList, which may then be called.

    Examples:
        >>> print(ops.switch_layer(1, (ops.abs, ops.neg))(Tensor(2)))
        -2
    """
    return layers[place]


def make_tuple(*items: Any) -> Any:
    """The items as a tuple.

    Examples:
        >>> print(ops.make_tuple(1, 2))
        (1, 2)
    """
    return items


def tuple_getitem(items: Any, place: Any) -> Any:
    """An item of a tuple.

    Examples:
        >>> print(ops.tuple_getitem((1, 2), 0))
        1
    """
    return items[place]
