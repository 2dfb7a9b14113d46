"""What a search in stages is asked for: which numbers of stages, and of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.stages.network import StagedNetwork


@dataclass(frozen=True)
class AskedStages:
    """stages: their numbers, () for all that divide the ranks and have a unit and a micro-batch each. micro_batches:
    () for the script's. top: rows that are shown. mesh: of the ranks of one stage, as "8x4"; "" for any."""

    stages: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()
    top: int = 5
    mesh: str = ""

    def wants(self, stages: int, ranks: int) -> bool:
        """Whether a number of stages of so many ranks in all is asked for."""
        return (not self.stages or stages in self.stages) and self.fits(stages, ranks)

    def fits(self, stages: int, ranks: int) -> bool:
        """Whether the ranks of one of so many stages are those of the mesh."""
        return not self.mesh or stages * size_of_mesh(self.mesh) == ranks

    def numbers(self, network: StagedNetwork) -> tuple[list[int], list[int]]:
        """(numbers of stages, of micro-batches) for a network. Raises MspcError where some are not possible."""
        ranks, units = network.config.ranks, len(network.units)
        counts = list(self.micro_batches or [network.micro_batches])
        _check_rows(network, counts, bool(self.micro_batches))
        if not self.stages:
            most = min(units, max(counts), ranks)
            found = [s for s in range(1, most + 1) if ranks % s == 0 and self.fits(s, ranks)]
            if not found:
                raise self.no_fit(ranks, f"up to {most}")
            return found, counts
        found = [stages for stages in self.stages if self.fits(stages, ranks)]
        if not found:
            raise self.no_fit(ranks, _listed(self.stages))
        for stages in found:
            check_divides(stages, ranks)
            if stages > units:
                raise MspcError(
                    f"--stages {stages} is more than the network has units, which are {units}",
                    notes=[f"a stage has a cell at least; the first is {network.units[0].cells[0]}"], kind=ValueError,
                )  # fmt: skip
            if min(found) > max(counts):
                raise MspcError(
                    f"--stages {stages} is more than there are micro-batches, which are {max(counts)}",
                    notes=[f"such stages would never all work: give --micro-batches {stages} or more"], kind=ValueError,
                )  # fmt: skip
        return found, counts

    def no_fit(self, ranks: int, stages: str) -> MspcError:
        """No number of stages leaves each as many ranks as the mesh has."""
        size = size_of_mesh(self.mesh)
        whole, rest = divmod(ranks, size)
        legal = f"{ranks} ranks are {whole} stages of so many" if not rest else f"{size} does not divide {ranks} ranks"
        return MspcError(
            f"--mesh {self.mesh} is of the {size} ranks of one stage, and --stages is {stages} of {ranks} ranks",
            notes=[legal], kind=ValueError,
        )  # fmt: skip


def check_divides(stages: int, ranks: int) -> None:
    """Raises MspcError where so many stages have no equal numbers of ranks."""
    if ranks % stages:
        legal = _listed([s for s in range(1, ranks + 1) if ranks % s == 0])
        raise MspcError(
            f"--stages {stages} does not divide {ranks} ranks: every stage has as many as the others",
            notes=[f"{ranks} ranks can be in {legal} stages"], kind=ValueError,
        )  # fmt: skip


def size_of_mesh(mesh: str) -> int:
    """The ranks of "8x4"."""
    return math.prod(map(int, mesh.split("x")))


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
