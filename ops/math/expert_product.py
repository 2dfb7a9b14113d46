"""These operators multiply rows that were brought to the experts that they belong to, each by its expert's matrix.

The rows lie in `outer * parts` blocks of equal size, one after the other: block (d, p) has rows of the d-th share of
the batch for the p-th share of the experts, those of one expert together, and is not full: what stands behind its last
expert's rows counts as nothing. `ends` [outer, parts, experts / parts] says where every expert's rows end in its block.
Grouped products whose experts are sharded become these (`passes/sharding/route_experts.py`): unlike rows in the order
of their experts, blocks can be sharded evenly, so that every rank has the rows of its experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample

if TYPE_CHECKING:
    from mspc.ops.cuda.grouped_rows import Grouping

Gradients = Sequence[Value | None]
ENDS = ("Float64", "Float64", "Int64")


class _BlocksOfRows(Op, abstract=True):
    """The last operand is `ends`, the first has the rows of all blocks. filled: rows of a block that belong to experts
    where they share the rows evenly, which what is foreseen reckons with; 0 for all."""

    waits = True

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types[:-1])
        require_same(self.name, *types[:-1])
        if not types[-1].dtype.is_integer:
            raise MspcError(f"{self.name}: the ends of groups are {types[-1].dtype}, not integers", kind=TypeError)
        return inferred

    def rows_of_experts(self, rows: TensorType, ends: TensorType, filled: int) -> int:
        """How many rows belong to experts, where these share them evenly."""
        return ends.shape[0] * ends.shape[1] * filled if filled else rows.shape[0]

    def names(self, ends: TensorType) -> tuple[str, str, str]:
        """Names of factors: of the rows of all blocks, of all experts, and of the ends."""
        if len(ends.shape) != 3:
            raise MspcError(f"{self.name}: ends of shape {ends.shape} are not [outer, parts, experts]")
        outer, parts, experts = ends.shape
        if not ends.size:
            raise MspcError(f"{self.name}: there are no blocks and experts, ends have shape {ends.shape}")
        return f"(d={outer} p={parts} b!)", f"(p={parts} e={experts}!)", "d p e!"


def _blocks(rows: int, ends: Any) -> Iterator[tuple[int, slice]]:
    """(expert, where its rows lie) for every expert of every block."""
    outer, parts, experts = ends.shape
    size = rows // (outer * parts)
    for block, borders in enumerate(ends.reshape(outer * parts, experts).tolist()):
        start = 0
        for e, end in enumerate(borders):
            yield block % parts * experts + e, slice(block * size + start, block * size + end)
            start = end


def _grouping(rows: int, ends: Array) -> Grouping:
    """The same for kernels."""
    from mspc.ops.cuda.grouped_rows import Grouping  # late: only a GPU needs it

    outer, parts, experts = ends.shape
    return Grouping(outer * parts, parts, experts, rows // (outer * parts), 0, 0, parts * experts, True)


class ExpertProduct(_BlocksOfRows):
    """x [rows, k] by the matrix of every row's expert in w [experts, k, n], or [experts, n, k] transposed: [rows, n].
    Rows that belong to no expert give zeros. filled: see `_BlocksOfRows`."""

    transpose_b: bool = False
    filled: int = 0
    omitted = ("filled",)
    linear_in = (0, 1)
    host_reads = (2,)
    samples = (
        sample((8, 4), (4, 4, 6), (2, 2, 2), dtypes=ENDS, low=0, high=3),
        sample((8, 6), (4, 4, 6), (2, 2, 2), transpose_b=True, dtypes=ENDS, low=0, high=3),
    )

    def rule(self, x: TensorType, w: TensorType, ends: TensorType) -> str:
        rows, experts, groups = self.names(ends)
        return f"{rows} k, {experts} {'n k' if self.transpose_b else 'k n'}, {groups} -> {rows} n"

    def bprop(self, b: Builder, x: Value, w: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(ExpertProduct(transpose_b=not self.transpose_b, filled=self.filled), dout, w, ends)
        left, right = (dout, x) if self.transpose_b else (x, dout)
        return dx, b.emit(ExpertOuter(self.filled), left, right, ends), None

    def operations(self, types: Sequence[TensorType]) -> float:
        _, w, ends = types
        return 2.0 * self.rows_of_experts(types[0], ends, self.filled) * w.shape[1] * w.shape[2]

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, w, ends = inputs
        multiply = device.products_of_rows(x, w, out, transpose_b=self.transpose_b)
        return None if multiply is None else device.asking([ends], lambda at: multiply(_blocks(x.shape[0], at)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, w, ends) = be.xp, inputs
        matrices = w.swapaxes(1, 2) if self.transpose_b else w
        made = xp.zeros((x.shape[0], matrices.shape[2]), x.dtype)
        for expert, rows in _blocks(x.shape[0], ends):
            made[rows] = xp.matmul(x[rows], matrices[expert])
        return made


class ExpertOuter(_BlocksOfRows):
    """For every expert the product of the transposed rows of x [rows, k] with those of y [rows, n], of its rows in all
    blocks: [experts, k, n]. filled: see `_BlocksOfRows`."""

    filled: int = 0
    omitted = ("filled",)
    linear_in = (0, 1)
    host_reads = (2,)
    samples = (sample((8, 4), (8, 2), (2, 2, 2), dtypes=ENDS, low=0, high=3),)

    def rule(self, x: TensorType, y: TensorType, ends: TensorType) -> str:
        rows, experts, groups = self.names(ends)
        return f"{rows} k, {rows} n, {groups} -> {experts} k n"

    def bprop(self, b: Builder, x: Value, y: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(ExpertProduct(transpose_b=True, filled=self.filled), y, dout, ends)
        return dx, b.emit(ExpertProduct(filled=self.filled), x, dout, ends), None

    def operations(self, types: Sequence[TensorType]) -> float:
        x, y, ends = types
        return 2.0 * self.rows_of_experts(x, ends, self.filled) * x.shape[1] * y.shape[1]

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, y, ends = inputs
        multiply = device.products_of_rows(x, y, out, outer=True)
        return None if multiply is None else device.asking([ends], lambda at: multiply(_blocks(x.shape[0], at)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, y, ends) = be.xp, inputs
        made = xp.zeros((ends.shape[1] * ends.shape[2], x.shape[1], y.shape[1]), x.dtype)
        for expert, rows in _blocks(x.shape[0], ends):
            made[expert] += xp.matmul(x[rows].T, y[rows])
        return made


class ExpertRows(_BlocksOfRows):
    """Row by row that of its expert of b [experts, n], as many rows as like [rows, m] has; zeros where there is no
    expert."""

    linear_in = (1,)
    samples = (sample((8, 4), (4, 4), (2, 2, 2), dtypes=ENDS, low=0, high=3, gradient=False),)

    def rule(self, like: TensorType, b: TensorType, ends: TensorType) -> str:
        rows, experts, groups = self.names(ends)
        return f"{rows} n, {experts} n, {groups} -> {rows} n"

    def bprop(self, b: Builder, like: Value, rows: Value, ends: Value, out: Value, dout: Value) -> Gradients:
        return None, b.emit(ExpertSums(), dout, ends), None

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.grouped_rows import rows_of_groups  # late: only a GPU needs it

        like, b, ends = inputs
        return rows_of_groups(device, _grouping(like.shape[0], ends), b, ends, out)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (like, b, ends) = be.xp, inputs
        made = xp.zeros((like.shape[0], b.shape[1]), b.dtype)
        for expert, rows in _blocks(like.shape[0], ends):
            made[rows] = b[expert]
        return made


class ExpertSums(_BlocksOfRows):
    """The sums of the rows of every expert in all blocks of x [rows, n]: [experts, n]."""

    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((8, 4), (2, 2, 2), dtypes=ENDS[1:], low=0, high=3, gradient=False),)

    def rule(self, x: TensorType, ends: TensorType) -> str:
        rows, experts, groups = self.names(ends)
        return f"{rows} n, {groups} -> {experts} n"

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.grouped_rows import sums_of_groups  # late: only a GPU needs it

        x, ends = inputs
        return sums_of_groups(device, _grouping(x.shape[0], ends), x, ends, out)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, ends) = be.xp, inputs
        made = xp.zeros((ends.shape[1] * ends.shape[2], x.shape[1]), x.dtype)
        for expert, rows in _blocks(x.shape[0], ends):
            made[expert] += x[rows].sum(0)
        return made
