"""One row of a search's table: what a plan comes to, and what is to be said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Remarks:
    """What a row does not say. keeps_strategies: whether the script gives strategies and the plan has them. same_as:
    the usual plan that this one is, "" where it differs; reason: why, "" where nothing is known of that. made_to_fit:
    what was done to a usual plan for the memory, "" for nothing; otherwise: bytes that it takes without that."""

    keeps_strategies: bool = False
    same_as: str = ""
    reason: str = ""
    made_to_fit: str = ""
    otherwise: int = 0


@dataclass(frozen=True)
class Plan:
    """What a way comes to on the rank that sends the most, `rank`. mesh: that the search was asked for. step, compute,
    exposed: seconds of a step, of what it computes and of the communication that nothing hides, estimated. nbytes: sent
    in a step by that rank; mean_nbytes: by all in the mean. least: seconds that no plan's step takes less than. gap:
    the share of a step that another plan could save at most by that, None where it says nothing. search_gap: the same
    of what the search adds up, every operator and collective by itself, among plans of the kind that it looks for;
    None where nothing is proved. memory: bytes at the peak. collectives: how many. taken_from: where the search took
    its plan from, "" for its own. remarks: what else is to be said of it."""

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
