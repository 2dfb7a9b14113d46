"""Launches of nodes that run graphs.

What decides on the way that is gone, a condition or a number of turns that nobody knows ahead, the GPU looks at itself
where it is captured (`decided`). Else the host reads it from the GPU: only there a step is no single CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mspc.ir.graph import MICRO_BATCH, Node
from mspc.ops.control.regions import If, Loop, spread
from mspc.ops.control.structural import CALL
from mspc.ops.device import Array, Launch
from mspc.runtime.comm.control_flow import same_way
from mspc.runtime.gpu.bound_regions import BoundRegion, RegionContext, Told, taken
from mspc.runtime.gpu.decided import choice_by_gpu, decided
from mspc.runtime.gpu.launches import Held, like, run_each
from mspc.runtime.gpu.loops import loop_launch
from mspc.runtime.gpu.on_host import HostQuery
from mspc.runtime.gpu.replayed import in_parts, one_launch
from mspc.runtime.regions.ways import went


def region_launch(
    around: RegionContext, node: Node, operands: Sequence[Held], out: Sequence[Held], memory: Array
) -> Launch:  # fmt: skip
    """The launch of a node that runs graphs.

    Args:
        operands, out: what holds its operands and its results. memory: bytes for what lives while it runs.
    """
    backend = around.backend
    if MICRO_BATCH in node.attrs:
        number = int(node.attrs[MICRO_BATCH])
        inside, mixes = around.in_micro_batch(number)
    elif CALL in node.attrs:
        inside, mixes = around.in_call(int(node.attrs[CALL]))
    else:
        return _launch(around, node, operands, out, memory)
    launch = one_launch(around.device, [*mixes, _launch(inside, node, operands, out, memory)])
    if not isinstance(launch, HostQuery):
        return launch

    def run() -> None:
        calls, turns = backend.calls, backend.turns
        backend.calls = inside.calls
        backend.turns = (*turns, number) if MICRO_BATCH in node.attrs else turns
        try:
            launch()
        finally:
            backend.calls, backend.turns = calls, turns

    return like(launch, run)


def _launch(around: RegionContext, node: Node, operands: Sequence[Held], out: Sequence[Held], memory: Array) -> Launch:
    if isinstance(node.op, Loop):
        return loop_launch(around, node, node.op, operands, out, memory)
    if isinstance(node.op, If):
        return _choice(around, node, operands, out, memory)
    region = BoundRegion(around, node.regions[0], spread(node, operands), memory, out=out)
    return one_launch(around.device, [*region.launches, *taken(around.device, region.results, out)])


def _choice(around: RegionContext, node: Node, operands: Sequence[Held], out: Sequence[Held], memory: Array) -> Launch:
    device = around.device
    ways: list[list[Launch]] = []
    for graph in node.regions:
        region = BoundRegion(around, graph, operands[1:], memory, out=out)
        ways.append([*region.launches, *taken(device, region.results, out)])
    parts = [in_parts(device, way) for way in ways]
    condition = Told(device, operands[0])
    check = same_way(node, around.host, partial(went, node))

    def run() -> None:
        condition.fetch()
        way = bool(condition.wait())
        if check is not None:
            check(int(way))
        run_each(parts[0 if way else 1])

    by_gpu = choice_by_gpu(around, node, operands[0], ways)
    return HostQuery(run) if by_gpu is None else decided(device, node, run, by_gpu)
