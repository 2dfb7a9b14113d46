"""The schedules by the names that scripts give them: MindSpore's, and those that mspc has beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mspc.ir.diagnostics import MspcError
from mspc.ir.nearest import all_of, did_you_mean
from mspc.passes.pipelining.schedules import (
    dual_pipe_v,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble_2p,
    zero_bubble_h1,
    zero_bubble_v,
)  # fmt: skip
from mspc.passes.pipelining.schedules.action import Schedule

MODULES = (
    gpipe, one_forward_one_backward, interleaved, zero_bubble_h1, zero_bubble_2p, zero_bubble_v, dual_pipe_v,
)  # fmt: skip
SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {module.NAME: module.schedule for module in MODULES}
"""The function that makes a schedule for numbers of stages, of micro-batches and of chunks a stage, by its name."""
IN_PARTS = ("seqpipe", "seqvpp", "seqsmartvpp")
"""MindSpore's schedules that cut micro-batches along the sequence, too."""
WITH_SPLIT_GRADIENTS = frozenset(
    (zero_bubble_h1.NAME, zero_bubble_2p.NAME, zero_bubble_v.NAME, dual_pipe_v.NAME)
)  # fmt: skip
"""Those that take gradients for inputs and for weights apart."""
THERE_AND_BACK = frozenset((zero_bubble_v.NAME, dual_pipe_v.NAME))
"""Those in which stage i has chunks i and 2 p - 1 - i."""


def check_name(name: str) -> None:
    """Raises MspcError where there is no schedule of a name, with the nearest ones, or where it is refused."""
    if name in IN_PARTS:
        raise MspcError(
            f"the schedule {name!r} cuts micro-batches along the sequence, which mspc does not do",
            notes=["'1f1b', with interleaving for several chunks a stage, runs the same network"],
            kind=ValueError,
        )
    if name not in SCHEDULES:
        notes = [*did_you_mean(name, SCHEDULES), f"there are {all_of(name, SCHEDULES)}"]
        raise MspcError(f"there is no schedule {name!r}", notes=notes, kind=ValueError)


def named_schedule(
    name: str, stages: int, micro_batches: int, chunks: int | None = None, *, interleave: bool = False
) -> Schedule:
    """The schedule of a name.

    Args:
        chunks: of every stage; None: as many as the schedule has, two of one that may have any number of them.
        interleave: what MindSpore's setting of that name says: a stage has several chunks. With `1f1b` that is
            interleaved 1F1B; schedules that have several chunks always need no word of it.

    Raises:
        MspcError: there is no such schedule, or it is not for these numbers.
    """
    check_name(name)
    if interleave and name == one_forward_one_backward.NAME:
        name = interleaved.NAME
    if chunks is None:
        several = name in THERE_AND_BACK or name == interleaved.NAME or (interleave and name == gpipe.NAME)
        chunks = 2 if several else 1
    return _made(name, stages, micro_batches, chunks)


@lru_cache(maxsize=64)  # every stage of a program asks for the same one
def _made(name: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    return SCHEDULES[name](stages, micro_batches, chunks)
