"""Describes one row of a search's table: what a plan costs, and remarks on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from mspc.analysis.cost.timeline import MissingRate
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import common_mesh
from mspc.plans.files.plan_file import SUFFIX, PlanFile
from mspc.search.plans.degrees import Degrees

SEARCH, DATA_PARALLEL = "search", "data parallel"


@dataclass(frozen=True)
class Remarks:
    """What a row does not say. keeps_strategies: whether the script gives strategies and the plan has them. same_as:
    the usual plan that this one is, "" where it differs; reason: why, "" where nothing is known of that. made_to_fit:
    what was done to a usual plan for the memory, "" for nothing; otherwise: bytes that it takes without that. alike:
    layers that are one graph, and are sharded alike therefore. degrees: by how many ranks the plan shares what.
    on_host: bytes of the host's memory, beside those of the device's. offload: cells of which what gradients read is
    there by the plan; offload_states: states of optimizers are. missing_rates: what the plan's times take rates of
    another element type for."""

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

    def on_host_as(self, other: Remarks) -> Remarks:
        """The same of a plan that has on the host what another one has."""
        kept = {"on_host": other.on_host, "offload": other.offload, "offload_states": other.offload_states}
        return replace(self, **kept)


@dataclass(frozen=True)
class PlanResult:
    """What a way comes to on the rank that sends the most, `rank`. mesh: that the search was to take. step, compute,
    exposed: seconds of a step, of what it computes and of the communication that nothing hides, estimated. nbytes: sent
    in a step by that rank; mean_nbytes: by all in the mean. least: seconds that no plan's step takes less than. gap:
    the share of a step that another plan could save at most by that, None where it says nothing. search_gap: the same
    of what the search adds up, every operator and collective by itself, among plans of the kind that it looks for;
    None where nothing is proved. memory: bytes at the peak. collectives: how many. taken_from: where the search took
    its plan from, "" for its own. remarks: other facts of it."""

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
    remarks: Remarks = Remarks()

    @property
    def columns(self) -> tuple[float, ...]:
        """The figures of its row in the table."""
        return self.step, self.compute, self.exposed, self.nbytes, self.collectives, self.memory

    @property
    def content(self) -> dict[str, Any]:
        """As `--json` has it."""
        found = asdict(self)
        return found | found.pop("remarks")


class NamedRow(Protocol):
    """A row of another table: with a name, a number of ranks, and the mesh that its layouts were searched for."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    @property
    def mesh(self) -> str: ...


@dataclass(frozen=True)
class UsualPlans:
    """Usual plans that a search may take: they follow what the script says, where that counts. files: what the file of
    each says, by its name."""

    plans: Sequence[PlanResult]
    files: Mapping[str, PlanFile]

    def on(self, mesh: str) -> list[PlanResult]:
        """Those that shard everything over the axes of a mesh; "" means any."""
        axes = tuple(map(int, mesh.split("x"))) if mesh else ()
        return [plan for plan in self.plans if not axes or _lies_on(self.files[plan.name], axes)]


def _lies_on(file: PlanFile, axes: tuple[int, ...]) -> bool:
    layouts = [layout for each in (*file.operators.values(), *file.results.values()) for layout in each]
    return all(common_mesh(axes, layout.mesh) == axes for layout in (*layouts, *file.parameters.values()))


@dataclass(frozen=True)
class Plans:
    """Plans for one number of ranks, the fastest first, and why ways are not among them. files: of every plan by its
    name, what its file says. usual: what another search for as many ranks may take."""

    plans: list[PlanResult]
    refused: list[str]
    files: Mapping[str, PlanFile]
    usual: UsualPlans

    def file_of(self, name: str) -> PlanFile:
        """What the file of a plan says."""
        return self.files[name]


def take_faster(plans: list[PlanResult], files: dict[str, PlanFile], usual: UsualPlans, mesh: str) -> None:
    """Give the search for a mesh the fastest of the usual plans there, where that is faster than its own, or it has
    none: it reckons with every operator and collective by itself, and with gradients that go the way of their values
    back."""
    own = next((i for i, plan in enumerate(plans) if plan.name == SEARCH), None)
    fastest = min(usual.on(mesh), key=lambda plan: plan.step, default=None)
    if fastest is None or (own is not None and fastest.step >= plans[own].step):
        return
    remarks = replace(fastest.remarks, same_as="", reason="")
    taken = replace(fastest, name=SEARCH, mesh=mesh, search_gap=None, taken_from=fastest.name, remarks=remarks)
    plans[slice(0, 0) if own is None else slice(own, own + 1)] = [taken]
    files[SEARCH] = usual.files[fastest.name]


def tell_same(plans: list[PlanResult], files: Mapping[str, PlanFile]) -> None:
    """Note of usual plans that change nothing against data parallel that they do not."""
    base = next((plan for plan in plans if plan.name == DATA_PARALLEL), None)
    for i, plan in enumerate(plans):
        usual = plan.name not in (SEARCH, DATA_PARALLEL) and not plan.remarks.made_to_fit
        same = base and usual and files[plan.name] == files[base.name] and plan.columns == base.columns
        remarks = replace(plan.remarks, same_as=DATA_PARALLEL) if same else replace(plan.remarks, reason="")
        plans[i] = replace(plan, remarks=remarks)


def file_name(plan: PlanResult | NamedRow) -> str:
    """What a plan's file is called in a folder of several."""
    is_searched = plan.name == SEARCH if isinstance(plan, PlanResult) else True
    mesh = f" {plan.mesh}" if plan.mesh and is_searched else ""
    words = re.findall(r"[a-z0-9]+", f"{plan.ranks} {plan.name}{mesh}".lower())
    return f"{'-'.join(words)}{SUFFIX}"
