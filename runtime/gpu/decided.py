"""What the GPU itself decides within a CUDA graph: how often a loop turns, and which way a branch goes.

Elsewhere, in a step that runs node by node, the host decides the same (`loops`, `regions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.source import NANOSECONDS
from mspc.ops.device import Array, Launch
from mspc.runtime.comm.control_flow import collectives_of
from mspc.runtime.gpu.bound_regions import RegionContext
from mspc.runtime.gpu.launches import Several, asks, run_each
from mspc.runtime.gpu.on_host import HostQuery

_DECIDE = (
    NANOSECONDS
    + r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
__device__ __forceinline__ void go_on(u64 handle, bool goes, long long done, const long long* begun, long long limit,
                                      long long number, volatile long long* ended, int* stop) {
    if (goes && !ended[0] && limit && nanoseconds() - begun[0] > limit) { ended[0] = number; ended[1] = done; }
    if (goes && ended[0]) { stop[0] = 1; goes = false; }
    cudaGraphSetConditional(handle, goes);
}
extern "C" __global__ void choose(u64 handle, const bool* condition) { cudaGraphSetConditional(handle, condition[0]); }
/* begun: the time, and the number of turns, which `told` has unless it is known. */
extern "C" __global__ void begin_turns(const long long* told, long long known, int reverse, long long* turn,
                                       long long* begun) {
    const long long turns = known >= 0 ? known : told[0] > 0 ? told[0] : 0;
    begun[0] = nanoseconds();
    begun[1] = turns;
    turn[0] = reverse ? turns : -1;
}
extern "C" __global__ void go_on_while(u64 handle, const bool* condition, const long long* turn, const long long* begun,
                                       long long limit, long long number, volatile long long* ended, int* stop) {
    go_on(handle, condition[0], turn[0], begun, limit, number, ended, stop);
}
extern "C" __global__ void go_on_for(u64 handle, int reverse, const long long* turn, const long long* begun,
                                     long long limit, long long number, volatile long long* ended, int* stop) {
    const long long done = reverse ? begun[1] - turn[0] : turn[0] + 1;
    go_on(handle, done < begun[1], done, begun, limit, number, ended, stop);
}
"""
)


def decided(device: Any, node: Node, by_host: Launch, by_gpu: Launch) -> HostQuery:
    """A launch of a node that the GPU decides on within a captured graph, and the host elsewhere."""

    def run() -> None:
        if device.capturing:
            by_gpu()
            return
        try:
            by_host()
        except Exception as error:
            if not hasattr(error, "node"):
                error.node = node  # type: ignore[attr-defined]  # for the message
            raise

    return HostQuery(run, decided=True)


def may_decide(around: RegionContext, node: Node, launches: Iterable[Launch]) -> bool:
    """Whether the GPU may decide on a node that makes these launches: it has such nodes, none of the launches asks the
    host, and no other rank is met inside, as ranks compare there which way they go."""
    if around.device.conditional is None or any(map(asks, launches)):
        return False
    return next(collectives_of([node]), None) is None


def choice_by_gpu(
    around: RegionContext, node: Node, condition: Array, ways: Sequence[Sequence[Launch]]
) -> Launch | None:
    """The first way where the condition, a Bool on the GPU, holds, else the second; None: the host has to decide."""
    device = around.device
    if not may_decide(around, node, [launch for way in ways for launch in way]) or not device.conditional.has_choices:
        return None
    choose = device.kernel(_DECIDE, "choose")
    runs = [Several(way) for way in ways]
    return lambda: device.conditional.choice(lambda handle: choose(1, 1, (handle, condition)), runs)


@dataclass(frozen=True)
class LoopLaunches:
    """The launches of a loop's turns.

    ahead: of the first turn, once the count is set. each: a turn, and what `ahead` does for the next one. behind: all
    turns. turn: Int64 array of one element: the number of the turn.
    condition: a Bool on the GPU that `ahead` sets; None where turns are counted: `known` times or, where that is -1, as
    `told` says, an Int64 on the GPU.
    """

    ahead: Sequence[Launch]
    each: Sequence[Launch]
    behind: Sequence[Launch]
    turn: Array
    condition: Array = None
    told: Array = None
    known: int = -1
    reverse: bool = False


def loop_by_gpu(around: RegionContext, node: Node, begin: Sequence[Launch], turns: LoopLaunches) -> Launch | None:
    """All turns of a loop; None: the host has to decide. begin: launches ahead of everything."""
    device, limit = around.device, around.loop_limit if turns.known < 0 else 0.0
    if not may_decide(around, node, (*begin, *turns.ahead, *turns.each, *turns.behind)):
        return None
    if limit and around.host.size > 1:
        return None  # other ranks would go on with what a loop has left that was stopped
    has_condition = turns.condition is not None
    begun, nothing = device.zeros((2,), "int64"), np.uint64(0)
    number = around.ended.number_of(node, has_condition, limited=limit > 0)
    told = nothing if turns.told is None else turns.told
    known = 0 if has_condition else turns.known
    start = device.kernel(_DECIDE, "begin_turns")
    started = partial(start, 1, 1, (told, np.int64(known), np.int32(turns.reverse), turns.turn, begun))
    go_on = device.kernel(_DECIDE, "go_on_while" if has_condition else "go_on_for")
    first = turns.condition if has_condition else np.int32(turns.reverse)
    behind = (turns.turn, begun, np.int64(limit * 1e9), np.int64(number), around.ended.array, device.stop)
    each = Several(turns.each)

    def run() -> None:
        started()  # ahead of what may lie where the number of turns lay
        run_each([*begin, *turns.ahead])
        device.conditional.loop(lambda handle: go_on(1, 1, (handle, first, *behind)), each)
        run_each(turns.behind)

    return run
