"""The cost of a fused operator beside one pass over its operands: what its lines compute for every element, and how
often rows are read that are too long for a block of threads."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.bases import axes_of
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps, has_moves, loaded_bytes
from mspc.ops.fused.kernel import row_of
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReductionOp

LONGEST_ROW = 24 * 1024
"""Elements of a row that the largest block of threads holds in registers."""
WAITING = 225 << 10
"""Bytes of longer rows that wait in shared memory; still longer ones are read again."""
FUNCTIONS = {
    "rsqrt": 4, "sqrt": 8, "exp": 8, "sigmoid": 8, "gelu": 12, "gelu_slope": 24, "log": 16, "log1p": 24, "sin": 24,
    "cos": 24, "tanh": 20, "erf": 24, "erfc": 32, "power": 32, "pow": 32,
}  # fmt: skip
"""About how many instructions functions of C++ are that kernels call for an element."""
DRAWN = "DropoutMask"
"""The operator whose elements are random numbers."""
OTHER = 8
"""The same of a function that is not among them, and of a division."""
_CALL = re.compile(r"([A-Za-z_]\w*)(?:<\w+>)?(?:::\w+)?\(")
_PLAIN = frozenset({"T", "V", "real", "A"})
"""Conversions, which look like calls."""


@dataclass(frozen=True)
class LineCost:
    """What lines take beside one pass over memory. operations: instructions on elements. draws: random numbers.
    again: bytes that are read once more along rows. asides: bytes that every further pass reads, one for each choice of
    axes that are not along rows. sums_columns: whether the pass that stores results has such a reduction, too."""

    operations: float = 0.0
    draws: float = 0.0
    again: int = 0
    asides: tuple[int, ...] = ()
    sums_columns: bool = False


NOTHING = LineCost()


def cost_of_lines(node: Node) -> LineCost:
    """What the lines of a node take; `NOTHING` of one that has none."""
    return cost_of_fused(node.op, operand_types(node)) if isinstance(node.op, FusedElementwise) else NOTHING


def cost_of_fused(op: FusedElementwise, given: tuple[TensorType, ...]) -> LineCost:
    """What the lines of a fused operator take on operands of these types."""
    try:
        return _of_lines(op, given)
    except MspcError:
        return NOTHING  # In data parallel mode a rank's parameters are slices where its nodes have global types.


def loaded_of_operands(node: Node) -> list[int] | None:
    """Bytes that a kernel loads of each of its operands where it reads some at other places, as a slice of one; None of
    what reads all of them."""
    if not isinstance(node.op, FusedElementwise) or not has_moves(node.op):
        return None
    given = tuple(operand_types(node))
    try:
        return [int(nbytes) for nbytes in loaded_bytes(expanded_steps(node.op, given), given)]
    except MspcError:
        return None  # See `cost_of_lines`.


def instructions(op: Op) -> float:
    """About how many instructions an operator's expression is for an element."""
    text = str(getattr(op, "cuda", ""))
    calls = [name for name in _CALL.findall(text) if name not in _PLAIN]
    called = sum(FUNCTIONS.get(name, OTHER) for name in calls)
    return max(1.0, called + sum(map(text.count, "+-*<>?")) + OTHER * text.count("/"))


@functools.lru_cache(maxsize=4096)
def _of_lines(op: FusedElementwise, given: tuple[TensorType, ...]) -> LineCost:
    """The same, once for all layers that are alike."""
    lines = _Lines(op, given)
    along: dict[tuple[int, ...], list[int]] = {}
    for i in lines.columns:
        of = lines.read(i)[0]
        axes = axes_of(lines.space.dims, of.shape, lines.axes(i))
        along.setdefault(axes, []).append(i)
    # Of a loop over all elements the last choice of axes is reduced where results are stored.
    in_rows = bool(lines.space.columns)
    passes = list(along.values()) if in_rows else list(along.values())[:-1]
    operations, draws = lines.computed(range(len(lines.steps)))
    for roots in passes:
        more, drawn = lines.computed(lines.reached(roots))
        operations, draws = operations + more, draws + drawn
    asides = tuple(lines.bytes_read(lines.reached(roots)) for roots in passes)
    again = lines.read_again() if in_rows and lines.space.row > LONGEST_ROW and lines.row_bytes() > WAITING else 0
    return LineCost(operations, draws, again, asides, bool(along) and not in_rows)


class _Lines:
    """The lines of a fused operator as kernels have them. columns: reductions that are not along rows."""

    def __init__(self, op: FusedElementwise, given: tuple[TensorType, ...]) -> None:
        self.steps, self.returns, self.types, self.space, moved = expanded_steps(op, given)
        self.given = (*given, *(each.type for each in moved))
        self.elements = math.prod(self.space.dims)
        beside_rows = [i for i, step in enumerate(self.steps) if step.reduces and i not in self.space.by_row]
        self.columns = [i for i in beside_rows if sums_columns(self.steps[i].op, self.read(i)[0])]

    def read(self, line: int) -> list[TensorType]:
        """The types of what a line reads."""
        return [(self.given if kind == "x" else self.types)[i] for kind, i in self.steps[line].operands]

    def axes(self, line: int) -> tuple[int, ...]:
        """The axes of a reduction."""
        op = self.steps[line].op
        assert isinstance(op, ReductionOp)
        return op.axes(self.read(line)[0].rank)

    def reached(self, roots: Iterable[int]) -> set[int]:
        """The lines that one pass computes for these: all that lead to them, and end at reductions of rows."""
        found: set[int] = set()
        left = list(roots)
        while left:
            line = left.pop()
            if line in found:
                continue
            found.add(line)
            left += [i for kind, i in self.steps[line].operands if kind == "t" and i not in self.space.by_row]
        return found

    def bytes_read(self, lines: Iterable[int]) -> int:
        """Bytes of the operands of lines that have a value for every element."""
        read = {i for line in lines for kind, i in self.steps[line].operands if kind == "x"}
        return sum(self.given[i].nbytes for i in read if self.given[i].size >= self.elements)

    def row_bytes(self) -> int:
        """Bytes of a row of all operands that have a value for every element."""
        return self.space.row * sum(each.dtype.itemsize for each in self.given if each.size >= self.elements)

    def computed(self, lines: Iterable[int]) -> tuple[float, float]:
        """(instructions on elements, random numbers) of lines."""
        operations = draws = 0.0
        for i in lines:
            step = self.steps[i]
            if step.op.name == DRAWN:
                draws += self.types[i].size
            elif step.reduces:
                operations += self.read(i)[0].size
            elif not step.reshapes:
                operations += self.types[i].size * instructions(step.op)
        return operations, draws

    def read_again(self) -> int:
        """Bytes that passes over rows read once more, where rows are too long to stay in registers. A pass ends with
        the reductions that the next one waits for, and computes anew what leads to its own."""
        stage = [0] * len(self.steps)
        roots: dict[int, list[int]] = {}
        for i, step in enumerate(self.steps):
            reduces = step.reduces and i in self.space.by_row
            waits = (stage[at] + (self.steps[at].reduces and at in self.space.by_row)
                     for kind, at in step.operands if kind == "t")  # fmt: skip
            stage[i] = max(waits, default=0)
            if reduces:
                roots.setdefault(stage[i], []).append(i)
        stored = [i for i in self.returns if i not in self.space.by_row and i not in self.columns]
        if stored:
            roots.setdefault(max(stage), []).extend(stored)
        every = [self.bytes_read(self.reached(each)) for each in roots.values()]
        return max(0, sum(every) - self.bytes_read(range(len(self.steps))))


def sums_columns(op: Op, operand: TensorType) -> bool:
    """Whether an operator is a reduction of what does not lie side by side, or of everything: blocks of threads add up
    a part each, and these parts are added up."""
    if not isinstance(op, ReductionOp):
        return False
    return not row_of(operand.shape, op.axes(operand.rank) or tuple(range(operand.rank)))
