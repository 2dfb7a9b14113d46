"""ZB-2P (arXiv 2401.10241, there the handcrafted ZB-H2): no idle time, for twice the memory.

Stage i begins with 2 (p - i) - 1 forwards, which last until the first gradient comes back, and puts gradients for
weights off by 2 i micro-batches, which last until the stages before it have ended. So every stage keeps 2 p - 1
micro-batches and is never idle between its first and last action, where F = I = W and m >= 2 p - 1. Stages begin and
end one behind the other: where the optimizer's check is postponed, a stage begins its next step before others have
ended this one.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import Schedule
from mspc.passes.pipelining.schedules.counts import check_counts, in_rounds
from mspc.passes.pipelining.schedules.delayed_weights import with_delayed_weights

NAME = "zero_bubble_2p"


def schedule(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule of so many micro-batches. Raises MspcError where a stage has more than one chunk."""
    check_counts(NAME, stages, micro_batches, chunks, known=1, of="'zero_bubble_v' has two")
    entries = (with_delayed_weights(i, micro_batches, 2 * (stages - i) - 1, 2 * i) for i in range(stages))
    return Schedule(NAME, micro_batches, in_rounds(stages, 1), tuple(entries))
