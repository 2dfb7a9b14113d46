"""One row of a search's table: the costs of a plan, and facts about it."""

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
    """Costs of a plan on `rank`, the rank that sends the most. mesh: the one required of the search. step, compute,
    exposed: estimated seconds of a step, of its computation and of the communication that nothing hides. nbytes:
    sent in a step by that rank. mean_nbytes: sent on average over all ranks. least: lower bound of any plan's step,
    in seconds. gap: the largest share of a step that another plan could save by that bound, None if it says nothing.
    search_gap: the same for the cost in the search, which adds up every operator and collective by itself, among
    plans of the kind that it searches; None if nothing is proven. memory: bytes at the peak. collectives: their
    number. taken_from: the origin of the search's plan, "" for its own. keeps_strategies: the script gives strategies
    and the plan has them. same_as: the usual plan that this one equals, "" if there is none. reason: why it equals
    that plan, "" if unknown. made_to_fit: measures that lower the memory of a usual plan, "" for none. otherwise: its
    bytes without these. alike: number of layers that are one graph, and are therefore sharded equally. degrees: of the
    plan's parallelism. on_host: bytes of the host's memory, besides those of the device's. offload: cells of which the
    plan moves values that gradients read to the host. offload_states: optimizer states are on the host. missing_rates:
    rates that the plan's times take from another element type."""

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
    """Row of another table: with a name, a number of ranks, and the mesh for which its layouts were searched."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    @property
    def mesh(self) -> str: ...


@dataclass(frozen=True)
class UsualPlans:
    """Usual plans that a search may take; those without the script's strategies are included only if these do not
    count. files: plan files by name."""

    plans: Sequence[PlanResult]
    files: Mapping[str, PlanFile]

    def on(self, mesh: str) -> list[PlanResult]:
        """Return those that shard everything over the axes of a mesh; "" means any."""
        axes = tuple(map(int, mesh.split("x"))) if mesh else ()


        def fits(file: PlanFile) -> bool:
            layouts = chain(*file.operators.values(), *file.results.values(), file.parameters.values())
            return all(common_mesh(axes, layout.mesh) == axes for layout in layouts)

        return [plan for plan in self.plans if not axes or fits(self.files[plan.name])]


@dataclass(frozen=True)
class Plans:
    """Plans for one number of ranks, the fastest first, and the reasons for missing ways. files: plan files by name.
    usual: plans that another search for as many ranks may take."""

    plans: list[PlanResult]
    refused: list[str]
    files: Mapping[str, PlanFile]
    usual: UsualPlans

    def file_of(self, name: str) -> PlanFile:
        """Return the plan file of a plan."""
        return self.files[name]


def take_faster(plans: list[PlanResult], files: dict[str, PlanFile], usual: UsualPlans, mesh: str) -> None:
    """Give the search for a mesh the fastest of the usual plans on that mesh if it is faster than the search's own,
    or there is no own plan. The search can miss it: it counts every operator and collective by itself, and assumes
    that gradients go back the way of their values."""
    own = next((i for i, plan in enumerate(plans) if plan.name == SEARCH), None)
    fastest = min(usual.on(mesh), key=lambda plan: plan.step, default=None)
    if fastest is None or (own is not None and fastest.step >= plans[own].step):
        return
    taken = replace(
        fastest, name=SEARCH, mesh=mesh, search_gap=None, taken_from=fastest.name, same_as="", reason=""
    )
    plans[slice(0, 0) if own is None else slice(own, own + 1)] = [taken]
    files[SEARCH] = usual.files[fastest.name]


def tell_same(plans: list[PlanResult], files: Mapping[str, PlanFile]) -> None:
    """Note which usual plans are equal to data parallel, and remove the reason from the remarks of all others."""
    base = next((plan for plan in plans if plan.name == DATA_PARALLEL), None)
    for i, plan in enumerate(plans):
        usual = plan.name not in (SEARCH, DATA_PARALLEL) and not plan.made_to_fit
        same = base and usual and files[plan.name] == files[base.name] and plan.columns == base.columns
        plans[i] = replace(plan, same_as=DATA_PARALLEL) if same else replace(plan, reason="")


def file_name(plan: PlanResult | NamedRow) -> str:
    """Return the name of a plan's file in a folder of several."""
    is_searched = plan.name == SEARCH if isinstance(plan, PlanResult) else True
    mesh = f" {plan.mesh}" if plan.mesh and is_searched else ""
    words = re.findall(r"[a-z0-9]+", f"{plan.ranks} {plan.name}{mesh}".lower())
    return f"{'-'.join(words)}{SUFFIX}"
