"""Puts the strategy files of a network's stages together, as MindSpore's ranks write them: each those of its stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.plans.files.strategy_file import Cuts, ParameterCut, StrategyFile, read_strategies


def merged_stages(paths: Sequence[Path]) -> StrategyFile:
    """What the files of all stages say together. A parameter is called by its stage, `1-net.weight`, as there may be
    slices of it in several.

    Raises:
        MspcError: one is no strategy file, or says nothing of operators or of parameters; two of one stage differ.
    """
    first: dict[int, tuple[Path, StrategyFile]] = {}
    for path in paths:
        found = read_strategies(path)
        if not found.operators or not found.parameters:
            raise MspcError(f"The strategy file {shown_path(path)} is empty", kind=ValueError)
        stage = found.stages.get(next(iter(found.operators)), found.stage)
        before, known = first.setdefault(stage, (path, found))
        if known != found:
            raise MspcError(
                f"{shown_path(path)} and {shown_path(before)} are both of stage {stage}, and differ",
                kind=ValueError, notes=["remove the files of an earlier run"],
            )  # fmt: skip
    operators: dict[str, Cuts] = {}
    parameters: dict[str, ParameterCut] = {}
    stages: dict[str, int] = {}
    for stage, (_, found) in sorted(first.items()):
        operators.update(found.operators)
        stages.update(dict.fromkeys(found.operators, stage))
        parameters.update({f"{stage}-{name}": sharding for name, sharding in found.parameters.items()})
    return StrategyFile(operators, parameters, 1, stages)
