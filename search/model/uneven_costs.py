"""Counts what ranks do inside of an operator beside even shares: what the busiest one computes more, exchanges that
follow one another, and what goes between hosts. Where bytes alone count it is nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.passes.lib.plan_header import OPERATIONS, Terms
from mspc.search.model.distances import Hosts

HALF = 2
"""Bytes of an element for which products have a rate of their own."""


@dataclass(frozen=True)
class UnevenCosts:
    """What is reckoned with. hosts: None where all ranks are of one."""

    terms: Terms
    hosts: Hosts | None

    def of(self, op: Op, types: Sequence[TensorType], layouts: Sequence[Layout], nbytes: float) -> float:
        """Of an operator, as bytes sent. nbytes: what is sent inside of it, which counts elsewhere at the price of
        bytes within a host."""
        work = op.uneven(types, layouts)
        rate = self.terms.compute_half if types[0].dtype.itemsize == HALF else self.terms.compute
        found = work.operations / OPERATIONS * rate + work.rounds * self.terms.latency
        if work.axes and self.hosts is not None:
            found += nbytes * (self.hosts.pairs(work.mesh, work.axes) - 1)
        return found
