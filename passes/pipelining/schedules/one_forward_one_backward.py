"""1F1B (arXiv 1806.03377 and 2006.09503): as soon as a stage has a gradient, forwards and backwards take turns.

Stage i begins with p - 1 - i forwards, as many as it takes until the first gradient comes back. It is idle for
(p - 1) (F + B), as in GPipe, but keeps p - i micro-batches in place of all.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import BACKWARD, FORWARD, Action, Entry, Schedule
from mspc.passes.pipelining.schedules.counts import check_counts, in_rounds

NAME = "1f1b"


def schedule(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule of so many micro-batches. Raises MspcError where a stage has more than one chunk."""
    check_counts(NAME, stages, micro_batches, chunks, known=1, of="'interleaved' is 1F1B with several")
    entries: list[tuple[Entry, ...]] = []
    for stage in range(stages):
        forward = [Action(FORWARD, stage, number) for number in range(micro_batches)]
        backward = [Action(BACKWARD, stage, number) for number in range(micro_batches)]
        entries.append(taking_turns(forward, backward, stages - 1 - stage))
    return Schedule(NAME, micro_batches, in_rounds(stages, 1), tuple(entries))


def taking_turns(forward: list[Action], backward: list[Action], ahead: int) -> tuple[Entry, ...]:
    """So many forwards ahead, then a forward and a backward in turn, then the backwards that are left."""
    found: list[Entry] = list(forward[:ahead])
    for place, action in enumerate(backward, min(ahead, len(forward))):
        found += forward[place : place + 1]
        found.append(action)
    return tuple(found)
