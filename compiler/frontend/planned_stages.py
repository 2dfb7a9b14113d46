"""What a plan says of stages, as a network is read: it goes before what the script says, but for the number of
micro-batches, of which the loss is the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mspc.ir.diagnostics import Location, MspcError, did_you_mean
from mspc.ir.graph import Graph

if TYPE_CHECKING:
    from mspc.plans.files.stage_table import StagePlan


class PlannedStages:
    """The plan of one trace, None where there is none. scopes: of the cells that were called. cuts: whether a cell has
    cut the batch."""

    def __init__(self, plan: StagePlan | None) -> None:
        self.plan = plan
        self.scopes: dict[str, None] = {}
        self.cuts = False

    @property
    def tries(self) -> bool:
        """Whether the plan is one that a search tries, which may have more stages than micro-batches."""
        return self.plan is not None and self.plan.tries

    def chunk_of(self, scope: str) -> int | None:
        """The chunk of a cell by its scope; None where the plan says nothing of it."""
        self.scopes[scope] = None
        return None if self.plan is None else self.plan.chunk_of(scope)

    def micro_batches(self, count: int, place: Location | None) -> int:
        """How many micro-batches a cell cuts that says `count`.

        Raises:
            MspcError: the plan has another number of them.
        """
        self.cuts = True
        if self.plan is None:
            return count
        if self.plan.tries:
            return self.plan.micro_batches or count
        if count != self.plan.micro_batches:
            wanted = self.plan.micro_batches
            raise MspcError(
                f"PipelineCell: the plan is for {wanted} micro-batches, and micro_size is {count}",
                place, [f"write micro_size={wanted}: the loss is the sum over micro-batches, and so another one"],
                kind=ValueError,
            )  # fmt: skip
        return count

    def check(self, graph: Graph) -> None:
        """Raises MspcError where the network that was read has not what the plan is for."""
        plan = self.plan
        if plan is None or plan.tries or plan.count == 1:
            return
        trained = next((node for node in graph.nodes if node.phase == "update"), None)
        if trained is not None and not self.cuts:
            raise trained.error(
                f"the plan is for {plan.count} stages and {plan.micro_batches} micro-batches, and there are none",
                [f"wrap the network, before the training step: PipelineCell(network, {plan.micro_batches})"],
                RuntimeError,
            )
        from mspc.ir.text.families import each_of_cells  # late, as only a plan needs it

        known = {name for scope in self.scopes for name in each_of_cells(scope)}
        for name in plan.cells:
            missing = next((each for each in each_of_cells(name) if each not in known), None)
            if missing is not None:
                notes = did_you_mean(missing, known)
                raise MspcError(f"the plan has a stage for {missing}, and there is no such cell", notes=notes)
