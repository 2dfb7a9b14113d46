"""Writes attention out in PyTorch, as the counterpart of the operator that stores no scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tensor = Any


def attention(torch: Any) -> Callable[..., Any]:
    """Called with the operator and its operands; gives its four results, of which the last alone is judged."""

    def run(op: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Any:
        if op.packed or op.keep_prob != 1.0:
            return None
        given = dict(zip(op.optional, rest, strict=True))
        q = _by_head(query, op.input_layout, op.head_num)
        heads = key.shape[-1] // q.shape[-1]  # in layouts that have heads and their depth in one dimension
        k, v = (_by_head(x, op.input_layout, heads) for x in (key, value))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT * op.scale_value
        if "real_shift" in given:
            scores = scores + given["real_shift"]
        if "key_shift" in given:
            scores = scores + given["key_shift"]
        hidden = torch.broadcast_to(_hidden(torch, op, given.get("attn_mask"), *scores.shape[-2:]), scores.shape)
        if "actual_seq_qlen" in given:
            mine, other = (
                (torch.arange(size).reshape(-1, 1) >= given[name]).sum(-1)
                for size, name in zip(scores.shape[-2:], ("actual_seq_qlen", "actual_seq_kvlen"), strict=True)
            )
            last = given["actual_seq_qlen"].shape[0]
            hidden = hidden | (mine.reshape(-1, 1) != other) | (mine.reshape(-1, 1) == last)
        blind = hidden.all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(hidden & ~blind, -torch.inf), -1)
        return None, None, None, _as_given(torch.where(blind, 0, weights @ v), op.input_layout)

    return run


def _by_head(x: Tensor, layout: str, heads: int) -> Tensor:
    """[batch, heads, places, depth]."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(1, 2)
    rows = x if layout == "BSH" else x.transpose(0, 1)
    return rows.reshape(*rows.shape[:2], heads, -1).transpose(1, 2)


def _as_given(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    rows = x.transpose(1, 2)
    if layout == "BSND":
        return rows
    rows = rows.flatten(2)
    return rows if layout == "BSH" else rows.transpose(0, 1)


def _hidden(torch: Any, op: Any, mask: Tensor | None, queries: int, keys: int) -> Tensor:
    """Where a query does not look at a key."""
    place, other = torch.arange(queries).reshape(-1, 1), torch.arange(keys)
    if op.sparse_mode in (3, 4):
        place = place + keys - queries
    nothing = torch.zeros((queries, keys), dtype=torch.bool)
    if op.sparse_mode in (2, 3):
        return other > place
    own = nothing if mask is None else mask.to(torch.bool)
    if op.sparse_mode == 1 or (op.sparse_mode == 0 and mask is None):
        return own
    return own | (other < place - op.pre_tokens) | (other > place + op.next_tokens)
