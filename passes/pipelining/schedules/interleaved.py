"""Interleaved 1F1B (arXiv 2104.04473): 1F1B with v chunks a stage, which micro-batches pass in groups.

A group of micro-batches passes all chunks of a stage before the next one begins. The paper's groups are of p, so that
m is a multiple of p; here they are of m // p groups that differ by one micro-batch at most, none smaller than p where m
is not: a smaller one would leave stages without work inside of a step. A stage is idle for (p - 1) (F + B) / v, which
holds for every m >= p; F and B are the times of all its chunks together. Stage 0 keeps (v - 1) g + 2 p - 1 chunks'
micro-batches, where g is the largest group: (v + 1) p - 1 where p divides m.
"""

from __future__ import annotations

from itertools import pairwise

from mspc.passes.pipelining.schedules.action import BACKWARD, FORWARD, Action, Entry, Schedule
from mspc.passes.pipelining.schedules.counts import check_counts, in_rounds
from mspc.passes.pipelining.schedules.one_forward_one_backward import taking_turns

NAME = "interleaved"


def schedule(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """The schedule of so many micro-batches. chunks: a stage's. Raises MspcError where a number is not positive."""
    check_counts(NAME, stages, micro_batches, chunks)
    groups = groups_of(micro_batches, stages)
    longest = max(map(len, groups))
    entries: list[tuple[Entry, ...]] = []
    for stage in range(stages):
        own = range(stage, stages * chunks, stages)
        forward = [Action(FORWARD, chunk, n) for group in groups for chunk in own for n in group]
        backward = [Action(BACKWARD, chunk, n) for group in groups for chunk in reversed(own) for n in group]
        # A micro-batch needs 2 (p - 1 - i) further turns from this stage to the last one and back.
        ahead = (chunks - 1) * longest + 2 * (stages - 1 - stage)
        entries.append(taking_turns(forward, backward, ahead))
    return Schedule(NAME, micro_batches, in_rounds(stages, chunks), tuple(entries))


def groups_of(micro_batches: int, stages: int) -> list[range]:
    """The micro-batches in m // p groups, or one, that differ by one at most; larger ones come first."""
    count = max(1, micro_batches // stages)
    size, larger = divmod(micro_batches, count)
    starts = [size * number + min(number, larger) for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]
