"""Cost of a node on a rank: the bytes that it sends, and the seconds that it takes by the rates of a machine. The least
time of a step under any plan follows from its matmuls and updates, divided evenly over the ranks.

The figures are rough: enough to decide which work should run beside a collective, and to compare layouts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from mspc.analysis.cost.machine import (
    BIASED,
    CAUSAL,
    COLUMN_SUMS,
    DEEP,
    DRAWS,
    DROPPED,
    ELEMENTWISE,
    FLAT,
    GROUPED,
    H200,
    MASKED,
    POINTWISE,
    PRODUCTS,
    SHALLOW,
    UNEVEN,
    UPDATES,
    Machine,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value, element_types, operand_types
from mspc.ir.iterative import reached
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, DType, TensorType
from mspc.ops.bases import axes_of
from mspc.ops.collective.base import Collective, is_summed_by_reader
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps, has_moves, loaded_bytes
from mspc.ops.fused.kernel import row_of
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import ReductionOp

if TYPE_CHECKING:
    from mspc.ops.nn.attention_base import AttentionOp


# The cost of a node depends on its kind of work. The kernels that run it, and their speed, follow from its attributes
# and the shapes of its operands. A machine has a rate for every kind.


DEPTH = 4
"""Ratio of the summed dimension to the mean side of the result from which a matmul counts as deep: the result has too
few blocks for all multiprocessors, so that several share one."""
LOADED = 16
"""Bytes that kernels load at once."""
BLOCK, STEP = 64, 32
"""Smallest block that kernels compute: rows and columns of a result, and terms of its sums."""


@dataclass(frozen=True)
class MatmulSizes:
    """Sizes of a batch of matmuls, each [rows, summed] by [summed, columns]. pieces: number of calls that a GPU makes
    of it, as libraries repeat an operand for the whole batch or not at all."""

    batch: int
    rows: int
    summed: int
    columns: int
    pieces: int = 1

    @property
    def filled_up(self) -> float:
        """Operations of kernels that compute complete blocks of the result."""
        rows, columns = (-(-n // BLOCK) * BLOCK for n in (self.rows, self.columns))
        return 2.0 * self.batch * rows * columns * -(-self.summed // STEP) * STEP


def product_of(node: Node) -> MatmulSizes | None:
    """Return the sizes of a node that multiplies matrices, or None for any other node. A batch with a single matrix on
    the right, and a left operand that is not transposed, is one matmul."""
    if not isinstance(node.op, MatMul | BatchMatMul | FusedMatMul):
        return None
    made = element_types(node.type)[0].shape
    left, right = (each.shape for each in operand_types(node)[:2])
    transposed = node.op.transpose_a
    rows, summed = left[-2:][:: -1 if transposed else 1]
    batch = math.prod(made[:-2])
    if len(right) == 2 and not transposed:
        batch, rows = 1, batch * rows
    return MatmulSizes(batch, rows, summed, made[-1], _kind_pieces(made[:-2], left[:-2], right[:-2]))


def _kind_pieces(leading: Sequence[int], *operands: Sequence[int]) -> int:
    """Return the number of batches with a single stride, along the dimension that gives fewer of them."""
    batch = math.prod(leading)
    if len(leading) < 2 or all(math.prod(own) in (1, batch) for own in operands):
        return 1
    return min(leading) if len(leading) == 2 else math.prod(leading[:-1])


def kind_of_work(node: Node) -> str:
    """Return the kind of a node's matmuls, as used in the rates of a machine."""
    op = node.op
    assert isinstance(op, Op)
    if op.work != PRODUCTS:
        return _form_of(op, tuple(operand_types(node))) + op.work
    sizes = product_of(node)
    if sizes is None:
        return PRODUCTS
    # The bytes of which the rows of all matrices in memory are multiples.
    even = math.gcd(LOADED, *map(_row_bytes, (*node.inputs[:2], node)))
    if even < LOADED:
        return UNEVEN[max(even, min(UNEVEN))]
    if sizes.batch == 1 and min(sizes.rows, sizes.columns) <= BLOCK < max(sizes.rows, sizes.columns):
        return FLAT  # its result is one row or column of blocks
    return DEEP if sizes.summed >= DEPTH * math.sqrt(sizes.rows * sizes.columns) else PRODUCTS


def kinds_of_slices(node: Node) -> tuple[str, ...]:
    """Return the kinds of work that slices of a node may have. Sharding changes the shape of matmuls, may leave one
    group of several groups of channels, and may give some queries no hidden key."""
    assert isinstance(node.op, Op)
    if node.op.work == PRODUCTS:
        return PRODUCTS, DEEP, FLAT, *UNEVEN.values()
    kind, plain = kind_of_work(node), node.op.work
    if kind.startswith(GROUPED):
        return kind, plain, POINTWISE + plain
    return (kind, plain) if kind.startswith(CAUSAL) else (kind,)


def share_of_scores(node: Node, block: int = 1) -> float:
    """Return the share of all pairs of a query and a key for which scores are computed; 1 if the node is no attention.
    block: queries and keys that kernels take together. A block is computed if one of its pairs is seen."""
    from mspc.ops.nn.attention_base import AttentionOp  # late: few networks have any

    return _seen(node.op, operand_types(node), block) if isinstance(node.op, AttentionOp) else 1.0


def _seen(op: AttentionOp, types: Sequence[TensorType], block: int = 1) -> float:
    shape = op.apart.sizes(op.parts(types[0]) if op.packed else types[:3])
    return _share(shape.queries, shape.keys, *op.window(shape), block)


@functools.lru_cache(maxsize=256)
def _share(queries: int, keys: int, low: int | None, high: int | None, block: int) -> float:
    seen = 0
    for first in range(0, queries, block):
        last = min(first + block, queries) - 1
        begin = 0 if low is None else max(0, first + low) // block
        end = keys if high is None else max(0, min(keys, last + high + 1))
        seen += max(0, -(-end // block) - begin) * block * block
    return seen / (queries * keys) if seen else 1.0


def _row_bytes(value: Value) -> int:
    place, made = 0, value
    while isinstance(made, Node) and isinstance(made.op, TupleGetItem):
        place, made = made.op.index, made.inputs[0]
    pitches = made.attrs.get("row_pitch") if isinstance(made, Node) else None
    [type, *_] = element_types(value.type)
    length = pitches[place] if isinstance(pitches, tuple) else 0
    return (length or type.shape[-1]) * type.dtype.itemsize


def _form_of(op: Op, types: tuple[TensorType, ...]) -> str:
    """Return the prefix of the kind of work of convolutions and attention. The result is not cached: it depends on few
    fields of an operator, and the others may differ between ranks (`ir.varying`)."""
    from mspc.ops.convolution.window import Convolution  # late: few networks have any
    from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp  # late: few networks have any

    if isinstance(op, Convolution):
        _, weight = op.image_and_weights(types)
        if op.group > 1:
            return GROUPED
        if weight[1] * types[0].dtype.itemsize < LOADED:
            return SHALLOW
        return POINTWISE if all(places == 1 for places in op.sizes()) else ""
    if isinstance(op, AttentionOp):
        operands = op.separated(types) if op.packed else types
        terms = [type for name, type in op.named(operands).items() if name in ("real_shift", "attn_mask", KEY_SHIFT)]
        dropped = DROPPED * (op.keep_prob < 1)
        if terms:
            of_queries = any(type.rank > 1 and type.shape[-2] > 1 for type in terms)
            return (BIASED if of_queries else MASKED) + dropped
        if dropped:
            return dropped
        return CAUSAL if _seen(op, types) < 1 else ""
    return ""


# The cost of a fused operator beyond one pass over its operands: instructions per element, and repeated reads of rows
# that are too long for a block of threads.


LONGEST_ROW = 24 * 1024
"""Elements of a row that the largest block of threads holds in registers."""
WAITING = 225 << 10
"""Bytes of longer rows that fit in shared memory; still longer rows are read again."""
FUNCTIONS = {
    "rsqrt": 4, "sqrt": 8, "exp": 8, "sigmoid": 8, "gelu": 12, "gelu_slope": 24, "log": 16, "log1p": 24, "sin": 24,
    "cos": 24, "tanh": 20, "erf": 24, "erfc": 32, "power": 32, "pow": 32,
}  # fmt: skip
"""Approximate number of instructions per element of the C++ functions that kernels call."""
DRAWN = "DropoutMask"
"""The operator whose elements are random numbers."""
OTHER = 8
"""Instructions of a function that is not in `FUNCTIONS`, and of a division."""
_CALL = re.compile(r"([A-Za-z_]\w*)(?:<\w+>)?(?:::\w+)?\(")
_PLAIN = frozenset({"T", "V", "real", "A"})
"""Conversions, which look like calls in the text."""


@dataclass(frozen=True)
class LineCost:
    """Cost of lines beyond one pass over memory. operations: instructions on elements. draws: random numbers. again:
    bytes that are read once more along rows. asides: bytes that every further pass reads, one entry for each choice of
    axes that are not along rows. sums_columns: whether the pass that stores results also has such a reduction."""

    operations: float = 0.0
    draws: float = 0.0
    again: int = 0
    asides: tuple[int, ...] = ()
    sums_columns: bool = False


NOTHING = LineCost()


def cost_of_lines(node: Node) -> LineCost:
    """Return the cost of the lines of a node, or `NOTHING` if it has none."""
    return cost_of_fused(node.op, operand_types(node)) if isinstance(node.op, FusedElementwise) else NOTHING


def cost_of_fused(op: FusedElementwise, given: tuple[TensorType, ...]) -> LineCost:
    """Return the cost of the lines of a fused operator on operands of these types."""
    try:
        return _of_lines(op, given)
    except MspcError:
        return NOTHING  # In data parallel mode parameters of a rank are slices although its nodes have global types.


def loaded_of_operands(node: Node) -> list[int] | None:
    """Return the bytes that a kernel loads of each of its operands if it reads some at other places, as a slice does.
    Return None if it reads all of them in full."""
    if not isinstance(node.op, FusedElementwise) or not has_moves(node.op):
        return None
    given = tuple(operand_types(node))
    try:
        return [int(nbytes) for nbytes in loaded_bytes(expanded_steps(node.op, given), given)]
    except MspcError:
        return None  # See `cost_of_lines`.


def instructions(op: Op) -> float:
    """Return the approximate number of instructions of an operator's expression per element."""
    text = str(getattr(op, "cuda", ""))
    calls = [name for name in _CALL.findall(text) if name not in _PLAIN]
    called = sum(FUNCTIONS.get(name, OTHER) for name in calls)
    return max(1.0, called + sum(map(text.count, "+-*<>?")) + OTHER * text.count("/"))


@functools.lru_cache(maxsize=4096)
def _of_lines(op: FusedElementwise, given: tuple[TensorType, ...]) -> LineCost:
    """Return the cost of the lines, computed once for all layers that are alike."""
    lines = _Lines(op, given)
    along: dict[tuple[int, ...], list[int]] = {}
    for i in lines.columns:
        of = lines.read(i)[0]
        axes = axes_of(lines.space.dims, of.shape, lines.axes(i))
        along.setdefault(axes, []).append(i)
    # In a loop over all elements the last choice of axes is reduced in the pass that stores the results.
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
    """Lines of a fused operator as they appear in kernels. columns: reductions that are not along rows."""

    def __init__(self, op: FusedElementwise, given: tuple[TensorType, ...]) -> None:
        self.steps, self.returns, self.types, self.space, moved = expanded_steps(op, given)
        self.given = (*given, *(each.type for each in moved))
        self.elements = math.prod(self.space.dims)
        beside_rows = [i for i, step in enumerate(self.steps) if step.reduces and i not in self.space.by_row]
        self.columns = [i for i in beside_rows if sums_columns(self.steps[i].op, self.read(i)[0])]

    def read(self, line: int) -> list[TensorType]:
        """Return the types of the operands of a line."""
        return [(self.given if kind == "x" else self.types)[i] for kind, i in self.steps[line].operands]

    def axes(self, line: int) -> tuple[int, ...]:
        """Return the axes of a reduction."""
        op = self.steps[line].op
        assert isinstance(op, ReductionOp)
        return op.axes(self.read(line)[0].rank)

    def reached(self, roots: Iterable[int]) -> set[int]:
        """Return the lines that one pass computes for `roots`: all that lead to them, back to reductions of rows."""

        def read(line: int) -> list[int]:
            return [i for kind, i in self.steps[line].operands if kind == "t" and i not in self.space.by_row]

        return {*reached(roots, read)}

    def bytes_read(self, lines: Iterable[int]) -> int:
        """Return the bytes of those operands of lines that have a value for every element."""
        read = {i for line in lines for kind, i in self.steps[line].operands if kind == "x"}
        return sum(self.given[i].nbytes for i in read if self.given[i].size >= self.elements)

    def row_bytes(self) -> int:
        """Return the bytes of a row of all operands that have a value for every element."""
        return self.space.row * sum(each.dtype.itemsize for each in self.given if each.size >= self.elements)

    def computed(self, lines: Iterable[int]) -> tuple[float, float]:
        """Return (instructions on elements, random numbers) of lines."""
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
        """Return the bytes that passes over rows read once more if rows are too long to stay in registers. A pass ends
        with the reductions that the next one waits for, and recomputes the lines that lead to its own."""
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
    """Return whether an operator is a reduction of elements that are not contiguous, or of all elements: blocks of
    threads add up a part each, and these parts are added up."""
    if not isinstance(op, ReductionOp):
        return False
    return not row_of(operand.shape, op.axes(operand.rank) or tuple(range(operand.rank)))


UNKNOWN_GROUP = 2
"""Ranks assumed for a group of which only the name is known."""
LIKE_OTHERS: Mapping[str, str] = MappingProxyType({
    "SendToStage": "Send", "ReceiveFromStage": "Receive", "FetchRows": "AlltoAllV", "SendRows": "AlltoAllV",
})  # fmt: skip
"""Collectives that use the rates of others."""


def sent_bytes(node: Node) -> float:
    """Return the bytes that a rank sends for one node, averaged over its group and by ring algorithms; 0 if the node
    computes."""
    if not isinstance(node.op, Collective):
        return 0.0
    operand = node.op.travelling([value.type.nbytes for value in node.inputs], node.type.nbytes)
    return node.op.sent_bytes(operand, len(node.op.members) or UNKNOWN_GROUP)


def seconds(
    node: Node, machine: Machine = H200, known: dict[Graph, tuple[float, float]] | None = None
) -> float:  # fmt: skip
    """Return the time of one node that runs, by itself. For a node that runs graphs it is the time of all nodes in
    them. known: as for `seconds_inside`."""
    if node.regions:
        return sum(seconds_inside(node, machine, {} if known is None else known))
    if isinstance(node.op, Collective):
        # Only the number of members is read: a request for the ranks themselves would be repeated for every rank
        # (`ir.varying`).
        ranks = node.op.members if len(node.op.members) else range(UNKNOWN_GROUP)
        name = LIKE_OTHERS.get(node.op.name, node.op.name)
        return machine.collective_seconds(name, sent_bytes(node), ranks)
    more = len(cost_of_lines(node).asides) + _pieces(node) - 1
    begins = machine.kernel * (1 + more * (machine.device == "GPU"))
    alone = begins + math.hypot(moving_seconds(node, machine), computing_seconds(node, machine))
    # A kernel that sums the parts of several ranks works while these parts arrive.
    return max(0.0, alone - sum(seconds(value, machine) for value in node.inputs if is_summed_by_reader(value)))


def seconds_inside(node: Node, machine: Machine, known: dict[Graph, tuple[float, float]]) -> tuple[float, float]:
    """Return (seconds of compute, seconds of communication) of the graphs that a node runs: of all iterations of a
    loop, of one if the number is not known before the run, and of the longer of two branches. known: seconds of one
    run, by graph."""
    from mspc.ops.control.regions import (
        ONCE,
        If,  # late: most programs have no regions
    )

    found = [(0.0, 0.0)]
    for number, region in enumerate(node.regions):
        if region not in known:
            each = [
                seconds_inside(inner, machine, known) if inner.regions
                else (0.0, seconds(inner, machine)) if isinstance(inner.op, Collective)
                else (seconds(inner, machine), 0.0)
                for inner in region.nodes if not inner.op.is_view
            ]  # fmt: skip
            known[region] = sum(c for c, _ in each), sum(s for _, s in each)
        compute, communication = known[region]
        runs = ONCE.inside(node, number).count
        found.append((runs * compute, runs * communication))
    if isinstance(node.op, If):
        return max(found, key=sum)
    return sum(compute for compute, _ in found), sum(communication for _, communication in found)


def moving_seconds(node: Node, machine: Machine) -> float:
    """Return the time in which a node reads and writes memory if it has nothing to compute."""
    moved, kind = moved_bytes(node), kind_of_traffic(node)
    if machine.device != "GPU":
        return machine.moving_seconds(moved, kind)
    lines = cost_of_lines(node)
    asides = sum(machine.moving_seconds(nbytes, COLUMN_SUMS) for nbytes in lines.asides)
    return machine.moving_seconds(moved + lines.again, kind) + asides


def computing_seconds(node: Node, machine: Machine) -> float:
    """Return the time in which a node computes if its operands are already loaded."""
    if not isinstance(node.op, Op):
        return 0.0
    lines = cost_of_lines(node)
    found = _alone(machine, ELEMENTWISE, lines.operations) + _alone(machine, DRAWS, lines.draws)
    operations = computed(node, machine)
    if operations:
        pieces = _pieces(node) if machine.device == "GPU" else 1
        dtype = operand_types(node)[0].dtype
        found += pieces * machine.work_seconds(kind_of_work(node), dtype, operations / pieces)
    return found


def _pieces(node: Node) -> int:
    product = product_of(node)
    return 1 if product is None else product.pieces


def computed(node: Node, machine: Machine) -> float:
    """Return the floating-point operations of matmuls and attention as a machine's kernels do them. GPUs compute
    complete blocks of a result, and skip blocks of scores in which no pair is seen."""
    operations = work_of(node)
    if not operations or machine.device != "GPU":
        return operations
    product = product_of(node)
    return product.filled_up if product is not None else operations * share_of_scores(node, BLOCK)


def _alone(machine: Machine, kind: str, amount: float) -> float:
    """Return the seconds of a kind of work. A kind without a rate on the machine is hidden by memory traffic and takes
    0."""
    return machine.work_seconds(kind, FLOAT32, amount) if amount and kind in machine.work else 0.0


def kind_of_traffic(node: Node) -> str:
    """Return the kind of a node's traffic for which machines may have a rate; "" for most nodes."""
    op = node.op
    if isinstance(op, Op) and op.traffic:
        return op.traffic
    if cost_of_lines(node).sums_columns:
        return COLUMN_SUMS
    return COLUMN_SUMS if isinstance(op, ReductionOp) and sums_columns(op, operand_types(node)[0]) else ""


def moved_bytes(node: Node) -> int:
    """Return the bytes that a node reads and writes: its operands, its result, and operands that it overwrites. A slice
    or a lookup counts only the part that it takes, and so does a kernel that reads at other places."""
    op, made = node.op, node.type.nbytes
    read = loaded_of_operands(node) or [value.type.nbytes for value in node.inputs]
    if not isinstance(op, Op):
        return sum(read) + made
    touched = op.touched_bytes(operand_types(node), element_types(node.type))
    if touched is not None:
        return touched
    if read and (op.moves or op.selects):
        read[0] = min(read[0], made)
    return sum(read) + max(made, sum(node.inputs[i].type.nbytes for i in op.mutates))


def work_of(node: Node) -> float:
    """Return the floating-point operations of a node's matmuls, convolutions or attention; 0 if memory bounds the
    node."""
    return node.op.operations(operand_types(node)) if isinstance(node.op, Op) else 0.0


BOTH_WAYS = 2
"""Factor for an update, which reads and writes the same bytes."""
TOGETHER = 3
"""Largest number of matmuls that are fused into one: those before an attention."""


def least_seconds(nodes: Iterable[Node], ranks: int, machine: Machine) -> float:
    """Return a lower bound, in seconds, of the step time by `StreamTimeline`, whatever the plan. nodes: those of the
    graph that all ranks share, with the types of global tensors. Recomputed nodes do not count."""
    updated = 0
    products: dict[tuple[tuple[str, ...], DType], list[float]] = {}
    for node in nodes:
        if not isinstance(node.op, Op) or "unused" in node.attrs or node.attrs.get("recomputed"):
            continue
        operations = work_of(node)
        if operations:
            key = kinds_of_slices(node), operand_types(node)[0].dtype
            products.setdefault(key, []).append(operations * share_of_scores(node))
        elif node.phase == "update" and node.op.mutates:
            updated += BOTH_WAYS * sum(node.inputs[i].type.nbytes for i in node.op.mutates)
    found = 0.0
    for (kinds, dtype), each in products.items():
        rates, together = [machine.work_rate(kind, dtype) for kind in kinds], sum(each)
        for operations in each:
            own = operations / ranks
            found += machine.kernel / TOGETHER + own / max(rate.best(own, together) for rate in rates)
    if updated:
        rate = machine.traffic.get(UPDATES, machine.memory)
        found += machine.kernel + updated / ranks / rate.best(updated / ranks, updated)
    return found


class Operations(NamedTuple):
    """Floating-point operations. model: those of the network and its gradients. hardware: with recomputation."""

    model: float = 0.0
    hardware: float = 0.0

    def __add__(self, other: object) -> Operations:  # type: ignore[override]  # never a plain tuple
        """Return the operations of both together."""
        assert isinstance(other, Operations)
        return Operations(self.model + other.model, self.hardware + other.hardware)

    def times(self, count: int) -> Operations:
        """Return the operations of `count` runs."""
        return Operations(self.model * count, self.hardware * count)


def operations_of(graph: Graph, seen: bool = False) -> Operations:
    """Return the operations of a step of a graph: of all iterations of a loop, of one if the number is not known before
    the run, and of the longest branch. seen: count only the pairs of attention that are not hidden."""
    return _inside(graph, {}, seen)


def _inside(graph: Graph, known: dict[Graph, Operations], seen: bool) -> Operations:
    if graph not in known:
        known[graph] = sum((_of_node(node, known, seen) for node in graph.nodes), Operations())
    return known[graph]


def _of_node(node: Node, known: dict[Graph, Operations], seen: bool) -> Operations:
    from mspc.ops.control.regions import (
        ONCE,
        If,  # late: most programs have no regions
    )

    if "unused" in node.attrs:
        return Operations()
    own = work_of(node)
    if own and seen:
        own *= share_of_scores(node)
    found = [Operations(0.0 if node.attrs.get("recomputed") else own, own)] if own else []
    inner = [_inside(region, known, seen).times(ONCE.inside(node, i).count) for i, region in enumerate(node.regions)]
    return max(inner) if isinstance(node.op, If) else sum(found + inner, Operations())
