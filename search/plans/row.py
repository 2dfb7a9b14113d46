"""One row of the table of a search: the costs of a plan and facts about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Protocol

from mspc.analysis.cost.timeline import MissingRate
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import common_mesh
from mspc.plans.files.plan_file import SUFFIX, PlanFile
from mspc.search.plans.degrees import Degrees

SEARCH, DATA_PARALLEL = "search", "data parallel"


@dataclass(frozen=True)
class PlanResult:
    """Costs of a plan on `rank`, the rank that sends the most. mesh: required of the search. step, compute, exposed:
    estimated seconds of a step, of its computation, and of communication that does not overlap with computation.
    nbytes: sent by that rank in a step. mean_nbytes: the mean over all ranks. least: lower bound of any plan's step in
    seconds. gap: the largest share of a step that another plan could save by that bound, None if the bound is trivial.
    search_gap: the same for the cost in the search, which adds up operators and collectives, among the plans that it
    searches; None if nothing is proven. memory: bytes at the peak. collectives: their number. taken_from: origin of the
    plan if it is not the search's own, else "". keeps_strategies: the plan has the strategies of the script. same_as:
    the usual plan that equals this one, or "". reason: why they are equal, "" if unknown. made_to_fit: measures that
    lower the memory of a usual plan, or "". otherwise: its bytes without them. alike: number of layers folded into one
    graph and sharded equally. degrees: of parallelism. on_host: bytes of host memory. offload: cells whose values saved
    for gradients are offloaded. offload_states: optimizer states are offloaded. missing_rates: rates replaced by those
    of another element type."""

    name: str
    ranks: int
    mesh: str
    step: float
    compute: float
    exposed: float
    nbytes: float
    mean_nbytes: float
    rank: int
    least: float
    gap: float | None
    memory: int
    collectives: int
    search_gap: float | None = None
    recompute: tuple[str, ...] = ()
    cut_further: int = 0
    gathered_again: int = 0
    foreseen: int | None = None
    taken_from: str = ""
    keeps_strategies: bool = False
    same_as: str = ""
    reason: str = ""
    made_to_fit: str = ""
    otherwise: int = 0
    alike: int = 0
    degrees: Degrees = Degrees()
    on_host: int = 0
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    missing_rates: tuple[MissingRate, ...] = ()

    @property
    def columns(self) -> tuple[float, ...]:
        """Figures of its row in the table."""
        return self.step, self.compute, self.exposed, self.nbytes, self.collectives, self.memory

    @property
    def content(self) -> dict[str, Any]:
        """Content for `--json`."""
        return asdict(self)


class NamedRow(Protocol):
    """Row of another table, with a name, a number of ranks, and the mesh of its layouts."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    @property
    def mesh(self) -> str: ...


@dataclass(frozen=True)
class UsualPlans:
    """Usual plans that a search may adopt; plans without the script's strategies only if those may be ignored. files:
    plan files by name."""

    plans: Sequence[PlanResult]
    files: Mapping[str, PlanFile]

    def on(self, mesh: str) -> list[PlanResult]:
        """Return the plans that shard only over the axes of a mesh; "" for any mesh."""
        axes = tuple(map(int, mesh.split("x"))) if mesh else ()


        def fits(file: PlanFile) -> bool:
            layouts = chain(*file.operators.values(), *file.results.values(), file.parameters.values())
            return all(common_mesh(axes, layout.mesh) == axes for layout in layouts)

        return [plan for plan in self.plans if not axes or fits(self.files[plan.name])]


@dataclass(frozen=True)
class Plans:
    """Plans for one number of ranks, fastest first, and the reasons for missing ways. files: plan files by name. usual:
    plans that another search on as many ranks may adopt."""

    plans: list[PlanResult]
    refused: list[str]
    files: Mapping[str, PlanFile]
    usual: UsualPlans

    def file_of(self, name: str) -> PlanFile:
        """Return the plan file of a plan."""
        return self.files[name]


def adopt_faster(plans: list[PlanResult], files: dict[str, PlanFile], usual: UsualPlans, mesh: str) -> None:
    """Replace the search's plan for a mesh by the fastest usual plan on that mesh, if that is faster or the search has
    none. The search can miss it, because it adds up operators and collectives, and assumes that gradients are
    redistributed like their values."""
    own = next((i for i, plan in enumerate(plans) if plan.name == SEARCH), None)
    fastest = min(usual.on(mesh), key=lambda plan: plan.step, default=None)
    if fastest is None or (own is not None and fastest.step >= plans[own].step):
        return
    taken = replace(fastest, name=SEARCH, mesh=mesh, search_gap=None, taken_from=fastest.name, same_as="", reason="")
    plans[slice(0, 0) if own is None else slice(own, own + 1)] = [taken]
    files[SEARCH] = usual.files[fastest.name]


def mark_equal_plans(plans: list[PlanResult], files: Mapping[str, PlanFile]) -> None:
    """Record which usual plans equal data parallel, and remove the reason from the remarks of all others."""
    base = next((plan for plan in plans if plan.name == DATA_PARALLEL), None)
    for i, plan in enumerate(plans):
        usual = plan.name not in (SEARCH, DATA_PARALLEL) and not plan.made_to_fit
        same = base and usual and files[plan.name] == files[base.name] and plan.columns == base.columns
        plans[i] = replace(plan, same_as=DATA_PARALLEL) if same else replace(plan, reason="")


def file_name(plan: PlanResult | NamedRow) -> str:
    """Return the file name of a plan in a folder of several."""
    is_searched = plan.name == SEARCH if isinstance(plan, PlanResult) else True
    mesh = f" {plan.mesh}" if plan.mesh and is_searched else ""
    words = re.findall(r"[a-z0-9]+", f"{plan.ranks} {plan.name}{mesh}".lower())
    return f"{'-'.join(words)}{SUFFIX}"
