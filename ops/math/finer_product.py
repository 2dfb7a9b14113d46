"""The operands of these products are sharded finer than the product uses them (`enable_nd_tp`).

x [..., m, k] is sharded by axes that shard n as well, and w [..., k, n] may be, too. Both are gathered; the partial
sums are scattered over the dimension from which x was gathered (n for k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.named_layout import NamedLayout

REQUEST = "enable_nd_tp"


@dataclass(frozen=True)
class FinerProduct:
    """How a product runs. stored: the layout in which each operand arrives, None where the product uses it so.
    used: the layouts in which the product takes them. result: its out_strategy, None where it is the natural one."""

    stored: tuple[NamedLayout | None, NamedLayout | None]
    used: tuple[NamedLayout, NamedLayout]
    result: NamedLayout | None


def finer_product(name: str, transposed: tuple[bool, bool], entries: Sequence[object]) -> FinerProduct:
    """How a product of the layouts `entries` is computed. Raises MspcError where they are no layouts of matrices."""
    layouts = [entry for entry in entries if isinstance(entry, NamedLayout) and len(entry.axes) > 1]
    if len(entries) != 2 or len(layouts) != 2:
        raise MspcError(f"{name}: {REQUEST} needs a Layout for each of its two tensors")
    first, second = layouts
    *batch, m, k = _turned(first.axes, transposed[0])
    *other, inner, n = _turned(second.axes, transposed[1])
    shared = _common_prefix(k, inner)
    used_m = tuple(a for a in m if a not in n)
    result = None
    if (used_m, shared) != (m, k):
        axes = (*batch, (*used_m, *shared), n) if used_m != m else (*batch, used_m, (*n, *shared))
        result = _named(first, axes)
    return FinerProduct(
        (None if result is None else first, None if shared == inner else second),
        (
            _named(first, _turned((*batch, used_m, shared), transposed[0])),
            _named(second, _turned((*other, shared, n), transposed[1])),
        ),
        result,
    )


def _turned(axes: Sequence[tuple[int, ...]], transposed: bool) -> tuple[tuple[int, ...], ...]:
    *batch, row, column = axes
    return (*batch, column, row) if transposed else (*batch, row, column)


def _common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return left[:count]


def _named(like: NamedLayout, axes: Sequence[tuple[int, ...]]) -> NamedLayout:
    last = len(like.device_matrix) - 1
    return replace(like, tensor_map=tuple(tuple(last - a for a in entry) or -1 for entry in axes))
