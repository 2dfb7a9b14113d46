"""Measurement of the machine that this process runs on: rates of matmuls, convolutions, attention, memory traffic and
links, each as a function of size.

Operators are timed the way a network runs them: in steps, on the executor that runs networks (`timer`). Measurements
disturbed by other load on the machine are recorded in `Machine.doubts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mspc.analysis.cost.machine import DRAWS, ELEMENTWISE, HOST_COPIES, PRODUCTS, Link, Machine, Rate
from mspc.analysis.cost.nodes import computed, computing_seconds, cost_of_lines, moved_bytes, moving_seconds
from mspc.ir.graph import Node
from mspc.ir.types import BFLOAT16, FLOAT32, FLOAT64
from mspc.runtime.device_choice import GPU, DeviceRequest
from mspc.search.calibration.timed_operators import TimingSizes, additions, by_urgency, timing_tasks, traffic
from mspc.search.calibration.timer import Timer, host_rates, rates_of, without_drops

ON_CPU = TimingSizes((64, 256, 768), (((4, 16, 16),), ((8, 64, 28),)), (), (1 << 12, 1 << 16, 1 << 20, 1 << 24),
               (1 << 10, 1 << 14, 1 << 18, 1 << 22), (FLOAT32, FLOAT64), (FLOAT32,),
               ((1e-4, (8, 40)),))  # fmt: skip
ON_GPU = TimingSizes((128, 512, 1024, 2048, 4096),
               (((4, 64, 56), (4, 256, 14)), ((64, 64, 56), (64, 128, 28), (64, 512, 7)), ((64, 256, 56),)), (128, 512),
               (1 << 14, 1 << 18, 1 << 22, 1 << 24, 1 << 27), (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27),
               (BFLOAT16, FLOAT32, FLOAT64), (BFLOAT16, FLOAT32),
               ((1e-5, (64, 192)), (1e-4, (16, 64)), (1e-3, (4, 12))), channels_last=True, rotated=1 << 27,
               settling=0.02, kinds=True, rounds=True)  # fmt: skip
ALONE = Link(latency=1e-5, bandwidth=Rate.of(1e10))
"""Link rates of a machine that was measured with one rank."""


def calibrate(
    job: Any, name: str, tell: Callable[[str], None] = lambda _: None, sizes: TimingSizes | None = None,
    limit: float = 0.0
) -> Machine:  # fmt: skip
    """Return the rates of the machine, measured by all ranks of a job together.

    name: shown to people. tell: called with the name of the next measurement. sizes: of the timed operators. limit:
    seconds after which no further kind of work is started, except for plain matmuls, which have no fallback. Kinds that
    were not measured use the rates of similar kinds. 0 for no limit. Raise MspcError if a device is not available.
    """
    begin = time.perf_counter()
    job.hardware.choose(DeviceRequest(), job.size)
    job.hardware.agree(job.comm)
    job.hardware.prepare(False, job.comm, job.watch)
    on_gpu = job.hardware.choice.device == GPU
    sizes = sizes or (ON_GPU if on_gpu else ON_CPU)
    timer = Timer(job, sizes)
    tell("small operators")
    kernel = timer.measured("small operators", timer.kernel)
    tell("memory")
    times = timer.measured("memory", lambda: [(nodes, timer.sums(nodes[0])) for nodes in additions(sizes)])
    memory = rates_of(times, kernel, lambda node: 3.0 * node.type.nbytes)
    source = f"measured by mspc calibrate on {job.size} rank{'s' * (job.size > 1)}"
    device = "GPU" if on_gpu else "CPU"
    machine = Machine(name, device, {}, other_products=memory, memory=memory, kernel=kernel, link=ALONE, source=source)
    machine = _with_traffic(machine, timer, tell)
    machine = _with_links(machine, timer, tell)
    machine = _with_work(machine, timer, tell, lambda: timer.is_over(begin, limit))
    return replace(machine, doubts=tuple(timer.doubts))


def _with_traffic(machine: Machine, timer: Timer, tell: Callable[[str], None]) -> Machine:
    found: dict[str, Rate] = {}
    for kind, groups in traffic(timer.sizes):
        what = kind.replace("_", " ")
        tell(what)
        times = timer.measured(what, partial(timer.times, groups))
        found[kind] = rates_of(times, machine.kernel, moved_bytes)
    if not (timer.sizes.kinds and machine.device == "GPU"):
        return replace(machine, traffic=found)
    rates = host_rates(timer, machine.kernel, tell)
    source = f"{machine.source}; {rates.text}"
    return replace(machine, traffic={**found, HOST_COPIES: rates.both}, source=source)


def _with_work(
    machine: Machine, timer: Timer, tell: Callable[[str], None], is_over: Callable[[], bool]
) -> Machine:  # fmt: skip
    found: dict[str, dict[str, Rate]] = {}
    left: list[str] = []
    every = list(timing_tasks(timer.sizes))
    for timed in by_urgency(every):
        kind = timed.kind
        what = f"{kind.replace('_', ' ')} of {timed.rates}"
        if kind != PRODUCTS and is_over():
            left.append(what)
            continue
        tell(what)
        times = timer.measured(what, partial(timer.times, timed.groups(), timed.rounds))
        found.setdefault(kind, {})[timed.rates] = without_drops(_rates_of_work(kind, machine, times))
        machine = replace(machine, work=found)
    slowest = min(found[PRODUCTS].values(), key=lambda rate: rate.points[-1][1])
    source = f"{machine.source}; no time was left for {', '.join(left)}" if left else machine.source
    in_order = {each.kind: found[each.kind] for each in every if each.kind in found}
    return replace(machine, work=in_order, other_products=slowest, source=source)


def _rates_of_work(kind: str, machine: Machine, times: Sequence[tuple[Sequence[Node], float]]) -> Rate:
    """Return the rates of a kind of work on a machine with known memory rates."""
    beside = partial(moving_seconds, machine=machine)
    if kind == ELEMENTWISE:
        return rates_of(times, machine.kernel, lambda node: cost_of_lines(node).operations, beside)
    if kind != DRAWS:
        return rates_of(times, machine.kernel, lambda node: computed(node, machine), beside)
    # The time of the other arithmetic in these lines is known; it is subtracted to get the time of the draws.
    others = [(group, seconds - sum(computing_seconds(node, machine) for node in group)) for group, seconds in times]
    return rates_of(others, machine.kernel, lambda node: cost_of_lines(node).draws, beside)


def _with_links(machine: Machine, timer: Timer, tell: Callable[[str], None]) -> Machine:
    tell("links")
    size, local = timer.job.size, timer.ranks_per_host
    handing = timer.stream_switch_seconds(machine.kernel) if size > 1 else 0.0

    def link(what: str, ranks: Sequence[int]) -> Link:
        return timer.measured(what, lambda: timer.link(ranks, handing))

    near = link("links", range(local)) if local > 1 else ALONE
    if local == size:
        return replace(machine, link=near)
    return replace(machine, link=near, ranks_per_host=local, network=link("the network", [0, local]))
