"""Grids of ranks for experts: which ranks share the batch, the experts, and the products of each."""

from __future__ import annotations

import math
from dataclasses import replace

from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ir.types import TensorType
from mspc.ops.math.grouped_product import MOST_ROWS

Entry = tuple[int, ...]


@dataclass(frozen=True)
class ExpertMesh:
    """Ranks of a grouped product whose experts are sharded.

    matrix: sizes of the grid. of_batch, of_experts, of_inner, of_results: its axes that shard rows, experts, and the
    two dimensions of every expert's product. room: the most rows that go to the experts of one rank; 0 where all may.
    """

    matrix: tuple[int, ...]
    of_batch: Entry
    of_experts: Entry
    of_inner: Entry
    of_results: Entry
    room: int = 0

    @property
    def outer(self) -> int:
        return self._size(self.of_batch)

    @property
    def parts(self) -> int:
        return self._size(self.of_experts)

    @property
    def of_blocks(self) -> tuple[object, ...]:
        """What products of equal blocks have in common, whatever their own dimensions are sharded by."""
        return self.of_batch, self.of_experts, self.outer, self.parts, self.room

    def of_product(self, transposed: bool) -> tuple[NamedLayout, ...]:
        """The strategy of an ExpertProduct."""
        inner = (self.of_results, self.of_inner) if transposed else (self.of_inner, self.of_results)
        blocks = (*self.of_batch, *self.of_experts)
        return (
            self._layout(blocks, self.of_inner), self._layout(self.of_experts, *inner),
            self._layout(self.of_batch, self.of_experts, ()),
        )  # fmt: skip

    def of_lookup(self, type: TensorType, of_product: bool) -> tuple[NamedLayout, ...] | None:
        """The strategy of a lookup that gives a tensor of this type with a slice of its rows on every rank, None where
        its rows cannot be shared so. of_product: a product reads it."""
        blocks = (*self.of_batch, *self.of_experts)
        if type.shape[0] % self._size(blocks):
            return None
        rest: list[Entry] = [()] * (len(type.shape) - 1)
        if of_product:
            rest[-1] = self.of_inner
        return self._layout((), *rest), self._layout(blocks)

    def _size(self, axes: Entry) -> int:
        return math.prod(self.matrix[a] for a in axes)

    def _layout(self, *dims: Entry) -> NamedLayout:
        last = len(self.matrix) - 1
        entries = [tuple(last - a for a in axes) or (-1,) for axes in dims]
        names = tuple(f"axis{i}" for i in range(len(self.matrix)))
        return NamedLayout(self.matrix, names, tuple(e[0] if len(e) == 1 else e for e in entries))


def mesh_of(node: Node, ranks: int) -> ExpertMesh | None:
    """The grid of a grouped product, None where its experts are not sharded, or its strategy is a mistake.

    Ranks that a strategy of numbers leaves over share the batch, where they divide its rows. The batch is shared along
    the slowest axis, the experts along the next, so that those who exchange rows are next to each other.
    """
    strategy = spread(node.in_strategy or ())
    if len(strategy) != 3:
        return None
    x, w, _ = strategy
    transposed = bool(getattr(node.op, "transpose_b", False))
    if isinstance(x, NamedLayout) or isinstance(w, NamedLayout):
        return _named(node, x, w, ranks)
    if len(x) != 2 or len(w) != 3 or not all(isinstance(n, int) and n > 0 for n in (*x, *w)) or w[0] == 1:
        return None
    inner, results = (w[2], w[1]) if transposed else (w[1], w[2])
    used = x[0] * w[0] * inner * results
    rows, experts = node.inputs[0].shape[0], node.inputs[1].shape[0]
    if ranks % used or x[1] != inner or experts % w[0] or rows % x[0]:
        return None
    outer, rest = (x[0], ranks // used)
    if rows % (outer * rest) == 0:
        outer, rest = outer * rest, 1
    return _with_room(node, ExpertMesh((outer, w[0], inner, results, rest), (0,), (1,), (2,), (3,)))


def _with_room(node: Node, mesh: ExpertMesh) -> ExpertMesh:
    """The grid with the room that `most_rows` leaves. Raises MspcError where that is no number from 1 on."""
    most = node.attrs.get(MOST_ROWS)
    if most is None:
        return mesh
    if isinstance(most, bool) or not isinstance(most, int | float) or not most >= 1:
        raise node.error(
            f"{node.label}: {MOST_ROWS} is {most!r}, not a number from 1 on",
            notes=["it is how many even shares of the rows one rank's experts have room for"],
        )
    rows = node.inputs[0].shape[0] // mesh.outer
    room = min(rows, math.ceil(most * rows / mesh.parts))
    return replace(mesh, room=0 if room == rows else room)


def _named(node: Node, x: object, w: object, ranks: int) -> ExpertMesh | None:
    """The grid that layouts name."""
    transposed = bool(getattr(node.op, "transpose_b", False))
    if not isinstance(x, NamedLayout) or not isinstance(w, NamedLayout) or len(x.axes) != 2 or len(w.axes) != 3:
        return None
    inner, results = (w.axes[2], w.axes[1]) if transposed else (w.axes[1], w.axes[2])
    fits = x.device_matrix == w.device_matrix and math.prod(x.device_matrix) == ranks and x.axes[1] == inner
    own = (*x.axes[0], *w.axes[0], *inner, *results)
    if not fits or len(set(own)) < len(own):
        return None
    mesh = ExpertMesh(x.device_matrix, x.axes[0], w.axes[0], inner, results)
    rows, experts = node.inputs[0].shape[0], node.inputs[1].shape[0]
    if mesh.parts == 1 or rows % mesh.outer or experts % mesh.parts:
        return None
    return _with_room(node, mesh)
