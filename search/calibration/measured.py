"""Measures the machine that this runs on: rates by size of products, convolutions, attention, memory and links.

Everything is timed as a network's nodes run: in steps, on the executor that runs networks. An operator's time is what
a step takes longer with more copies of it, so that neither the begin of a step nor a clock between nodes counts. What
a busy machine has spoiled is measured again, and told where it stays so (`calibration_doubts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import POINTWISE, PRODUCTS, Link, Machine, Rate
from mspc.analysis.cost.nodes import sent_bytes, work_of
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter, Conv2DBackpropInput
from mspc.ops.convolution.memory_format import last_order
from mspc.ops.math.arithmetic import Add, Maximum, Minimum, Mul, SquaredDifference, Sub
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.runtime.device_choice import GPU, DeviceRequest
from mspc.search.calibration.doubtful_rates import SLOW_LINK, SLOW_NETWORK, Trust

STEPS, PREPARING = 7, 3
"""How many steps are timed, and how many run before."""
FEW = 1, 3
"""Copies of an operator in the two steps that tell how long it takes."""
REPEATS = 3
"""How often so many steps are timed; the least time counts, which nothing else disturbed."""
SHORTEST = 1e-9
"""Seconds that an operator takes at least, whatever a clock says."""
LEAST = 0.2
"""The share of a measured time that counts at least as work where most of it is the begin of a kernel."""


@dataclass(frozen=True)
class Sizes:
    """What is timed. products: sides of square matrices. images: groups of (rows, channels, side)
    whose convolutions have one rate by their window, as one network has them from its first to its last. sequences:
    tokens. touched, sent: bytes of operands. types: element types. copies: more than `FEW` of an operator in a step, by
    the seconds up to which one takes so long. channels_last: of images."""

    products: tuple[int, ...]
    images: tuple[tuple[tuple[int, int, int], ...], ...]
    sequences: tuple[int, ...]
    touched: tuple[int, ...]
    sent: tuple[int, ...]
    types: tuple[DType, ...]
    copies: tuple[tuple[float, tuple[int, int]], ...] = ()
    channels_last: bool = False


ON_CPU = Sizes((64, 256, 768), (((4, 16, 16),), ((8, 64, 28),)), (), (1 << 12, 1 << 16, 1 << 20, 1 << 24),
               (1 << 10, 1 << 14, 1 << 18, 1 << 22), (FLOAT32, FLOAT64),
               ((1e-4, (8, 40)),))  # fmt: skip
ON_GPU = Sizes((128, 512, 1024, 2048, 4096, 8192),
               (((1, 64, 56), (1, 128, 28), (1, 256, 14), (1, 512, 7)),
                ((8, 64, 56), (8, 128, 28), (8, 256, 14), (8, 512, 7)),
                ((64, 64, 56), (64, 128, 28), (64, 256, 14), (64, 512, 7))), (512, 1024),
               (1 << 14, 1 << 18, 1 << 21, 1 << 24, 1 << 27), (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27),
               (FLOAT32, FLOAT16, BFLOAT16, FLOAT64),
               ((5e-5, (64, 192)), (1e-3, (4, 12))), channels_last=True)  # fmt: skip
DIFFERENT = (Add(), SquaredDifference(), Maximum(), Mul(), Sub(), Minimum())
"""Operators whose kernels differ; however many follow each other, no number grows without end."""
HEADS, DEPTH = 16, 64
"""Of the attention that is timed."""


def calibrate(
    job: Any, name: str, tell: Callable[[str], None] = lambda _: None, sizes: Sizes | None = None, tf32: bool = False
) -> Machine:
    """The rates of the machine under all ranks of a job, which call this together.

    Args:
        name: of the machine, for people. tell: told what is timed next. sizes: what is timed. tf32: products of Float32
        may be rounded.

    Raises:
        MspcError: a device cannot be had.
    """
    job.hardware.choose(DeviceRequest(), job.size)
    job.hardware.agree(job.comm)
    job.hardware.prepare(False, job.comm, job.watch)
    on_gpu = job.hardware.choice.device == GPU
    sizes = sizes or (ON_GPU if on_gpu else ON_CPU)
    timer = _Timer(job, tf32, sizes)
    trust = timer.trust
    tell("small operators")
    kernel = trust.kernel(lambda: timer.longer(_different) / len(DIFFERENT))
    work: dict[str, dict[str, Rate]] = {}
    for kind, types, groups in _work(sizes, on_gpu):
        for dtype in types:
            what = f"{kind.replace('_', ' ')} of {dtype.name}"
            tell(what)
            of_type = partial(timer.times, groups(dtype))
            rate = trust.times(what, of_type, lambda times: _rates(times, kernel, work_of), falls=False)
            work.setdefault(kind, {})[dtype.name] = rate
    tell("memory")
    memory = trust.times(
        "memory",
        lambda: [(nodes, timer.longer(partial(_sums, nodes[0]))) for nodes in _touching(sizes)],
        lambda times: _rates(times, kernel, lambda node: 3.0 * node.type.nbytes),
        falls=True,
    )
    tell("links")
    near = range(job.size)
    local = timer.ranks_per_host
    handing = timer.handing_over(kernel) if job.size > 1 else 0.0
    across = local < job.size

    def link(what: str, ranks: Sequence[int], slow: float) -> Link:
        return trust.link(what, lambda: timer.link(ranks, sizes, handing), slow)

    return Machine(
        name=name,
        device="GPU" if on_gpu else "CPU",
        work=work,
        other_products=min((rate for rate in work[PRODUCTS].values()), key=lambda rate: rate.points[-1][1]),
        memory=memory,
        kernel=kernel,
        link=link("links", near[:local], SLOW_LINK) if local > 1 else ALONE,
        ranks_per_host=local if across else 0,
        network=link("the network", [0, local], SLOW_NETWORK) if across else None,
        source=f"measured by mspc calibrate on {job.size} rank{'s' * (job.size > 1)}",
        doubts=tuple(trust.doubts),
    )


ALONE = Link(latency=1e-5, bandwidth=Rate.of(1e10))
"""Takes the place of the link of a machine that was measured with one rank."""


class _Timer:
    """Times operators on this rank's executor, the same ones on all ranks."""

    def __init__(self, job: Any, tf32: bool, sizes: Sizes) -> None:
        self.job, self.tf32, self.sizes = job, tf32, sizes
        everyone = tuple(range(job.size))
        firsts = job.aside.all_gather(np.array([job.hardware.local_rank == 0]), everyone, 0) if job.size > 1 else [True]
        self.ranks_per_host = job.size // max(1, int(np.sum(firsts)))
        self.number = 0
        self.trust = Trust()

    def times(self, groups: Sequence[Sequence[Node]]) -> list[tuple[Sequence[Node], float]]:
        """Groups of operators, each with the seconds of all that are in it."""
        return [(group, sum(self.seconds(node) for node in group)) for group in groups]

    def seconds(self, node: Node) -> float:
        """Seconds of an operator on the slowest rank."""
        return self.longer(lambda graph, count: _copies(graph, node, count))

    def longer(self, fill: Fill) -> float:
        """By how many seconds each copy of something makes a step longer, on the slowest rank."""
        about = self._between(fill, *FEW)
        more = next((counts for limit, counts in self.sizes.copies if about <= limit), None)
        return self._between(fill, *more) if more is not None else about

    def _between(self, fill: Fill, few: int, many: int) -> float:
        longer, shorter = self._step(fill, many), self._step(fill, few)
        spread = max(second / first - 1 for first, second, *_ in map(sorted, (longer, shorter)))
        return self._slowest((min(longer) - min(shorter)) / (many - few), spread)

    def _step(self, fill: Fill, count: int) -> list[float]:
        """Seconds of a step of so many copies, as often as it is timed."""
        graph = _graph(self.job.size)
        fill(graph, count)
        for i, parameter in enumerate(graph.parameters):
            parameter.name = f"p{i}"
        executor = self._prepared(graph)
        finish = self.job.hardware.memory.finish
        for _ in range(PREPARING):
            executor.run([])
        finish()
        found: list[float] = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for _ in range(STEPS):
                executor.run([])
            finish()
            found.append(max(time.perf_counter() - begin, SHORTEST) / STEPS)
        self.job.hardware.release(executor)
        return found

    def _slowest(self, seconds: float, spread: float) -> float:
        """The most of all ranks, and their largest spread among those that are noted."""
        if self.job.size > 1:
            own = np.array([[seconds, spread]])
            every = self.job.aside.all_gather(own, tuple(range(self.job.size)), 0)
            seconds, spread = map(float, every.max(axis=0))
        self.trust.spreads.append(spread)
        return max(seconds, SHORTEST)

    def handing_over(self, kernel: float) -> float:
        """Seconds that a small collective between small kernels takes longer than one after another collective."""
        [alone], *_ = _collectives(replace(self.sizes, sent=(64,)), tuple(range(self.job.size)), self.job.rank)
        between = self.longer(partial(_in_turn, alone))
        return max(0.0, between - kernel - self.seconds(alone))

    def link(self, ranks: Sequence[int], sizes: Sizes, handing: float = 0.0) -> Link:
        """What joins some ranks, by collectives of two and of all of them.

        Args:
            handing: seconds that every collective takes longer where kernels run before and after it.
        """
        pair, group = tuple(ranks[:2]), tuple(ranks)
        of_group = [(nodes[0], t) for nodes, t in self.times(_collectives(sizes, group, self.job.rank))]
        of_pair = of_group
        if pair != group:
            of_pair = [(nodes[0], t) for nodes, t in self.times(_collectives(sizes, pair, self.job.rank))]
        links: dict[str, Link] = {}
        for operator in dict.fromkeys(node.op.name for node, _ in of_group):
            small = [next(t for node, t in times if node.op.name == operator) for times in (of_pair, of_group)]
            hop = max(0.0, small[1] - small[0]) / max(1, len(group) - 2)
            latency = small[0] if len(group) > 2 else min(small)
            begin = latency + hop * max(0, len(group) - 2)
            own = [([node], t) for node, t in of_group if node.op.name == operator][1:]
            links[operator] = Link(latency + handing, _rates(own, begin, sent_bytes), hop)
        first = links.pop("AllReduce")
        return Link(first.latency, first.bandwidth, first.hop, links)

    def _prepared(self, graph: Graph) -> Any:
        hardware = self.job.hardware
        values = {
            p.name: hardware.memory.place(np.full(p.type.shape, 0.5, p.tensor_type.dtype.numpy))
            for p in graph.parameters
        }
        self.number += 1
        cursor = self.job.cursor
        return hardware.executor(graph, self.job.comm, values, cursor, number=self.number, tf32=self.tf32)


def _graph(ranks: int) -> Graph:
    graph = Graph("calibration")
    graph.attrs = {"ranks": ranks, "mode": "semi_auto_parallel"}
    return graph


Fill = Callable[[Graph, int], None]
"""Puts so many copies of what is timed into a graph."""


def _copies(graph: Graph, node: Node, count: int) -> None:
    """An operator on the same operands again and again."""
    graph.parameters = [value for value in node.inputs if isinstance(value, Parameter)]
    b = Builder(graph)
    for _ in range(count):
        b.emit(node.op, *node.inputs)


def _sums(node: Node, graph: Graph, count: int) -> None:
    """Sums of what was made just now and of what no cache holds any more, as networks have most of their operands."""
    parameters = [Parameter("p", node.inputs[0].type, "parameter", False) for _ in range(count + 1)]
    graph.parameters = list(parameters)
    b, value = Builder(graph), parameters[0]
    for other in parameters[1:]:
        value = b.emit(node.op, value, other)


def _different(graph: Graph, count: int) -> None:
    """Small operators that differ, each of what the one before it made, as a network has them."""
    first = Parameter("p", TensorType(FLOAT32, (16,)), "parameter", False)
    graph.parameters = [first]
    b, value = Builder(graph), first
    for op in DIFFERENT * count:
        value = b.emit(op, value, first)


def _in_turn(collective: Node, graph: Graph, count: int) -> None:
    """A kernel and a collective in turn, each of what the other made; no sum grows without end."""
    graph.parameters = [value for value in collective.inputs if isinstance(value, Parameter)]
    b, [most] = Builder(graph), graph.parameters
    value = b.emit(collective.op, most)
    for _ in range(count):
        value = b.emit(collective.op, b.emit(Minimum(), value, most))


def _node(op: Any, dtype: DType, *shapes: tuple[int, ...]) -> Node:
    """An operator by itself, on parameters of one element type."""
    return _alone(op, [TensorType(dtype, shape) for shape in shapes])


def _alone(op: Any, types: Sequence[TensorType]) -> Node:
    """An operator by itself, on parameters of its own."""
    return Builder(Graph("one")).emit(op, *[Parameter("p", type, "parameter", False) for type in types])


Groups = list[list[Node]]


def _work(sizes: Sizes, on_gpu: bool) -> Iterator[tuple[str, Sequence[DType], Callable[[DType], Groups]]]:
    """The kinds of work that have rates of their own, each with the element types and what is timed of one."""
    yield PRODUCTS, sizes.types, lambda dtype: _products(sizes, dtype)
    for op, window in product((Conv2D, Conv2DBackpropInput, Conv2DBackpropFilter), (1, 3) if sizes.images else ()):
        kind = POINTWISE + op.work if window == 1 else op.work
        yield kind, sizes.types[: 3 if on_gpu else 1], lambda dtype, op=op, at=window: _images(sizes, dtype, op, at)
    for op in (FlashAttentionScore, FlashAttentionScoreGrad):
        if sizes.sequences:
            gradient = op is FlashAttentionScoreGrad
            yield op.work, sizes.types[:3], lambda dtype, gradient=gradient: _attention(sizes, dtype, gradient)


def _touching(sizes: Sizes) -> Groups:
    return [[_node(Add(), FLOAT32, (n // 4,), (n // 4,))] for n in sizes.touched]


def _products(sizes: Sizes, dtype: DType) -> Groups:
    """A product as a forward step has it, and those of its gradients."""
    most = 4096 if dtype == FLOAT64 else max(sizes.products)
    forms = MatMul(), MatMul(transpose_b=True), MatMul(transpose_a=True)
    return [[_node(op, dtype, (n, n), (n, n)) for op in forms] for n in sizes.products if n <= most]


def _images(sizes: Sizes, dtype: DType, op: type[Any], window: int) -> Groups:
    return [[_convolution(op, dtype, image, window, sizes.channels_last) for image in group] for group in sizes.images]


def _convolution(op: type[Any], dtype: DType, image: tuple[int, int, int], window: int, last: bool) -> Node:
    """A convolution as residual blocks have it; those of one place make four times the channels."""
    rows, channels, side = image
    out = channels * (4 if window == 1 else 1)
    images, weight, made_of = (rows, channels, side, side), (out, channels, window, window), (rows, out, side, side)
    settings = {"out_channel": out, "kernel_size": window, "pad_mode": "same"}
    operands: dict[type[Any], tuple[Any, ...]] = {
        Conv2D: (Conv2D(**settings), images, weight),
        Conv2DBackpropInput: (Conv2DBackpropInput(input_size=images, **settings), made_of, weight),
        Conv2DBackpropFilter: (Conv2DBackpropFilter(filter_size=weight, **settings), made_of, images),
    }
    made, *shapes = operands[op]
    if last:
        made, shapes = made.with_channels_last(), [tuple(shape[d] for d in last_order(4)) for shape in shapes]
    return _node(made, dtype, *shapes)


def _attention(sizes: Sizes, dtype: DType, gradient: bool) -> Groups:
    """Attention of queries, keys and values that one product made, as compiled networks have it."""
    found: Groups = []
    for tokens in sizes.sequences:
        settings: dict[str, Any] = {"scale_value": DEPTH**-0.5, "input_layout": "BSND", "packed": HEADS}
        one, statistics = TensorType(dtype, (4, tokens, HEADS, DEPTH)), TensorType(FLOAT32, (4, HEADS, tokens, 1))
        operand = TensorType(dtype, (4, tokens, 3 * HEADS, DEPTH))
        if not gradient:
            found.append([_alone(FlashAttentionScore(HEADS, **settings), [operand])])
            continue
        types = [operand, one, statistics, one]
        found.append([_alone(FlashAttentionScoreGrad(HEADS, **settings), types)])
    return found


def _collectives(sizes: Sizes, group: tuple[int, ...], rank: int) -> Groups:
    """The collectives of a group in every size; ranks that are not in it run them as a group of their own."""
    count = len(group)
    members = group if rank in group else (rank,)
    found: Groups = []
    for nbytes in sizes.sent:
        length = -(-nbytes // 4 // count) * count
        split = len(members)
        found += [
            [_node(AllReduce(rank_list=members), FLOAT32, (length,))],
            [_node(AllGather(rank_list=members), FLOAT32, (length // count,))],
            [_node(ReduceScatter(rank_list=members), FLOAT32, (length,))],
            [_node(AlltoAll(split, 0, 0, rank_list=members), FLOAT32, (length,))],
        ]
    return found


def _rates(
    times: Sequence[tuple[Sequence[Node], float]], kernel: float, amount_of: Callable[[Node], float]
) -> Rate:
    """The rate at every size, without the time in which nothing is done."""
    points: dict[float, float] = {}
    for group, seconds in times:
        amounts, begins = [amount_of(node) for node in group], len(group) * kernel
        doing = max(seconds - begins, LEAST * seconds, SHORTEST)
        points[sum(amounts) / len(amounts)] = sum(amounts) / doing
    return Rate(tuple(sorted(points.items())))
