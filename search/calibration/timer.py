"""Timing of operators on the executor that runs networks, by the increase of a step's time with more copies of an
operator.

The difference of two steps excludes the start of a step and clock calls between nodes. As in networks, the copies read
operands and write results that are not in any cache, and run until clock rates have settled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mspc.analysis.cost.machine import Link, Rate
from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.graph import (
    FROM_HOST,
    OFFLOAD,
    TO_HOST,
    Builder,
    Graph,
    Node,
    Parameter,
    Value,
    element_types,
    operand_types,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Add, Maximum, Minimum, Mul, SquaredDifference, Sub
from mspc.ops.op import Op
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost, ToHost
from mspc.ops.tensor.parts import Slice
from mspc.search.calibration.timed_operators import Groups, TimingSizes, collectives

NOISE_THRESHOLD = 0.35
"""Spread of a step's repeats relative to the fastest repeat, as the median over steps timed together, above which a
measurement is doubtful because the machine has other load."""
MIN_RATE_SHARE = 0.5
"""Minimum rate of larger work as a share of the best rate. A larger drop is a measurement error."""

Measured = TypeVar("Measured")


def without_drops(rate: Rate) -> Rate:
    """Return the rates with a doubtful drop replaced by the rate at the smaller size: larger work can be split."""
    found: list[tuple[float, float]] = []
    best = 0.0
    for amount, at in rate.points:
        best = max(best, at)
        found.append((amount, best if at < MIN_RATE_SHARE * best else at))
    return Rate(tuple(found))


STEPS, PREPARING = 7, 3
"""Number of timed steps, and of warm-up steps."""
FEW = 1, 3
"""Copies of a long operator in the two steps by which it is timed."""
SLOW = 1e-3
"""Seconds of an operator above which fewer steps are timed."""
MAX_WARMUP_STEPS = 200
"""Maximum number of steps before timing, until clock rates have settled."""
REPEATS = 3
"""Number of repeats; the minimum counts, because it was disturbed least."""
MIN_WORK_SHARE = 0.2
"""Minimum share of a measured time that counts as work if kernel start or memory traffic explain most of it."""
SHORTEST = 1e-9
"""Lower bound of an operator's seconds, even if a clock measures less."""
SMALL = 128
"""Maximum number of results that together make up the rotated bytes; smaller results are not retained."""
DRAWN = 1 << 20
"""Number of different random values of an operand; longer operands repeat them."""
STRIDE = 7919
"""Distance between consecutive indices of an operand: a prime, so that indices spread over all positions."""
DIFFERENT = (Add(), SquaredDifference(), Maximum(), Mul(), Sub(), Minimum())
"""Operators with different kernels whose chains stay bounded in any order."""

Fill = Callable[[Graph, int], None]
"""Function that adds a number of copies of the timed operator to a graph."""


class Timer:
    """Timer of operators on this rank's executor; all ranks time the same operators. doubts: measurements disturbed by
    other load, equal on all ranks."""

    def __init__(self, job: Any, sizes: TimingSizes) -> None:
        self.job, self.sizes = job, sizes
        everyone = tuple(range(job.size))
        firsts = job.aside.all_gather(np.array([job.hardware.local_rank == 0]), everyone, 0) if job.size > 1 else [True]
        self.ranks_per_host = job.size // max(1, int(np.sum(firsts)))
        self.number, self.small, self.rounds = 0, 0.0, False
        self.doubts: list[str] = []
        self._spreads: list[float] = []
        """Differences between the repeats of every step of a measurement, as shares of the least time."""
        self._placed: dict[tuple[TensorType, int | None, bool], Any] = {}

    def measured(self, what: str, measure: Callable[[], Measured]) -> Measured:
        """Return a measurement and record whether it is doubtful."""
        self._spreads.clear()
        found = measure()
        typical = statistics.median(self._spreads) if self._spreads else 0.0
        if typical > NOISE_THRESHOLD:
            self.doubts.append(f"{what}: repeats of one step differ by {typical:.0%}")
        return found

    def times(self, groups: Groups, rounds: bool = False) -> list[tuple[Sequence[Node], float]]:
        """Return the groups, each with the total seconds of its operators. rounds: GPUs may round matmuls of Float32 to
        TF32."""
        self.rounds = rounds
        try:
            return [(group, sum(self.seconds(node) for node in group)) for group in groups]
        finally:
            self.rounds = False

    def seconds(self, node: Node) -> float:
        """Return the seconds of an operator on the slowest rank."""
        return self._alone(node, _copies)

    def kernel(self) -> float:
        """Return the seconds from the start of one small operator to the next."""
        self.small = self.seconds_per_copy(_different) / len(DIFFERENT)
        return self.small

    def sums(self, node: Node) -> float:
        """Return the seconds of an addition whose operands are not in any cache."""
        return self._alone(node, _sums)

    def _alone(self, node: Node, fill: Callable[[Node, int, Graph, int], None]) -> float:
        """Return the seconds of an operator, without the operators that retain its results."""
        rotated = self.sizes.rotated
        reading = self.small if _holds(node, rotated) else 0.0
        return max(self.seconds_per_copy(partial(fill, node, rotated)) - reading, SHORTEST)

    def seconds_per_copy(self, fill: Fill) -> float:
        """Return the seconds that each copy adds to a step, on the slowest rank."""
        self._placed.clear()  # operands of another operator; every step has copies of them
        about = self._slowest(min(self._step(fill, FEW[1], PREPARING, FEW[1])) / FEW[1])
        more = next((counts for limit, counts in self.sizes.copies if about <= limit), FEW)
        # All ranks have the same `about`, so that they take as many steps.
        settling = int(self.sizes.settling / (about * max(more)))
        few, many = more
        preparing, steps = min(MAX_WARMUP_STEPS, max(PREPARING, settling)), STEPS if about < SLOW else FEW[1]
        longer, shorter = (self._step(fill, count, preparing, steps) for count in (many, few))
        self._spreads.append(self._slowest(max(sorted(each)[1] / min(each) - 1 for each in (longer, shorter))))
        return max(self._slowest((min(longer) - min(shorter)) / (many - few)), SHORTEST)

    def _step(self, fill: Fill, count: int, preparing: int, steps: int) -> list[float]:
        """Return the seconds of a step with `count` copies for every repeat. Each repeat averages `steps` steps, after
        `preparing` warm-up steps."""
        graph = empty_step(self.job.size)
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
        """Return the maximum over all ranks."""
        if self.job.size == 1:
            return found
        return float(self.job.aside.all_gather(np.array([found]), tuple(range(self.job.size)), 0).max())

    def is_over(self, begin: float, limit: float) -> bool:
        """Return whether more than `limit` seconds have passed since `begin`, by the latest clock of all ranks."""
        return bool(limit) and self._slowest(time.perf_counter() - begin) > limit

    def stream_switch_seconds(self, kernel: float) -> float:
        """Return the additional seconds of a small collective between small kernels, compared with a sequence of
        collectives."""
        [alone], *_ = collectives(replace(self.sizes, sent=(64,)), tuple(range(self.job.size)), self.job.rank)
        between = self.seconds_per_copy(partial(_alternate, alone))
        return max(0.0, between - kernel - self.seconds(alone))

    def link(self, ranks: Sequence[int], handing: float = 0.0) -> Link:
        """Return the link between some ranks, measured with collectives of two ranks and of all of them. handing:
        additional seconds of every collective that runs between kernels."""
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


def empty_step(ranks: int) -> Graph:
    """Return the graph of a step without operators."""
    graph = Graph("calibration")
    graph.attrs = {"ranks": ranks, "mode": "semi_auto_parallel"}
    return graph


def _index_limits(graph: Graph) -> Mapping[Value, int]:
    """Return the exclusive upper bounds of the indices that operators read."""
    found: dict[Value, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Op) and node.inputs:
            for operand, limit in node.op.index_limits(*operand_types(node)).items():
                found[node.inputs[operand]] = limit
    return found


def _numbers(type: TensorType, limit: int | None) -> Any:
    """Return the values of an operand: random values in [0, 1), because equal values draw less power and run faster, or
    indices below `limit` that spread over all positions."""
    if limit is not None:
        return (np.arange(type.size, dtype=np.int64) * STRIDE % limit).astype(type.dtype.numpy).reshape(type.shape)
    drawn = np.random.default_rng(0).random(min(DRAWN, type.size), np.float32).astype(type.dtype.numpy)
    return np.resize(drawn, type.shape)


def _rotation(nbytes: int, rotated: int, count: int) -> int:
    """Return the number of different values of `nbytes` bytes that are used in rotation."""
    return min(count, max(1, -(-rotated // max(1, nbytes))))


def _copies(node: Node, rotated: int, graph: Graph, count: int) -> None:
    """Fill a graph with copies of an operator, on operands used in rotation."""
    types = [value.type for value in node.inputs]
    turns = _rotation(sum(type.nbytes for type in types), rotated, count)
    operands = [[Parameter("p", type, "parameter", False) for type in types] for _ in range(turns)]
    graph.parameters = [value for each in operands for value in each]
    b = Builder(graph)
    made = [b.emit(node.op, *operands[i % turns]) for i in range(count)]
    _hold_results(graph, made, rotated)


def _sums(node: Node, rotated: int, graph: Graph, count: int) -> None:
    """Fill a graph with additions whose operands have left the caches: each operand is read again after half of the
    others."""
    type = node.inputs[0].type
    turns = 1 + (_rotation(type.nbytes, rotated, count) if rotated else count)
    graph.parameters = [Parameter("p", type, "parameter", False) for _ in range(turns)]
    b, values = Builder(graph), graph.parameters
    _hold_results(
        graph, [b.emit(node.op, values[i % turns], values[(i + turns // 2) % turns]) for i in range(count)], rotated
    )


def _hold_results(graph: Graph, made: Sequence[Node], rotated: int) -> None:
    """Retain large results until `rotated` bytes of others are written, so that no result reuses recently freed memory.
    A small operator that reads one element of each result extends the live ranges."""
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
    return isinstance(node.type, TensorType) and not node.op.mutates and node.type.nbytes * SMALL >= rotated > 0


def _different(graph: Graph, count: int) -> None:
    """Fill a graph with a chain of different small operators, as in a network."""
    first = Parameter("p", TensorType(FLOAT32, (16,)), "parameter", False)
    graph.parameters = [first]
    b, value = Builder(graph), first
    for op in DIFFERENT * count:
        value = b.emit(op, value, first)


def _alternate(collective: Node, graph: Graph, count: int) -> None:
    """Fill a graph with a chain that alternates a kernel and a collective, with bounded values."""
    graph.parameters = [value for value in collective.inputs if isinstance(value, Parameter)]
    b, [most] = Builder(graph), graph.parameters
    value = b.emit(collective.op, most)
    for _ in range(count):
        value = b.emit(collective.op, b.emit(Minimum(), value, most))


def rates_of(
    times: Sequence[tuple[Sequence[Node], float]], kernel: float, amount_of: Callable[[Node], float],
    beside: Callable[[Node], float] = lambda _: 0.0,
) -> Rate:  # fmt: skip
    """Return the rate at every size, excluding the time without work. kernel: seconds to start an operator. beside:
    seconds of an operator's memory traffic besides its work, which combine with it like the legs of a right triangle
    (`analysis.cost.nodes`)."""
    points: dict[float, float] = {}
    for group, seconds in times:
        amounts, begins = [amount_of(node) for node in group], len(group) * kernel
        doing = max(seconds - begins, MIN_WORK_SHARE * seconds, SHORTEST)
        moving = sum(map(beside, group))
        doing = max(math.sqrt(max(doing**2 - moving**2, 0.0)), MIN_WORK_SHARE * doing)
        points[sum(amounts) / len(amounts)] = sum(amounts) / doing
    return Rate(tuple(sorted(points.items())))


MIN_COPIED = 1 << 20
"""Bytes of a copy above which its time depends on the bus."""
GIGA = 1e9


@dataclass(frozen=True)
class HostRates:
    """Bytes per second of copies between device and host. to_host, from_host: in one direction. both: in each direction
    while both directions copy."""

    to_host: Rate
    from_host: Rate
    both: Rate

    @property
    def text(self) -> str:
        """The rates of the largest copies, for people."""
        shown = (f"{rate.points[-1][1] / GIGA:.3g}" for rate in (self.to_host, self.from_host, self.both))
        return "copies to the host at {} GB/s, from it at {}, both at once at {} each way".format(*shown)


def host_rates(timer: Timer, kernel: float, tell: Callable[[str], None]) -> HostRates:
    """Measure the copies and return their rates. kernel: seconds to start an operator."""

    def rate(what: str, leaves: bool, comes: bool) -> Rate:
        tell(what)

        def times() -> list[tuple[Sequence[Node], float]]:
            copied = [n for n in timer.sizes.touched if n >= MIN_COPIED]
            fills = {n: partial(copies, n, timer.sizes.rotated, leaves, comes) for n in copied}
            return [([_copy(n)], timer.seconds_per_copy(fill)) for n, fill in fills.items()]

        return without_drops(rates_of(timer.measured(what, times), kernel, _nbytes))

    return HostRates(
        rate("copies to the host", True, False), rate("copies from the host", False, True),
        rate("copies both ways", True, True),
    )  # fmt: skip


def copies(nbytes: int, rotated: int, leaves: bool, comes: bool, graph: Graph, count: int) -> None:
    """Fill a graph with `count` copies to the host, from the host, or both; only the end of the step waits for them."""
    type = TensorType(FLOAT32, (nbytes // 4,))
    turns = min(count, max(1, -(-rotated // nbytes)))
    b = Builder(graph)
    hosts = [[Parameter("p", type, "parameter", False) for _ in range(turns)] for _ in range(leaves + comes)]
    for host in (each for hosts_of_way in hosts for each in hosts_of_way):
        host.attrs[OFFLOAD] = 0
    value = Parameter("p", type, "parameter", False)
    graph.parameters = [value] * leaves + [host for each in hosts for host in each]
    last: list[Node] = []
    for i in range(count):
        last = []
        if leaves:
            last.append(b.emit(AssignOnHost(), hosts[0][i % turns], value))
            last[-1].attrs["stream"] = TO_HOST
        if comes:
            last.append(b.emit(FromHost(), hosts[-1][i % turns]))
            last[-1].attrs["stream"] = FROM_HOST
    for node in last:
        b.emit(AwaitHost() if node.attrs["stream"] == TO_HOST else Slice((0,), (1,)), node)


def _copy(nbytes: int) -> Node:
    type = TensorType(FLOAT32, (nbytes // 4,))
    return Node(ToHost(), [Parameter("p", type, "parameter", False)], type)


def _nbytes(node: Node) -> float:
    return float(node.tensor_type.nbytes)
