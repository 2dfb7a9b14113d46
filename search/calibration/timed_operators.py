"""Operators that `mspc calibrate` times, in several sizes and in the forms that occur in networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from mspc.analysis.cost.machine import (
    ATTENTION,
    BIASED,
    CAUSAL,
    COLUMN_SUMS,
    CONVOLUTIONS,
    DEEP,
    DRAWS,
    DROPPED,
    ELEMENTWISE,
    FLAT,
    GROUPED,
    MASKED,
    POINTWISE,
    PRODUCTS,
    ROW_SUMS,
    SHALLOW,
    TF32,
    UNEVEN,
    UNROUNDED,
    UPDATES,
)
from mspc.ir.graph import Builder, Graph, Node, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, FLOAT64, INT32, DType, TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter, Conv2DBackpropInput
from mspc.ops.convolution.window import Convolution, last_order
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.dropout_mask import DropoutMask
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.elementwise import Erf
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.optim.optimizer import Adam
from mspc.ops.random.dropout import DropoutGrad
from mspc.ops.tensor.embedding import GatherGrad
from mspc.ops.tensor.reshape import ReduceSum

HEADS, DEPTH, BATCH = 16, 64, 16
"""Sizes of the timed attention."""
KEEP_PROBABILITY = 0.9
"""Keep probability of dropout."""
ROW = 1024
"""Elements of the rows that are summed."""
LINES = 16
"""Lines of a fused operator with a long computation."""

FIRST_TIMED = (
    PRODUCTS, *ATTENTION, *CONVOLUTIONS, ELEMENTWISE, DRAWS, DEEP, FLAT, *(CAUSAL + kind for kind in ATTENTION),
    *(POINTWISE + kind for kind in CONVOLUTIONS),
)  # fmt: skip
"""Kinds of work that are timed first: common ones, and those whose rates other kinds fall back to if the time runs
out."""

Groups = Sequence[Sequence[Node]]
"""Groups of nodes; the nodes of a group share one rate."""


@dataclass(frozen=True)
class TimingSizes:
    """Sizes of the timed operators.

    products: sides of square matrices; other matmuls have as many operations. images: groups of (rows, channels, side);
    the convolutions of a group share one rate per window, like the convolutions of one network. sequences: tokens.
    touched, sent: bytes of operands. types: element types of matmuls. image_types: element types of convolutions and
    attention. copies: (seconds, counts) pairs: an operator that takes at most `seconds` is timed by two steps with
    these counts instead of `FEW`. channels_last: layout of images. rotated: total bytes of the operands, and of the
    results, that are used in rotation so that caches miss. settling: seconds that a step is repeated before it is
    timed. kinds: also time kinds of work that have kernels of their own on GPUs. rounds: also time Float32 rounded to
    TF32.
    """

    products: tuple[int, ...]
    images: tuple[tuple[tuple[int, int, int], ...], ...]
    sequences: tuple[int, ...]
    touched: tuple[int, ...]
    sent: tuple[int, ...]
    types: tuple[DType, ...]
    image_types: tuple[DType, ...]
    copies: tuple[tuple[float, tuple[int, int]], ...] = ()
    channels_last: bool = False
    rotated: int = 0
    settling: float = 0.0
    kinds: bool = False
    rounds: bool = False


def node_of(op: Any, dtype: DType, *shapes: tuple[int, ...]) -> Node:
    """Return a single operator on parameters of one element type."""
    return _single_operator(op, [TensorType(dtype, shape) for shape in shapes])


def _single_operator(op: Any, types: Sequence[TensorType]) -> Node:
    """Return a single operator on new parameters."""
    return Builder(Graph("one")).emit(op, *[Parameter("p", type, "parameter", False) for type in types])


@dataclass(frozen=True)
class TimingTask:
    """A kind of work to time. rates: key of its rates, an element type or `TF32`. groups: function that builds the
    operators."""

    kind: str
    rates: str
    groups: Callable[[], Groups]

    @property
    def rounds(self) -> bool:
        """Whether matmuls of Float32 are rounded to TF32 during the measurement."""
        return self.rates == TF32


def timing_tasks(sizes: TimingSizes) -> Iterator[TimingTask]:
    """Yield the kinds of work with separate rates, for each element type, in the order of a machine file."""
    for dtype in sizes.types:
        yield from _named(dtype.name, _work_on(sizes, dtype))
        if sizes.kinds and dtype == sizes.types[0]:
            yield TimingTask(ELEMENTWISE, UNROUNDED, lambda: [[_functions(n // 4)] for n in sizes.touched[-2:]])
            yield TimingTask(DRAWS, UNROUNDED, lambda: [[_drawn(n // 4)] for n in sizes.touched[-2:]])
        if dtype in sizes.image_types:
            yield from _named(dtype.name, _work_on_images(sizes, dtype))
        if sizes.rounds and dtype.name == UNROUNDED:
            yield from _named(TF32, (*_work_on(sizes, dtype), *_work_on_images(sizes, dtype)))


def _named(rates: str, kinds: Iterable[tuple[str, Callable[[], Groups]]]) -> Iterator[TimingTask]:
    return (TimingTask(kind, rates, groups) for kind, groups in kinds)


def by_urgency(timed: Sequence[TimingTask]) -> list[TimingTask]:
    """Return the tasks in the order in which they are timed: the most needed kinds first, each for all element
    types."""
    places = {kind: place for place, kind in enumerate(dict.fromkeys((*FIRST_TIMED, *(each.kind for each in timed))))}
    return sorted(timed, key=lambda each: places[each.kind])


def _work_on(sizes: TimingSizes, dtype: DType) -> Iterator[tuple[str, Callable[[], Groups]]]:
    """Yield matmuls and attention."""
    yield PRODUCTS, lambda: products(sizes, dtype)
    if not sizes.kinds or dtype not in sizes.image_types:
        return
    yield DEEP, lambda: _deep_products(sizes, dtype)
    yield FLAT, lambda: _flat_products(sizes, dtype)
    for nbytes, kind in UNEVEN.items():
        if nbytes >= dtype.itemsize:
            yield kind, lambda nbytes=nbytes: _uneven_products(sizes, dtype, nbytes)
    ways: tuple[type[AttentionOp], ...] = (FlashAttentionScore, FlashAttentionScoreGrad)
    for form, op in product(("", CAUSAL, DROPPED, MASKED + DROPPED, BIASED + DROPPED, MASKED, BIASED), ways):
        yield form + op.work, lambda op=op, form=form: _attention(sizes, dtype, op, form)
    for form in (BIASED + DROPPED, BIASED):
        op = FlashAttentionScoreShiftGrad
        yield form + op.work, lambda op=op, form=form: _attention(sizes, dtype, op, form)


def _work_on_images(sizes: TimingSizes, dtype: DType) -> Iterator[tuple[str, Callable[[], Groups]]]:
    """Yield convolutions and their gradients."""
    ways: tuple[type[Convolution], ...] = (Conv2D, Conv2DBackpropInput, Conv2DBackpropFilter)
    for window, op in product((3, 1) if sizes.images else (), ways):
        kind = POINTWISE + op.work if window == 1 else op.work
        yield kind, lambda op=op, at=window: _images(sizes, dtype, op, at)
    for op in ways if sizes.kinds else ():
        yield GROUPED + op.work, lambda op=op: _grouped(sizes, dtype, op)
        yield SHALLOW + op.work, lambda op=op: _shallow(sizes, dtype, op)


def additions(sizes: TimingSizes) -> Groups:
    """Return additions of two operands."""
    return [[node_of(Add(), FLOAT32, (n // 4,), (n // 4,))] for n in sizes.touched]


def traffic(sizes: TimingSizes) -> Iterator[tuple[str, Groups]]:
    """Yield the kinds of traffic, each with its operators."""
    if not sizes.kinds:
        return
    places = [n // 4 for n in sizes.touched if n >= ROW * ROW]
    yield COLUMN_SUMS, [[node_of(ReduceSum(axis=(0,)), FLOAT32, (2 * n // ROW, ROW))] for n in places]
    # Parameters of networks are neither small nor as large as the largest operands.
    updated = places[:-1] or places
    yield UPDATES, [[node_of(Adam(), FLOAT32, *[(n,)] * 3, *[()] * 6, (n,))] for n in updated]
    yield ROW_SUMS, [[_row_sums(n // ROW)] for n in places]


def _row_sums(rows: int) -> Node:
    types = TensorType(FLOAT32, (rows, ROW)), TensorType(INT32, (rows,))
    return _single_operator(GatherGrad(2 * rows), types)


def products(sizes: TimingSizes, dtype: DType) -> Groups:
    """Return a forward matmul and the matmuls of its gradients, and, if `kinds` is set, matmuls with many rows."""
    forms = MatMul(), MatMul(transpose_b=True), MatMul(transpose_a=True)
    groups = [[node_of(op, dtype, (n, n), (n, n)) for op in forms] for n in _sides(sizes, dtype)]
    if not sizes.kinds:
        return groups
    return [[node_of(forms[1], dtype, (n, n), (n, n)), node_of(forms[1], dtype, (4 * n, n // 4), (n, n // 4)),
             *([node_of(forms[0], dtype, (4 * n, n // 2), (n // 2, n // 2))] if n > min(sizes.products) else [])]
            for n in _sides(sizes, dtype)]  # fmt: skip


def _deep_products(sizes: TimingSizes, dtype: DType) -> Groups:
    """Return weight gradients, whose contracted dimension is long."""
    op = MatMul(transpose_a=True)
    return [[node_of(op, dtype, (4 * n, n // 2), (4 * n, n // 2)), node_of(op, dtype, (4 * n, n), (4 * n, n // 4))]
            for n in _sides(sizes, dtype)[1:]]  # fmt: skip


def _flat_products(sizes: TimingSizes, dtype: DType) -> Groups:
    """Return matmuls of a few rows with large matrices."""
    rows = min(sizes.products) // 2
    return [[node_of(MatMul(transpose_b=b), dtype, (rows, n), (n, n)) for b in (True, False)]
            for n in _sides(sizes, dtype)[1:]]  # fmt: skip


def _uneven_products(sizes: TimingSizes, dtype: DType, nbytes: int) -> Groups:
    """Return matmuls with rows whose bytes are a multiple of `nbytes` but of no larger power of two."""
    found: list[list[Node]] = []
    for n in _sides(sizes, dtype)[1:4:2]:
        length = n // 2 - nbytes // dtype.itemsize
        found.append([node_of(MatMul(transpose_b=True), dtype, (4 * n, length), (length, length))])
    return found


def _sides(sizes: TimingSizes, dtype: DType) -> list[int]:
    most = 2048 if dtype == FLOAT64 else max(sizes.products)
    return [n for n in sizes.products if n <= most]


def _images(sizes: TimingSizes, dtype: DType, op: type[Any], window: int) -> Groups:
    groups = sizes.images[:2] if dtype != sizes.types[0] else sizes.images
    return [[_convolution(op, dtype, image, window, sizes.channels_last) for image in group] for group in groups]


def _grouped(sizes: TimingSizes, dtype: DType, op: type[Any]) -> Groups:
    """Return depthwise convolutions with 7 x 7 windows."""
    return [[_convolution(op, dtype, image, 7, sizes.channels_last, group=image[1]) for image in each[::2]]
            for each in sizes.images[:2]]  # fmt: skip


def _shallow(sizes: TimingSizes, dtype: DType, op: type[Any]) -> Groups:
    """Return convolutions of three-channel images with adjacent windows that do not overlap."""
    found: list[list[Node]] = []
    for (rows, channels, side), *_ in sizes.images[:2]:
        image = rows, channels, 4 * side
        found.append([_convolution(op, dtype, image, 4, sizes.channels_last, read=3, stride=4)])
    return found


def _convolution(
    op: type[Any], dtype: DType, image: tuple[int, int, int], window: int, last: bool, group: int = 1, read: int = 0,
    stride: int = 1,
) -> Node:  # fmt: skip
    """Return a convolution of a residual block; a 1 x 1 window quadruples the channels. read: channels of the image if
    they differ from those of the result."""
    rows, channels, side = image
    out, into = channels * (4 if window == 1 else 1), read or channels
    images, weight = (rows, into, side, side), (out, into // group, window, window)
    made_of = (rows, out, side // stride, side // stride)
    settings = {"out_channel": out, "kernel_size": window, "pad_mode": "same", "group": group, "stride": stride}
    operands: dict[type[Any], tuple[Any, ...]] = {
        Conv2D: (Conv2D(**settings), images, weight),
        Conv2DBackpropInput: (Conv2DBackpropInput(input_size=images, **settings), made_of, weight),
        Conv2DBackpropFilter: (Conv2DBackpropFilter(filter_size=weight, **settings), made_of, images),
    }
    made, *shapes = operands[op]
    if last:
        made, shapes = made.with_channels_last(), [tuple(shape[d] for d in last_order(4)) for shape in shapes]
    return node_of(made, dtype, *shapes)


def _attention(sizes: TimingSizes, dtype: DType, op: type[Any], form: str) -> Groups:
    """Return attention on queries, keys and values that are slices of one matmul's result, as in compiled networks.
    Sequences are longer if half of the scores are masked."""
    found: list[list[Node]] = []
    longer = 2 if form == CAUSAL else 1
    for tokens, batch in ((tokens * longer, BATCH // longer) for tokens in sizes.sequences):
        settings: dict[str, Any] = {"scale_value": DEPTH**-0.5, "input_layout": "BSND", "packed": HEADS}
        if form == CAUSAL:
            settings["sparse_mode"] = 2
        if form.endswith(DROPPED):
            places = (batch, HEADS, tokens, tokens)
            settings |= {"keep_prob": KEEP_PROBABILITY, "Seed1": 1, "shape": places, "begin": (0,) * 4, "local": places}
        one = TensorType(dtype, (batch, tokens, HEADS, DEPTH))
        statistics = TensorType(FLOAT32, (batch, HEADS, tokens, 1))
        operand = TensorType(dtype, (batch, tokens, 3 * HEADS, DEPTH))
        added: list[TensorType] = []
        if form.startswith((MASKED, BIASED)):
            shape = (batch, HEADS, tokens, tokens) if form.startswith(BIASED) else (batch, 1, 1, tokens)
            added, settings["optional"] = [TensorType(FLOAT32, shape)], ("real_shift",)
        forward = op is FlashAttentionScore
        types = [operand, *added] if forward else [operand, one, *added, statistics, one]
        found.append([_single_operator(op(HEADS, **settings), types)])
    return found


def _functions(size: int) -> Node:
    """Return a fused operator with a long chain of elementwise functions."""
    type = TensorType(FLOAT32, (size,))
    lines = [BodyLine(Erf(), (("x", 0) if i == 0 else ("t", i - 1),)) for i in range(LINES)]
    return _single_operator(FusedElementwise.of(lines, [LINES - 1]), [type])


def _drawn(size: int) -> Node:
    """Return a fused operator that draws many random masks."""
    type, places = TensorType(FLOAT32, (size // ROW, ROW)), (size // ROW, ROW)
    lines: list[BodyLine] = []
    value = ("x", 0)
    for i in range(LINES):
        mask = DropoutMask(KEEP_PROBABILITY, Seed1=i + 1, sizes=places, shape=places, begin=(0, 0), local=places)
        lines += [BodyLine(mask, ()), BodyLine(DropoutGrad(KEEP_PROBABILITY), (value, ("t", 2 * i)))]
        value = ("t", 2 * i + 1)
    return _single_operator(FusedElementwise.of(lines, [2 * LINES - 1]), [type])


def collectives(sizes: TimingSizes, group: tuple[int, ...], rank: int) -> Groups:
    """Return the collectives of a group in every size. Ranks outside the group run them as a group of their own."""
    count = len(group)
    members = group if rank in group else (rank,)
    found: list[list[Node]] = []
    for nbytes in sizes.sent:
        length = -(-nbytes // 4 // count) * count
        split = len(members)
        found += [
            [node_of(AllReduce(rank_list=members), FLOAT32, (length,))],
            [node_of(AllGather(rank_list=members), FLOAT32, (length // count,))],
            [node_of(ReduceScatter(rank_list=members), FLOAT32, (length,))],
            [node_of(AlltoAll(split, 0, 0, rank_list=members), FLOAT32, (length,))],
        ]
    return found
