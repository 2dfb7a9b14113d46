"""Measures the machine that this runs on: rates by size of products, convolutions, attention, memory and links.

Everything is timed as a network's nodes are, on the executor that runs networks: a graph has the same operator in
several sizes, and of each node the median over some steps counts. What passes between two small nodes is the time of a
chain of them, divided. A collective's time is that of the rank that came last to it, which waited for nobody.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import ATTENTION, CONVOLUTIONS, PRODUCTS, Link, Machine, Rate
from mspc.analysis.cost.nodes import sent_bytes, work_of
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.convolution.convolve import Conv2D
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.runtime.choose import GPU, Asked

STEPS, PREPARING = 9, 3
"""How many steps are timed, and how many run before."""
CHAIN = 200
"""Small nodes in a row."""
LEAST = 0.2
"""The share of a measured time that counts at least as work where most of it is the begin of a kernel."""


@dataclass(frozen=True)
class Sizes:
    """What is timed. products: sides of square matrices. images: (rows, channels, side). sequences: tokens. touched,
    sent: bytes of operands. types: element types."""

    products: tuple[int, ...]
    images: tuple[tuple[int, int, int], ...]
    sequences: tuple[int, ...]
    touched: tuple[int, ...]
    sent: tuple[int, ...]
    types: tuple[DType, ...]


ON_CPU = Sizes((64, 256, 768), ((4, 16, 16), (8, 64, 28)), (), (1 << 12, 1 << 16, 1 << 20, 1 << 24),
               (1 << 10, 1 << 14, 1 << 18, 1 << 22), (FLOAT32, FLOAT64))  # fmt: skip
ON_GPU = Sizes((128, 512, 1024, 2048, 4096, 8192), ((16, 64, 56), (64, 256, 28), (256, 256, 56)), (1024, 4096),
               (1 << 14, 1 << 18, 1 << 21, 1 << 24, 1 << 28), (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27),
               (FLOAT32, FLOAT16, BFLOAT16, FLOAT64))  # fmt: skip


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
    job.hardware.choose(Asked(), job.size)
    job.hardware.agree(job.comm)
    job.hardware.prepare(False, job.comm, job.watch)
    on_gpu = job.hardware.choice.device == GPU
    sizes = sizes or (ON_GPU if on_gpu else ON_CPU)
    timer = _Timer(job, tf32)
    tell("small operators")
    kernel = timer.chain()
    work: dict[str, dict[str, Rate]] = {}
    for dtype in sizes.types:
        tell(f"products of {dtype.name}")
        rates = _rates(timer.times(_products(sizes, dtype)), kernel, work_of)
        work.setdefault(PRODUCTS, {})[dtype.name] = rates
    for dtype in sizes.types[: 3 if on_gpu else 1] if sizes.images else ():
        tell(f"convolutions of {dtype.name}")
        work.setdefault(CONVOLUTIONS, {})[dtype.name] = _rates(timer.times(_images(sizes, dtype)), kernel, work_of)
    for dtype in (FLOAT16, BFLOAT16) if sizes.sequences else ():
        tell(f"attention of {dtype.name}")
        work.setdefault(ATTENTION, {})[dtype.name] = _rates(timer.times(_attention(sizes, dtype)), kernel, work_of)
    tell("memory")
    touched = timer.times([_node(Add(), FLOAT32, (n // 4,), (n // 4,)) for n in sizes.touched])
    memory = _rates(touched, kernel, lambda node: 3.0 * node.type.nbytes)
    tell("links")
    near = range(job.size)
    local = timer.ranks_per_host
    across = local < job.size
    return Machine(
        name=name,
        device="GPU" if on_gpu else "CPU",
        work=work,
        other_products=min((rate for rate in work[PRODUCTS].values()), key=lambda rate: rate.points[-1][1]),
        memory=memory,
        kernel=kernel,
        link=timer.link(near[:local], sizes) if local > 1 else ALONE,
        ranks_per_host=local if across else 0,
        network=timer.link([0, local], sizes) if across else None,
        source=f"measured by mspc calibrate on {job.size} rank{'s' * (job.size > 1)}",
    )


ALONE = Link(latency=1e-5, bandwidth=Rate.of(1e10))
"""Stands for the link of a machine that was measured with one rank."""


class _Timer:
    """Times graphs on this rank's executor, the same ones on all ranks."""

    def __init__(self, job: Any, tf32: bool) -> None:
        self.job, self.tf32 = job, tf32
        everyone = tuple(range(job.size))
        firsts = job.aside.all_gather(np.array([job.hardware.local_rank == 0]), everyone, 0) if job.size > 1 else [True]
        self.ranks_per_host = job.size // max(1, int(np.sum(firsts)))
        self.number = 0

    def times(self, nodes: Sequence[Node]) -> list[tuple[Node, float]]:
        """Seconds of nodes that do not depend on each other: the median of steps; of a step the least of the ranks'
        where they wait for each other, else the most."""
        executor = self._executor(nodes)
        for _ in range(PREPARING):
            executor.run_timed([])
        rows: list[list[float]] = []
        for _ in range(STEPS):
            _, timed = executor.run_timed([])
            found = {t.index: t.duration / 1000 for t in timed}
            rows.append([found.get(i, 0.0) for i in range(len(nodes))])
        self.job.hardware.memory.finish()
        table = np.array(rows)
        if self.job.size > 1:
            every = self.job.aside.all_gather(table[None], tuple(range(self.job.size)), 0)
            waits = np.array([isinstance(node.op, Collective) for node in nodes])
            members = np.array([[self._member(node, rank) for node in nodes] for rank in range(self.job.size)])
            least = np.where(members[:, None, :], every, np.inf).min(axis=0)
            table = np.where(waits, least, every.max(axis=0))
        return [(node, statistics.median(table[:, i].tolist())) for i, node in enumerate(nodes)]

    @staticmethod
    def _member(node: Node, rank: int) -> bool:
        return not isinstance(node.op, Collective) or rank in node.op.members

    def chain(self) -> float:
        """Seconds from one small node to the next in a step that is not timed node by node."""
        x = Parameter("x", TensorType(FLOAT32, (16,)), "parameter", False)
        graph = _graph(self.job.size)
        b = Builder(graph)
        last: Any = x
        for _ in range(CHAIN):
            last = b.emit(Add(), last, x)
        graph.parameters, graph.results = [x], [last]
        executor = self._prepared(graph)
        found: list[float] = []
        for step in range(PREPARING + STEPS):
            begin = time.perf_counter()
            np.asarray(executor.run([])[0])
            if step >= PREPARING:
                found.append((time.perf_counter() - begin) / CHAIN)
        self.job.hardware.memory.finish()
        return statistics.median(found)

    def link(self, ranks: Sequence[int], sizes: Sizes) -> Link:
        """What joins some ranks, by collectives of two and of all of them."""
        pair, group = tuple(ranks[:2]), tuple(ranks)
        of_pair, of_group = (self.times(_collectives(sizes, g, self.job.rank)) for g in (pair, group))
        links: dict[str, Link] = {}
        for operator in dict.fromkeys(node.op.name for node, _ in of_group):
            small = [next(t for node, t in times if node.op.name == operator) for times in (of_pair, of_group)]
            hop = max(0.0, small[1] - small[0]) / max(1, len(group) - 2)
            latency = small[0] if len(group) > 2 else min(small)
            begin = latency + hop * max(0, len(group) - 2)
            own = [(node, t) for node, t in of_group if node.op.name == operator][1:]
            links[operator] = Link(latency, _rates(own, begin, sent_bytes), hop)
        first = links.pop("AllReduce")
        return Link(first.latency, first.bandwidth, first.hop, links)

    def _executor(self, nodes: Sequence[Node]) -> Any:
        graph = _graph(self.job.size)
        graph.nodes = list(nodes)
        graph.parameters = list(dict.fromkeys(v for node in nodes for v in node.inputs if isinstance(v, Parameter)))
        for i, parameter in enumerate(graph.parameters):
            parameter.name = f"p{i}"
        return self._prepared(graph)

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


def _node(op: Any, dtype: DType, *shapes: tuple[int, ...]) -> Node:
    """An operator by itself, on parameters of its own."""
    inputs = [Parameter("p", TensorType(dtype, shape), "parameter", False) for shape in shapes]
    return Builder(Graph("one")).emit(op, *inputs)


def _products(sizes: Sizes, dtype: DType) -> list[Node]:
    most = 4096 if dtype == FLOAT64 else max(sizes.products)
    return [_node(MatMul(), dtype, (n, n), (n, n)) for n in sizes.products if n <= most]


def _images(sizes: Sizes, dtype: DType) -> list[Node]:
    return [
        _node(Conv2D(out_channel=c, kernel_size=3, pad_mode="same"), dtype, (n, c, side, side), (c, c, 3, 3))
        for n, c, side in sizes.images
    ]


def _attention(sizes: Sizes, dtype: DType) -> list[Node]:
    op = FlashAttentionScore(16, scale_value=0.125, input_layout="BNSD", sparse_mode=2)
    return [_node(op, dtype, *[(4, 16, n, 64)] * 3) for n in sizes.sequences]


def _collectives(sizes: Sizes, group: tuple[int, ...], rank: int) -> list[Node]:
    """The collectives of a group in every size; ranks that are not in it run them as a group of their own."""
    count = len(group)
    members = group if rank in group else (rank,)
    found: list[Node] = []
    for nbytes in sizes.sent:
        length = -(-nbytes // 4 // count) * count
        split = len(members)
        found += [
            _node(AllReduce(rank_list=members), FLOAT32, (length,)),
            _node(AllGather(rank_list=members), FLOAT32, (length // count,)),
            _node(ReduceScatter(rank_list=members), FLOAT32, (length,)),
            _node(AlltoAll(split, 0, 0, rank_list=members), FLOAT32, (length,)),
        ]
    return found


def _rates(times: Sequence[tuple[Node, float]], kernel: float, amount_of: Callable[[Node], float]) -> Rate:
    """The rate at every size, without the time in which nothing is done."""
    points: Mapping[float, float] = {
        amount_of(node): amount_of(node) / max(seconds - kernel, LEAST * seconds, 1e-9) for node, seconds in times
    }
    return Rate(tuple(sorted(points.items())))
