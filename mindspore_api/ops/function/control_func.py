"""Functions for branches, loops and the order of operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mspc.ir.types import FLOAT32, HALVES, INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike


def switch(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` if the condition, of one element, is true, else `y`.

    Examples:
        >>> print(ops.switch(Tensor(True), Tensor(1), Tensor(2)))
        1
    """
    return x if condition else y


class CountedRange:
    """Numbers of a loop that is not unrolled."""

    counts_in_the_run = True
    """Tells the compiler to read `numbers`."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class WhileLoop:
    """Calls a function with its own result as long as a condition holds.

    The condition is evaluated for the value before every iteration. The function returns the types of its arguments.

    Examples:
        >>> loop = ops.WhileLoop()
        >>> print(loop(lambda x: x < 10, lambda x: x * 2, Tensor(3)))
        12
    """

    def __call__(self, cond_func: Any, loop_func: Any, init_val: Any) -> Any:
        _check_functions("WhileLoop", cond_func=cond_func, loop_func=loop_func)
        value = init_val
        while cond_func(value):
            value = loop_func(value)
        return value


class Scan:
    """Calls a function with its own first result and with every element of `xs`, a list, a tuple or a tensor.

    Returns the last first result, and a list of the second results of all calls. If `xs` is None there are `length`
    calls with None. unroll: put every call into the graph; this also happens if elements of `xs` have several types.

    Examples:
        >>> loop = ops.Scan()
        >>> print(loop(lambda total, x: (total + x, total), 0, [1, 2, 3]))
        (6, [0, 1, 3])
    """

    scans = True
    """Tells the compiler that a call of it may be one loop."""

    def __call__(self, loop_func: Any, init: Any, xs: Any, length: Any = None, unroll: bool = True) -> Any:
        _check_functions("Scan", loop_func=loop_func)
        if not isinstance(unroll, bool):
            raise ApiTypeError(f"Scan: unroll must be a bool, not {unroll}")
        items = [None] * _length(length) if xs is None else xs
        carry = init
        found: list[Any] = []
        for x in items:
            result = loop_func(carry, x)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise ApiValueError("Scan: loop_func returns two values: the carried one, and a result")
            carry, y = result
            found.append(y)
        return carry, found


class ScannedTables:
    """Rows of several tensors as the elements of a `Scan` that is one loop, from the last row on with `reverse`."""

    def __init__(self, tables: tuple[Any, ...], reverse: bool) -> None:
        self.tables, self.reverse = tables, reverse


def _length(length: Any) -> int:
    if not isinstance(length, int) or isinstance(length, bool):
        raise ApiTypeError(f"Scan: length must be an integer if xs is None, not {length}")
    return length


def _check_functions(name: str, **functions: Any) -> None:
    for argument, function in functions.items():
        if not callable(function):
            raise ApiTypeError(f"{name}: {argument} must be a function, not {function}")


def moe_token_permute(
    tokens: TensorLike, indices: TensorLike, num_out_tokens: int | None = None, padded_mode: bool = False
) -> Any:
    """Return (tokens in the order of their experts, the row of each choice).

    Args:
        tokens: [n, hidden].
        indices: the experts that every token chose, integers of shape [n, k], or [n] for k = 1. Choices of one expert
            keep their order.
        num_out_tokens: how many of the n * k rows to keep, the first ones; None and 0 keep all, a negative number
            removes as many at the end.

    Returns:
        [rows, hidden] and, for every choice in the order of `indices`, the number of its row, Int32 [n * k].

    Raises ValueError if shapes do not fit, or padded_mode is True, which MindSpore does not support either; TypeError
    if indices are no integers.
    """
    _unpadded("moe_token_permute", padded_mode)
    if len(tokens.shape) != 2 or len(indices.shape) not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        raise ApiValueError(
            f"moe_token_permute: tokens {tokens.shape} must be [n, hidden], indices {indices.shape} [n] or [n, k]"
        )
    if not indices.dtype.is_integer:
        raise ApiTypeError(f"moe_token_permute: indices must be integers, not {indices.dtype}")
    chosen = ops.reshape(indices, (-1,))
    count = chosen.shape[0]
    # Distinct keys keep the order of choices of one expert.
    keys = ops.cast(chosen, INT64) * count + ops.arange(0, count, 1, dtype=INT64)
    order = ops.argsort(keys)
    rows = ops.argsort(order)
    selected = slice(None, num_out_tokens or None)
    return ops.gather(tokens, (order // (count // tokens.shape[0]))[selected], 0), ops.cast(rows, INT32)


def moe_token_unpermute(
    permuted_tokens: TensorLike, sorted_indices: TensorLike, probs: Any = None, padded_mode: bool = False,
    restore_shape: Any = None,
) -> Any:  # fmt: skip
    """Return tokens in their original order, as the sum over each token's choices, each times its probability.

    Args:
        permuted_tokens: [rows, hidden], the result of `moe_token_permute`. Removed rows are treated as zeros.
        sorted_indices: for every choice the number of its row, integers [n * k].
        probs: [n, k]; None for k = 1 and probabilities of 1.
        restore_shape: only for padded_mode.

    Returns:
        [n, hidden], of the type of `permuted_tokens`; sums of halves are computed in Float32.

    Raises ValueError if shapes do not fit, or padded_mode is True, which MindSpore does not support either; TypeError
    if sorted_indices are no integers.
    """
    _unpadded("moe_token_unpermute", padded_mode)
    if not sorted_indices.dtype.is_integer:
        raise ApiTypeError(f"moe_token_unpermute: sorted_indices must be integers, not {sorted_indices.dtype}")
    count = math.prod(sorted_indices.shape)
    fits = probs is None or (len(probs.shape) == 2 and probs.shape[0] * probs.shape[1] == count)
    if len(permuted_tokens.shape) != 2 or len(sorted_indices.shape) != 1 or not fits:
        of_probs = "" if probs is None else f", probs {probs.shape} [n, k]"
        raise ApiValueError(
            f"moe_token_unpermute: permuted_tokens {permuted_tokens.shape} must be [rows, hidden], sorted_indices "
            f"{sorted_indices.shape} [n * k]{of_probs}"
        )
    choices = 1 if probs is None else probs.shape[1]
    rows, hidden = permuted_tokens.shape
    dtype = permuted_tokens.dtype
    values = permuted_tokens
    if rows < count:
        values = ops.concat((values, ops.zeros((count - rows, hidden), dtype)), 0)
    found = ops.reshape(ops.gather(values, sorted_indices, 0), (count // choices, choices, hidden))
    if dtype in HALVES:
        found = ops.cast(found, FLOAT32)  # after the lookup, which may fetch rows from other ranks
    if probs is not None:
        found = found * ops.expand_dims(ops.cast(probs, found.dtype), -1)
    return ops.cast(ops.reduce_sum(found, 1), dtype)


def _unpadded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise ApiValueError(f"{name}: padded_mode is always False: experts take the tokens that chose them")
