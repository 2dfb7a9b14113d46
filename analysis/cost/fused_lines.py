"""The cost of a fused operator beside one pass over its operands: what its lines compute for every element, and how
often rows are read that are too long for a block of threads."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.dropout_mask import DropoutMask
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps
from mspc.ops.fused.space import Space, row_of
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import Reduce

LONGEST_ROW = 24 * 1024
"""Elements of a row that the largest block of threads holds in registers; longer ones are read again."""
FUNCTIONS = {
    "rsqrt": 4, "sqrt": 8, "exp": 8, "sigmoid": 8, "gelu": 12, "gelu_slope": 24, "log": 16, "log1p": 24, "sin": 24,
    "cos": 24, "tanh": 20, "erf": 24, "erfc": 32, "power": 32, "pow": 32,
}  # fmt: skip
"""About how many instructions functions of C++ are that kernels call for an element."""
OTHER = 8
"""The same of a function that is not among them, and of a division."""
_CALL = re.compile(r"([A-Za-z_]\w*)(?:<\w+>)?(?:::\w+)?\(")
_PLAIN = frozenset({"T", "V", "real", "A"})
"""Conversions, which look like calls."""


@dataclass(frozen=True)
class LineCost:
    """What lines take beside one pass over memory. operations: instructions on elements. draws: random numbers.
    again: bytes that are read once more. sums_columns: whether a reduction is not along rows."""

    operations: float
    draws: float
    again: int
    sums_columns: bool


NOTHING = LineCost(0.0, 0.0, 0, False)


def cost_of_lines(node: Node) -> LineCost:
    """What the lines of a node take; `NOTHING` of one that has none."""
    if not isinstance(node.op, FusedElementwise):
        return NOTHING
    try:
        return _of_lines(node.op, operand_types(node))
    except MspcError:
        return NOTHING  # In data parallel mode a rank's parameters are slices where its nodes have global types.


def instructions(op: Op) -> float:
    """About how many instructions an operator's expression is for an element."""
    text = str(getattr(op, "cuda", ""))
    calls = [name for name in _CALL.findall(text) if name not in _PLAIN]
    called = sum(FUNCTIONS.get(name, OTHER) for name in calls)
    return max(1.0, called + sum(map(text.count, "+-*<>?")) + OTHER * text.count("/"))


@functools.lru_cache(maxsize=4096)
def _of_lines(op: FusedElementwise, given: tuple[TensorType, ...]) -> LineCost:
    """The same, once for all layers that are alike."""
    steps, returns, types, space = expanded_steps(op, given)
    operations = draws = 0.0
    for step, type in zip(steps, types, strict=True):
        if step.reshapes:
            continue
        worked = _read(step, given, types)[0] if step.reduces else type
        if isinstance(step.op, DropoutMask):
            draws += worked.size
        else:
            operations += worked.size * (1.0 if step.reduces else instructions(step.op))
    columns = any(step.reduces and sums_columns(step.op, _read(step, given, types)[0]) for step in steps)
    again = 0
    if space.columns and space.row > LONGEST_ROW:
        again = sum(_times_read(steps, returns, space, i) * type.nbytes for i, type in enumerate(given)
                    if type.size >= math.prod(space.dims))  # fmt: skip
    return LineCost(operations, draws, again, columns)


def _read(step: BodyLine, given: Sequence[TensorType], types: Sequence[TensorType]) -> list[TensorType]:
    return [(given if kind == "x" else types)[i] for kind, i in step.operands]


def sums_columns(op: Op, operand: TensorType) -> bool:
    """Whether an operator is a reduction of what does not lie side by side, or of everything: blocks of threads add up
    a part each, and these parts are added up."""
    if not isinstance(op, Reduce):
        return False
    return not row_of(operand.shape, op.axes(operand.rank) or tuple(range(operand.rank)))


def _times_read(steps: Sequence[BodyLine], returns: Sequence[int], space: Space, operand: int) -> int:
    """How many passes over its rows read an operand again. A pass ends with the reductions that the next one waits
    for; each reads what leads to its own."""
    stage = [0] * len(steps)
    roots: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        waits = [stage[at] + (steps[at].reduces and at in space.by_row) for kind, at in step.operands if kind == "t"]
        stage[i] = max(waits, default=0)
        if step.reduces and i in space.by_row:
            roots.setdefault(stage[i], []).append(i)
    last = max(stage)
    roots.setdefault(last, []).extend(i for i in returns if i not in space.by_row)

    def reads(line: int) -> bool:
        operands = steps[line].operands
        return any(
            at == operand if kind == "x" else at not in space.by_row and reads(at) for kind, at in operands
        )

    return max(0, sum(any(map(reads, lines)) for lines in roots.values()) - 1)
