"""This module checks the collectives that scripts call, and runs calls outside of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import call_handler, state
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import Type
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op


def called(op: Op) -> Op:
    """The operator as this rank calls it: a collective knows then which rank that is.

    Raises:
        MspcError: RuntimeError where `init()` was not called. ValueError where this rank, or one that is named, is not
        in the group.
    """
    if not isinstance(op, Collective) or op.over_mesh:
        return op
    session = state.current()
    if not session.initialized:
        raise MspcError(
            f"{op.name} was called before init()",
            notes=["call mindspore.communication.init() first"],
            kind=RuntimeError,
        )
    # Which rank this is is asked where it matters only: a script that asks is compiled for each rank.
    mistake = op.mistake_in_group()
    if not mistake and len(op.members) < session.size:
        mistake = op.mistake_on(session.rank)
    if mistake:
        notes = ["ranks are numbered as in the job of all ranks; create_group() makes a group of others"]
        raise MspcError(mistake, notes=notes, kind=ValueError)
    return op.on_rank(session.rank) if op.differs_by_rank else op


def meets_others(op: Op) -> bool:
    """Whether other ranks take part in a call outside of a network."""
    return isinstance(op, Collective) and op.communicates and state.current().size > 1


def run_on_ranks(op: Op, types: Sequence[Type], arrays: Sequence[Any]) -> Any:
    """What the kernel of a collective gives on this rank, with the other ranks, which call it too.

    Raises:
        MspcError: they call something else, or with other tensors.
    """
    assert isinstance(op, Collective)
    return call_handler.current().collective(op, types, arrays)
