"""This module finds where a NaN or an infinity in the loss comes from.

The losses are looked at once they are known, before the first update. When one is not finite the nodes
so far run again, one by one, and their results are looked at: the parameters are still those that the
step began with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.runtime.comm.control_flow import collectives_of
from mspc.runtime.faults.failure import NodeFailure, StoppedByOther
from mspc.runtime.plan import ExecutionPlan

NOWHERE = np.iinfo(np.int64).max


class NonFiniteSearch(Protocol):
    """The part of an executor that the search uses; `search` is (what held such a value before the step or "", index of
    the first node that makes one or `NOWHERE`)."""

    graph: Graph
    rank: int
    step: int

    @property
    def boundary(self) -> int:
        """Index of the first node that updates a parameter."""
        ...

    @property
    def comm(self) -> Any:
        """A communicator of arrays on the host."""
        ...

    def search(self) -> tuple[str, int]: ...


class Stepping(NonFiniteSearch, Protocol):
    """The same part of an executor that holds its values in slots and runs node by node."""

    plan: ExecutionPlan
    slots: list[Any]

    def slot_value(self, value: Value) -> Any: ...


def check_finite(executor: Stepping, losses: Sequence[Value], updated: bool = False) -> None:
    """Look at the losses of the running step; `updated`: parameters have changed since they were computed.

    Raises:
        ExecutionError: one is a NaN or an infinity; the message names step, rank and the first node that
        made one.
    """
    for loss in losses:
        value = executor.slot_value(loss)
        if not math.isfinite(value if np.ndim(value) == 0 else np.asarray(value).flat[0]):
            raise explained(executor, loss, float(np.asarray(value).flat[0]), updated)


def explained(executor: NonFiniteSearch, loss: Value, value: float, updated: bool) -> ExecutionError:
    """The error of a loss that is not finite; `updated`: parameters have changed since it was computed."""
    comm = executor.comm
    together = _communicates(executor)
    if updated or (together and comm.size > 1 and not _same_on_all_ranks(executor, loss)):
        # The other ranks may have a finite loss and would not take part in running collectives again.
        index = executor.graph.nodes.index(loss) if isinstance(loss, Node) else -1
        return _error(executor, value, index, "")
    what, index = executor.search()
    if together and comm.size > 1:
        ranks = tuple(range(comm.size))
        found = comm.all_gather(np.array([-1 if what else index], dtype=np.int64), ranks, 0)
        owner = int(np.argmin(found))
        if owner != comm.rank:
            return StoppedByOther(f"step {executor.step}: the loss is {value}; rank {owner} reports it")
    return _error(executor, value, index, what)


def _error(executor: NonFiniteSearch, value: float, index: int, what: str) -> ExecutionError:
    message = f"the loss of step {executor.step} is {_text(value)} on rank {executor.rank}"
    nodes = executor.graph.nodes
    message = f"{message}; {what}" if what else message
    if not 0 <= index < len(nodes):
        return ExecutionError(message)
    node = nodes[index]
    operands = ", ".join(str(operand.type) for operand in node.inputs)
    return NodeFailure(
        f"{message}; the first {'to read it is' if what else 'such value comes from'} {node.label}",
        [f"its operands are ({operands}), its result {node.type}"],
        node.frames,
        index,
    )


def search(executor: Stepping) -> tuple[str, int]:
    """("", index of the first node that makes a value that is not finite) or the same with what held one
    before the step."""
    held = ""
    for parameter in executor.graph.parameters:
        if not held and not _finite(executor.slot_value(parameter)):
            kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
            held = f"{kind} {parameter.name!r} held such a value before the step"
    first = NOWHERE
    slots = executor.slots
    for index, kernel, one, two, operands, out, frees in executor.plan.before_update:
        # Every step runs to the end, so that all ranks meet in the same collectives.
        if operands is None:
            operands = (one,) if two < 0 else (one, two)
        slots[out] = kernel(*[slots[i] for i in operands])
        if first == NOWHERE and not _finite(slots[out]):
            first = index
        for slot in frees or ():
            slots[slot] = None
    return held, int(first)


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(element) for element in value)
    array = np.asarray(value)
    return array.dtype.kind not in "fV" or bool(np.isfinite(array).all())


def _communicates(executor: NonFiniteSearch) -> bool:
    return any(collectives_of(executor.graph.nodes[: executor.boundary]))


def _same_on_all_ranks(executor: NonFiniteSearch, loss: Value) -> bool:
    """In the modes that shard operators a step's loss is the global batch's; elsewhere a rank's own."""
    if isinstance(loss.layout, Layout):
        return loss.layout.is_replicated
    return executor.graph.attrs.get("mode") in ("semi_auto_parallel", "auto_parallel")


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else "an infinity"
