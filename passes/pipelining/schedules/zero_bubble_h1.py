"""ZB-H1 (arXiv 2401.10241): 1F1B in whose idle time stages compute gradients for weights.

Stage i begins with p - i forwards, as 1F1B does, and puts gradients for weights off by i micro-batches. So every stage
keeps p micro-batches, as many as stage 0 of 1F1B, and is idle for (p - 1) (F + I - W), where I is the time of the
gradient for inputs: a third of 1F1B's where F = I = W. (With B = I + W it is the (p - 1) (F + B - 2 W) of ZB1P.)
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import Schedule
from mspc.passes.pipelining.schedules.counts import check_counts, in_rounds
from mspc.passes.pipelining.schedules.delayed_weights import with_delayed_weights

NAME = "zero_bubble_h1"


def schedule(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule of so many micro-batches. Raises MspcError where a stage has more than one chunk."""
    check_counts(NAME, stages, micro_batches, chunks, known=1, of="'zero_bubble_v' has two")
    entries = (with_delayed_weights(i, micro_batches, stages - i, i) for i in range(stages))
    return Schedule(NAME, micro_batches, in_rounds(stages, 1), tuple(entries))
