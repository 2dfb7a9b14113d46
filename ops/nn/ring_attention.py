"""Attention whose keys and values are stored in parts of the sequence: every rank gathers them before it computes.

MindSpore sends the parts round in a ring, as many bytes in all (`enable_ring_attention`, `enable_flash_sp`), or
combines what ranks find in their parts. The result is the same; here a rank holds all keys and values of its heads
while it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.named_layout import NamedLayout
from mspc.ops.control.constraint import constrained
from mspc.ops.op import Asked, Op

REQUESTS = ("enable_ring_attention", "enable_flash_sp")
SEQUENCES = {"BSH": 1, "BNSD": 2, "BSND": 1, "SBH": 0}
"""The dimension of the sequence, by layout."""


def keys_gathered(b: Builder, op: Op, layout: str, asked: Asked, inputs: Sequence[Value]) -> Node | None:
    """`op` of (query, key, value, ...) with keys and values that are stored as the strategy says and read whole along
    the sequence; None where the strategy leaves the sequence whole."""
    given, sequence = asked.in_strategy, SEQUENCES.get(layout)
    if given is None or sequence is None or len(given) != len(inputs):
        return None
    if all(_cuts(entry)[sequence : sequence + 1] in ((), (1,)) for entry in given[1:3]):
        return None
    stored = [constrained(b, value, entry) for value, entry in zip(inputs[1:3], given[1:3], strict=True)]
    found = b.emit(op, inputs[0], *stored, *inputs[3:])
    read = tuple(_whole(entry, sequence) for entry in given[1:3])
    found.in_strategy, found.out_strategy = (given[0], *read, *given[3:]), asked.out_strategy
    return found


def _cuts(entry: Any) -> tuple[int, ...]:
    return entry.strategy if isinstance(entry, NamedLayout) else entry


def _whole(entry: Any, dimension: int) -> Any:
    """A strategy with one dimension whole."""
    if isinstance(entry, NamedLayout):
        cuts = entry.tensor_map
        return replace(entry, tensor_map=(*cuts[:dimension], -1, *cuts[dimension + 1 :]))
    return (*entry[:dimension], 1, *entry[dimension + 1 :])
