"""Keeps the stages that a script gives its cells: only the order of their work is chosen then."""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE
from mspc.ir.text.families import each_of_cells
from mspc.ops.control.regions import body_of
from mspc.passes.lib.stage_placement import micro_batch_loop
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.problem import IN_ROUNDS, ONE_CHUNK, Borders, Way
from mspc.search.stages.units import scope_of_node


def kept_borders(network: StagedNetwork, stages: int) -> Borders | None:
    """The borders between chunks by the stages of cells; None where the script gives no cell one.

    Raises:
        MspcError: a unit has cells of several stages, or a stage has none.
    """
    loop = micro_batch_loop(network.traced(None, stages).traced.graph)
    assert loop is not None
    given: dict[str, int] = {}
    for node in body_of(loop).nodes:
        if node.phase == "forward" and STAGE in node.attrs:
            for scope in each_of_cells(scope_of_node(node)):
                given.setdefault(scope, int(node.attrs[STAGE]))
    if not given:
        return None
    found: list[int] = []
    for unit in network.units:
        own = {stage for scope, stage in given.items() for cell in unit.cells if f"{scope}/".startswith(f"{cell}/")}
        if len(own) > 1:
            raise MspcError(
                f"the cells of {unit.cells[0]} are of stages {', '.join(map(str, sorted(own)))}, and between them many "
                "values pass", notes=["--free searches without the stages of the script"],
            )  # fmt: skip
        found.append(own.pop() if own else found[-1] if found else 0)
    edges = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    runs = [found[i] for i in (0, *edges)]
    if runs != [chunk % stages for chunk in range(len(runs))] or len(runs) % stages:
        raise MspcError(
            f"cells in a row are of stages {', '.join(map(str, runs))}, which the search does not keep for {stages}",
            notes=["it keeps stages in a row, and rounds of them; --free searches without the script's"],
            kind=ValueError,
        )  # fmt: skip
    return tuple(edges)


def kept_ways(
    stages: int, micro_batches: int, borders: Borders, tensor: int = 0, slices: bool = False, again: bool = False,
    states: bool = False,
) -> list[Way]:  # fmt: skip
    """The ways to run chunks as the script has them: in rounds where it has several of each stage."""
    chunks = len(borders) + 1
    if chunks == stages:
        found = [Way(stages, name, micro_batches, 1, tensor, slices, again, states) for name in ONE_CHUNK]
        return [way for way in found if not (again and way.is_apart)]
    return [Way(stages, IN_ROUNDS, micro_batches, chunks // stages, tensor, slices, again, states)]
