"""This module declares the options of `mspc search`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import search_options as searching
from mspc.commands.options import (
    Accumulated,
    FromTorch,
    Inputs,
    JsonFile,
    LayerStyles,
    LossName,
    OptimizerText,
    PrecisionName,
    Quiet,
    ScriptArguments,
    Sizes,
    Target,
    import_options,
)


def search(
    target: Target,
    script_arguments: ScriptArguments = None,
    ranks: searching.SeveralRanks = None,
    machine: searching.MachineName = "",
    device: searching.ProgramDevice = searching.DeviceOption.AUTO,
    memory: searching.MemorySize = None,
    mesh: searching.Meshes = None,
    stages: searching.SeveralStages = None,
    micro_batches: searching.SeveralMicroBatches = None,
    time_limit: searching.TimeLimit = 0,
    explain: searching.Explained = "",
    compare: searching.TwoPlans = None,
    free: Annotated[bool, typer.Option("--free", help="Leave out the strategies that the script gives.")] = False,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Plans in the table for each number of ranks.")] = 5,
    summary: Annotated[
        bool, typer.Option("--summary", help="Say the best plan, and the best usual one, as DP x TP x PP x CP x EP.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan that was found (TOML), to edit and to compile.")
    ] = None,
    input_: Inputs = None,
    size: Sizes = None,
    loss: LossName = "",
    optimizer: OptimizerText = "",
    precision: PrecisionName = "",
    accumulate: Accumulated = 1,
    plan: LayerStyles = "",
    torch: FromTorch = False,
    json: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Look for the layouts of all operators at once, and set the plan beside the usual ones."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness
    from mspc.commands.search import (
        SearchOptions,
        memory_of,
        meshes_of,
        micro_batches_of,
        ranks_of,
        search_target,
        stages_of,
    )

    common = CompileOptions(
        inputs=tuple(input_ or ()), json=json, script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(False, quiet),
        imported=import_options(loss, optimizer, size, torch, precision, accumulate, plan=plan),
    )  # fmt: skip
    options = SearchOptions(
        common, ranks_of(ranks), top, free, machine, memory_of(memory), meshes_of(mesh), time_limit,
        explain, compare, out, None if stages is None else stages_of(stages), micro_batches_of(micro_batches),
        summary, "" if device == searching.DeviceOption.AUTO else device.upper(),
    )  # fmt: skip
    search_target(target, options)
