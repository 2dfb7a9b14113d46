"""These functions bring the tokens of each expert together, and back."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.checked import TensorLike
from mspc.ir.types import FLOAT32, HALVES, INT32, INT64


def moe_token_permute(
    tokens: TensorLike, indices: TensorLike, num_out_tokens: int | None = None, padded_mode: bool = False
) -> Any:
    """(tokens in the order of their experts, where each choice went).

    Args:
        tokens: [n, hidden].
        indices: the experts that every token chose, integers of shape [n, k], or [n] for k = 1. Choices of one expert
            keep their order.
        num_out_tokens: how many of the n * k rows to keep, the first ones; None and 0 keep all, a negative number
            leaves out as many at the end.

    Returns:
        [rows, hidden] and, of every choice in the order of `indices`, the number of its row, Int32 [n * k].

    Raises:
        ValueError: shapes do not fit, or padded_mode is True, which MindSpore has not either. TypeError: indices are no
        integers.
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
    # Keys that differ: the order of choices of one expert is theirs.
    keys = ops.cast(chosen, INT64) * count + ops.arange(0, count, 1, dtype=INT64)
    order = ops.argsort(keys)
    rows = ops.argsort(order)
    selected = slice(None, num_out_tokens or None)
    return ops.gather(tokens, (order // (count // tokens.shape[0]))[selected], 0), ops.cast(rows, INT32)


def moe_token_unpermute(
    permuted_tokens: TensorLike, sorted_indices: TensorLike, probs: Any = None, padded_mode: bool = False,
    restore_shape: Any = None,
) -> Any:  # fmt: skip
    """Tokens in their own order again, those of one token's choices added up, each times its probability.

    Args:
        permuted_tokens: [rows, hidden], what `moe_token_permute` gave. Rows that were left out count as zeros.
        sorted_indices: of every choice the number of its row, integers [n * k].
        probs: [n, k]; None for k = 1 and probabilities of 1.
        restore_shape: of padded_mode alone.

    Returns:
        [n, hidden], of the type of `permuted_tokens`; sums of halves are made in Float32.

    Raises:
        ValueError: shapes do not fit, or padded_mode is True, which MindSpore has not either. TypeError: sorted_indices
        are no integers.
    """
    _unpadded("moe_token_unpermute", padded_mode)
    if not sorted_indices.dtype.is_integer:
        raise ApiTypeError(f"moe_token_unpermute: sorted_indices must be integers, not {sorted_indices.dtype}")
    count = 1
    for size in sorted_indices.shape:
        count *= size
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
        found = ops.cast(found, FLOAT32)  # behind the lookup, which may bring rows from other ranks
    if probs is not None:
        found = found * ops.expand_dims(ops.cast(probs, found.dtype), -1)
    return ops.cast(ops.reduce_sum(found, 1), dtype)


def _unpadded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise ApiValueError(f"{name}: padded_mode is False always: experts take what chose them")
