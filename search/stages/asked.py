"""What a search in stages is asked for: which numbers of stages, and of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.stages.network import StagedNetwork


@dataclass(frozen=True)
class AskedStages:
    """stages: their numbers, () for all that divide the ranks and have a unit and a micro-batch each. micro_batches:
    () for the script's. top: rows that are shown."""

    stages: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()
    top: int = 5

    def wants(self, stages: int) -> bool:
        """Whether a number of stages is asked for."""
        return not self.stages or stages in self.stages

    def numbers(self, network: StagedNetwork) -> tuple[list[int], list[int]]:
        """(numbers of stages, of micro-batches) for a network. Raises MspcError where some are not possible."""
        ranks, units = network.config.ranks, len(network.units)
        counts = list(self.micro_batches or [network.micro_batches])
        _check_rows(network, counts, bool(self.micro_batches))
        if not self.stages:
            most = min(units, max(counts), ranks)
            return [s for s in range(1, most + 1) if ranks % s == 0], counts
        for stages in self.stages:
            if ranks % stages:
                legal = _listed([s for s in range(1, ranks + 1) if ranks % s == 0])
                raise MspcError(
                    f"--stages {stages} does not divide {ranks} ranks: every stage has as many as the others",
                    notes=[f"{ranks} ranks can be in {legal} stages"], kind=ValueError,
                )  # fmt: skip
            if stages > units:
                raise MspcError(
                    f"--stages {stages} is more than the network has units, which are {units}",
                    notes=[f"a stage has a cell at least; the first is {network.units[0].cells[0]}"], kind=ValueError,
                )  # fmt: skip
            if min(self.stages) > max(counts):
                raise MspcError(
                    f"--stages {stages} is more than there are micro-batches, which are {max(counts)}",
                    notes=[f"such stages would never all work: give --micro-batches {stages} or more"], kind=ValueError,
                )  # fmt: skip
        return list(self.stages), counts


def _check_rows(network: StagedNetwork, counts: Sequence[int], are_given: bool) -> None:
    rows = network.rows
    for count in counts if rows and are_given else ():
        if rows % count:
            legal = [each for each in range(1, min(rows, 4 * max(counts)) + 1) if rows % each == 0]
            raise MspcError(
                f"--micro-batches {count} does not divide the {rows} rows of the batch",
                notes=[f"they can be cut into {_listed(legal)}"], kind=ValueError,
            )  # fmt: skip


def _listed(numbers: Sequence[int]) -> str:
    shown = [*map(str, numbers[:12])] + ["..."] * (len(numbers) > 12)
    return ", ".join(shown)
