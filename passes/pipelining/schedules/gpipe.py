"""GPipe (arXiv 1811.06965): all forwards, then all backwards.

A stage is idle for (p - 1) (F + B) / v and keeps all m micro-batches. With several chunks a stage it is the looped
schedule of arXiv 2211.05953, breadth first. Backwards are in the order of forwards, not in the reverse one of the
paper's figure: neither is idle for longer, and so gradients are summed in the order that other schedules have.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import BACKWARD, FORWARD, Action, Schedule
from mspc.passes.pipelining.schedules.counts import check_counts, in_rounds

NAME = "gpipe"


def schedule(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule of so many micro-batches. chunks: a stage's. Raises MspcError where a number is not positive."""
    check_counts(NAME, stages, micro_batches, chunks)
    entries = [
        (
            *(Action(FORWARD, c, n) for c in range(stage, stages * chunks, stages) for n in range(micro_batches)),
            *(
                Action(BACKWARD, c, n)
                for c in reversed(range(stage, stages * chunks, stages))
                for n in range(micro_batches)
            ),
        )
        for stage in range(stages)
    ]
    return Schedule(NAME, micro_batches, in_rounds(stages, chunks), tuple(entries))
