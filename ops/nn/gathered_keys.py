"""Keys and values of attention may be stored on other ranks than those that read them: in slices of the sequence, or
beside other queries than those that share their heads. Every rank gathers what it looks at before it computes, and
holds all keys and values of its heads while it does. (`context_attention` does not.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.named_layout import NamedLayout
from mspc.ops.control.constraint import constrained
from mspc.ops.nn.attention_ring import HEADS, SEQUENCE
from mspc.ops.op import Op, RequestedSharding


def keys_gathered(
    b: Builder, op: Op, layout: str, asked: RequestedSharding, inputs: Sequence[Value], *, sequence: bool = True,
    key_heads: int = 0,
) -> Node | None:
    """`op` of (query, key, value, ...) with keys and values that are stored as the strategy says and read otherwise;
    None where the strategy stores them as they are read.

    sequence: they are gathered along the sequence. key_heads: where it is not 0, there are so many, and they are read
    where their queries are.
    """
    given = asked.in_strategy
    if given is None or layout not in SEQUENCE or len(given) != len(inputs):
        return None
    read = given[1:3]
    if key_heads:
        read = tuple(_beside_queries(given[0], entry, HEADS[layout], key_heads) for entry in read)
    if sequence:
        read = tuple(_with_axes(entry, SEQUENCE[layout], ()) for entry in read)
    if read == given[1:3]:
        return None
    stored = [constrained(b, value, entry) for value, entry in zip(inputs[1:3], given[1:3], strict=True)]
    found = b.emit(op, inputs[0], *stored, *inputs[3:])
    found.in_strategy, found.out_strategy = (given[0], *read, *given[3:]), asked.out_strategy
    return found


def _beside_queries(query: Any, entry: Any, heads: int, key_heads: int) -> Any:
    """A Layout of keys with their heads along the axes that shard those of the queries: the first of these that shard
    the `key_heads` groups, since a group's queries lie one after the other. Unchanged where it has another number of
    slices, which is a mistake for others to tell."""
    if not (isinstance(query, NamedLayout) and isinstance(entry, NamedLayout)):
        return entry
    if entry.device_matrix != query.device_matrix or max(len(query.axes), len(entry.axes)) <= heads:
        return entry
    axes = query.axes[heads]
    while math.prod(query.device_matrix[axis] for axis in axes) > key_heads:
        axes = axes[:-1]
    slice_count = math.prod(query.device_matrix[axis] for axis in axes)
    return _with_axes(entry, heads, axes) if entry.strategy[heads] == slice_count else entry


def _with_axes(entry: Any, dimension: int, axes: tuple[int, ...]) -> Any:
    """A strategy with one dimension along these axes, counted from the left; a tuple of numbers only with none."""
    if not isinstance(entry, NamedLayout):
        return tuple(1 if i == dimension else count for i, count in enumerate(entry))
    if dimension >= len(entry.axes):
        return entry
    last, tensor_map = len(entry.device_matrix) - 1, list(entry.tensor_map)
    tensor_map[dimension] = -1 if not axes else last - axes[0] if len(axes) == 1 else tuple(last - a for a in axes)
    return replace(entry, tensor_map=tuple(tensor_map))
