"""What `mspc calibrate` times of copies between a GPU's memory and pinned memory of its host: each way alone, and both
ways at once, as steps have them that keep states on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mspc.analysis.cost.machine import Rate
from mspc.ir.builder import Builder
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Node, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost, ToHost
from mspc.ops.tensor.parts import Slice
from mspc.search.calibration.timed_operators import TimingSizes
from mspc.search.calibration.timer import Timer, rates_of

LEAST = 1 << 20
"""Bytes of a copy from which on its time says something of the bus."""
GIGA = 1e9


@dataclass(frozen=True)
class HostRates:
    """Bytes per second of a copy. to_host, from_host: while nothing else is copied. both: each way, while as much goes
    the other way."""

    to_host: Rate
    from_host: Rate
    both: Rate

    @property
    def text(self) -> str:
        """The rates of the largest copies, for people."""
        shown = (f"{rate.points[-1][1] / GIGA:.3g}" for rate in (self.to_host, self.from_host, self.both))
        return "copies to the host at {} GB/s, from it at {}, both at once at {} each way".format(*shown)


def host_rates(timer: Timer, kernel: float, tell: Callable[[str], None]) -> HostRates:
    """Measure the copies. kernel: seconds in which an operator begins."""

    def rate(what: str, leaves: bool, comes: bool) -> Rate:
        tell(what)

        def times() -> list[tuple[Sequence[Node], float]]:
            fills = {n: partial(copies, n, timer.sizes.rotated, leaves, comes) for n in copied(timer.sizes)}
            return [([_copy(n)], timer.longer(fill)) for n, fill in fills.items()]

        return timer.trust.times(what, times, lambda found: rates_of(found, kernel, _nbytes), falls=False)

    return HostRates(
        rate("copies to the host", True, False), rate("copies from the host", False, True),
        rate("copies both ways", True, True),
    )  # fmt: skip


def copied(sizes: TimingSizes) -> list[int]:
    """Bytes of the copies that are timed."""
    return [n for n in sizes.touched if n >= LEAST]


def copies(nbytes: int, rotated: int, leaves: bool, comes: bool, graph: Graph, count: int) -> None:
    """Fill a graph with so many copies that leave, that come, or of both; nothing but the end of the step waits for
    them."""
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
