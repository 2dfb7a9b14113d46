"""Times operators on the executor that runs networks: by how much longer a step takes with more of one.

Neither the begin of a step nor a clock between nodes counts so. As networks have them, the copies of an operator read
operands and write results that no cache holds, and run for as long as clocks need to settle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import Link, Rate
from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.builder import Builder
from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value, element_types, operand_types
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Add, Maximum, Minimum, Mul, SquaredDifference, Sub
from mspc.ops.op import Op
from mspc.ops.tensor.parts import Slice
from mspc.search.calibration.doubtful_rates import Trust
from mspc.search.calibration.timed_operators import Groups, TimingSizes, collectives

STEPS, PREPARING = 7, 3
"""How many steps are timed, and how many run before."""
FEW = 1, 3
"""Copies of an operator in the two steps that tell how long it takes, where that is long."""
SLOW = 1e-3
"""Seconds of an operator of which fewer steps are timed."""
MOST = 200
"""How many run before at most, until clocks have settled."""
REPEATS = 3
"""How often so many steps are timed; the least time counts, which nothing else disturbed."""
LEAST = 0.2
"""The share of a measured time that counts at least as work where most of it is the begin of a kernel, or traffic."""
AGAIN = 0.5
"""The share of a limit of time in which doubtful measurements are repeated: the rest is for what has none yet."""
SHORTEST = 1e-9
"""Seconds that an operator takes at least, whatever a clock says."""
SMALL = 128
"""How many results are together as large as what takes turns where one is too small to be held."""
DRAWN = 1 << 20
"""Different numbers of an operand; longer ones hold them again and again."""
STRIDE = 7919
"""From one index of an operand to the next: a prime number, so that they are spread over all places."""
DIFFERENT = (Add(), SquaredDifference(), Maximum(), Mul(), Sub(), Minimum())
"""Operators whose kernels differ; however many follow each other, no number grows without end."""

Fill = Callable[[Graph, int], None]
"""Puts so many copies of what is timed into a graph."""


class Timer:
    """Times operators on this rank's executor, the same ones on all ranks. begin, limit: as `is_over` takes them."""

    def __init__(self, job: Any, sizes: TimingSizes, begin: float = 0.0, limit: float = 0.0) -> None:
        self.job, self.sizes = job, sizes
        everyone = tuple(range(job.size))
        firsts = job.aside.all_gather(np.array([job.hardware.local_rank == 0]), everyone, 0) if job.size > 1 else [True]
        self.ranks_per_host = job.size // max(1, int(np.sum(firsts)))
        self.number, self.small, self.rounds = 0, 0.0, False
        self.trust = Trust(lambda: self.is_over(begin, AGAIN * limit))
        self._placed: dict[tuple[TensorType, int | None, bool], Any] = {}

    def times(self, groups: Groups, rounds: bool = False) -> list[tuple[Sequence[Node], float]]:
        """Groups of operators, each with the seconds of all that are in it. rounds: GPUs may round products of Float32
        to TF32 meanwhile."""
        self.rounds = rounds
        try:
            return [(group, sum(self.seconds(node) for node in group)) for group in groups]
        finally:
            self.rounds = False

    def seconds(self, node: Node) -> float:
        """Seconds of an operator on the slowest rank."""
        return self._alone(node, _copies)

    def kernel(self) -> float:
        """Seconds from one small operator to the next."""
        self.small = self.longer(_different) / len(DIFFERENT)
        return self.small

    def sums(self, node: Node) -> float:
        """Seconds of a sum of what no cache holds any more, as networks have most of their operands."""
        return self._alone(node, _sums)

    def _alone(self, node: Node, fill: Callable[[Node, int, Graph, int], None]) -> float:
        """Seconds of an operator without what holds its results."""
        rotated = self.sizes.rotated
        reading = self.small if _holds(node, rotated) else 0.0
        return max(self.longer(partial(fill, node, rotated)) - reading, SHORTEST)

    def longer(self, fill: Fill) -> float:
        """By how many seconds each copy of something makes a step longer, on the slowest rank."""
        self._placed.clear()  # operands of another operator, of which every step has copies
        about = self._slowest(min(self._step(fill, FEW[1], PREPARING, FEW[1])) / FEW[1])
        more = next((counts for limit, counts in self.sizes.copies if about <= limit), FEW)
        # All ranks know `about` alike, so that they take as many steps.
        settling = int(self.sizes.settling / (about * max(more)))
        few, many = more
        preparing, steps = min(MOST, max(PREPARING, settling)), STEPS if about < SLOW else FEW[1]
        longer, shorter = (self._step(fill, count, preparing, steps) for count in (many, few))
        self.trust.spreads.append(self._slowest(max(sorted(each)[1] / min(each) - 1 for each in (longer, shorter))))
        return max(self._slowest((min(longer) - min(shorter)) / (many - few)), SHORTEST)

    def _step(self, fill: Fill, count: int, preparing: int, steps: int) -> list[float]:
        """Seconds of a step of so many copies, as often as it is timed: once it has run `preparing` times, so many
        steps each."""
        graph = step_of(self.job.size)
        fill(graph, count)
        for i, parameter in enumerate(graph.parameters):
            parameter.name = f"p{i}"
        executor = self._prepared(graph)
        finish = self.job.hardware.memory.finish
        for _ in range(preparing):
            executor.run([])
        finish()
        found: list[float] = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for _ in range(steps):
                executor.run([])
            finish()
            found.append(max(time.perf_counter() - begin, SHORTEST) / steps)
        self.job.hardware.release(executor)
        return found

    def _slowest(self, found: float) -> float:
        """The most of all ranks."""
        if self.job.size == 1:
            return found
        return float(self.job.aside.all_gather(np.array([found]), tuple(range(self.job.size)), 0).max())

    def is_over(self, begin: float, limit: float) -> bool:
        """Whether more than `limit` seconds have passed since `begin` by the clock of the rank that is the last."""
        return bool(limit) and self._slowest(time.perf_counter() - begin) > limit

    def handing_over(self, kernel: float) -> float:
        """Seconds that a small collective between small kernels takes longer than one after another collective."""
        [alone], *_ = collectives(replace(self.sizes, sent=(64,)), tuple(range(self.job.size)), self.job.rank)
        between = self.longer(partial(_in_turn, alone))
        return max(0.0, between - kernel - self.seconds(alone))

    def link(self, ranks: Sequence[int], handing: float = 0.0) -> Link:
        """What joins some ranks, by collectives of two and of all of them.

        Args:
            handing: seconds that every collective takes longer where kernels run before and after it.
        """
        pair, group = tuple(ranks[:2]), tuple(ranks)
        of_group = [(nodes[0], t) for nodes, t in self.times(collectives(self.sizes, group, self.job.rank))]
        of_pair = of_group
        if pair != group:
            of_pair = [(nodes[0], t) for nodes, t in self.times(collectives(self.sizes, pair, self.job.rank))]
        links: dict[str, Link] = {}
        for operator in dict.fromkeys(node.op.name for node, _ in of_group):
            small = [next(t for node, t in times if node.op.name == operator) for times in (of_pair, of_group)]
            hop = max(0.0, small[1] - small[0]) / max(1, len(group) - 2)
            latency = small[0] if len(group) > 2 else min(small)
            begin = latency + hop * max(0, len(group) - 2)
            own = [([node], t) for node, t in of_group if node.op.name == operator][1:]
            links[operator] = Link(latency + handing, rates_of(own, begin, sent_bytes), hop)
        first = links.pop("AllReduce")
        return Link(first.latency, first.bandwidth, first.hop, links)

    def _prepared(self, graph: Graph) -> Any:
        hardware, limits = self.job.hardware, _index_limits(graph)
        values: dict[str, Any] = {}
        for parameter in graph.parameters:
            kind = type, limit, on_host = parameter.tensor_type, limits.get(parameter), OFFLOAD in parameter.attrs
            if kind not in self._placed:
                self._placed[kind] = hardware.memory.place(_numbers(type, limit), on_host)
            values[parameter.name] = hardware.memory.like(self._placed[kind])
        self.number += 1
        cursor = self.job.cursor
        return hardware.executor(graph, self.job.comm, values, cursor, number=self.number, tf32=self.rounds)


def step_of(ranks: int) -> Graph:
    """The graph of a step without operators."""
    graph = Graph("calibration")
    graph.attrs = {"ranks": ranks, "mode": "semi_auto_parallel"}
    return graph


def _index_limits(graph: Graph) -> Mapping[Value, int]:
    """Below what the indices that operators read must be."""
    found: dict[Value, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Op) and node.inputs:
            for operand, limit in node.op.index_limits(*operand_types(node)).items():
                found[node.inputs[operand]] = limit
    return found


def _numbers(type: TensorType, limit: int | None) -> Any:
    """Numbers of an operand: of [0, 1), as different as those of networks (equal ones take less power, and are
    multiplied faster), or indices below a limit, spread over all."""
    if limit is not None:
        return (np.arange(type.size, dtype=np.int64) * STRIDE % limit).astype(type.dtype.numpy).reshape(type.shape)
    drawn = np.random.default_rng(0).random(min(DRAWN, type.size), np.float32).astype(type.dtype.numpy)
    return np.resize(drawn, type.shape)


def _rotation(nbytes: int, rotated: int, count: int) -> int:
    """How many different values of so many bytes take turns."""
    return min(count, max(1, -(-rotated // max(1, nbytes))))


def _copies(node: Node, rotated: int, graph: Graph, count: int) -> None:
    """An operator again and again, on operands that take turns."""
    types = [value.type for value in node.inputs]
    turns = _rotation(sum(type.nbytes for type in types), rotated, count)
    operands = [[Parameter("p", type, "parameter", False) for type in types] for _ in range(turns)]
    graph.parameters = [value for each in operands for value in each]
    b = Builder(graph)
    made = [b.emit(node.op, *operands[i % turns]) for i in range(count)]
    _held(graph, made, rotated)


def _sums(node: Node, rotated: int, graph: Graph, count: int) -> None:
    """Sums of what no cache holds any more: the operands of a sum are those of another one after half of all."""
    type = node.inputs[0].type
    turns = 1 + (_rotation(type.nbytes, rotated, count) if rotated else count)
    graph.parameters = [Parameter("p", type, "parameter", False) for _ in range(turns)]
    b, values = Builder(graph), graph.parameters
    _held(graph, [b.emit(node.op, values[i % turns], values[(i + turns // 2) % turns]) for i in range(count)], rotated)


def _held(graph: Graph, made: Sequence[Node], rotated: int) -> None:
    """Hold large results until so many bytes of others are written, that none lies where another one lay just now: a
    small operator then reads one number of each."""
    if not _holds(made[0], rotated):
        return
    turns = _rotation(made[0].type.nbytes, rotated, len(made))
    [type] = element_types(made[0].type)
    first, ends = (0,) * type.rank, (1,) * type.rank
    b = Builder(graph, [])
    for i, node in enumerate(made):
        b.nodes.append(node)
        if i >= turns:
            b.emit(Slice(first, ends), made[i - turns])
    for node in made[-turns:]:
        b.emit(Slice(first, ends), node)
    graph.nodes[:] = b.nodes


def _holds(node: Node, rotated: int) -> bool:
    """Whether results of an operator are held."""
    return isinstance(node.type, TensorType) and not node.op.mutates and node.type.nbytes * SMALL >= rotated > 0


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


def rates_of(
    times: Sequence[tuple[Sequence[Node], float]], kernel: float, amount_of: Callable[[Node], float],
    beside: Callable[[Node], float] = lambda _: 0.0,
) -> Rate:  # fmt: skip
    """The rate at every size, without the time in which nothing is done.

    Args:
        kernel: seconds in which an operator begins. beside: seconds of memory traffic beside the work of one, which
        add up as the legs of a triangle do (`analysis.cost.nodes`).
    """
    points: dict[float, float] = {}
    for group, seconds in times:
        amounts, begins = [amount_of(node) for node in group], len(group) * kernel
        doing = max(seconds - begins, LEAST * seconds, SHORTEST)
        moving = sum(map(beside, group))
        doing = max(math.sqrt(max(doing**2 - moving**2, 0.0)), LEAST * doing)
        points[sum(amounts) / len(amounts)] = sum(amounts) / doing
    return Rate(tuple(sorted(points.items())))
