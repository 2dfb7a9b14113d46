"""`mspc verify --scale` runs every rank's own program at small sizes, all ranks at once, and holds it to one device."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions, find_call
from mspc.commands.options import is_imported
from mspc.commands.report.scale import report_scale
from mspc.commands.report.table import check_json
from mspc.commands.verify import compiled_with_numbers, with_global_types
from mspc.commands.verify_folder import checked_program, graphs_of_ranks, network_alone, ranks_together
from mspc.compiler.config import Config
from mspc.compiler.shared_graphs import read_network
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.output.first_values import first_values
from mspc.runtime.program import PROGRAM, Program, load_slices
from mspc.verify.scale.kinds import RankKind, kinds_of, merged
from mspc.verify.scale.proof import ScaleProof, prove
from mspc.verify.scale.small_programs import Unfit


def verify_scale(target: str, options: CompileOptions, seed: int) -> None:
    """Compare, print what was compared and the verdict, fail where anything differs.

    Args:
        target: as of `mspc compile`, or the folder that it wrote.

    Raises:
        MspcError: the program cannot be compiled or read, or not be run at sizes that fit on this machine.
        ExecutionError: a value differs, or ranks wait for each other.
    """
    check_json(options.json)
    begin = time.perf_counter()
    if os.path.isdir(target) and not is_imported(Path(target)):
        one, kinds, values, notes = _of_folder(Path(target), options)
    else:
        one, kinds, values = _of_script(target, options)
        notes = []
    try:
        found = prove(one, kinds, values, seed)
    except Unfit as error:
        raise MspcError(f"the program cannot be made smaller: {error.reason}") from None
    report_scale(found, options.json, options.loudness, seed, time.perf_counter() - begin, notes)


def proof_of_script(target: str, options: CompileOptions, seed: int) -> ScaleProof:
    """What is found of a script, or an imported network. Raises MspcError and Unfit."""
    return prove(*_of_script(target, options), seed)


def _of_script(target: str, options: CompileOptions) -> tuple[Graph, list[RankKind], Sequence[Any]]:
    found = find_call(target, options)
    config = Config.from_context(found.captured.context, found.ranks, str(Path(found.captured.script).parent))
    if config.mode == "hybrid_parallel" or config.feeds_own_rows:
        raise MspcError(
            f"in {config.mode} mode, or where ranks feed rows of their own, there is no step of one device on the "
            "whole batch to compare with",
            notes=["mspc verify without --scale compares such a network at its own sizes"],
        )
    many = compiled_with_numbers(found.captured, config, options.loudness.on_pass())[0]
    given = with_global_types(found.captured, [f.global_type for f in many.fed])
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.ranks * config.sharded)
    one = compiled_with_numbers(given, alone)[0]
    kinds = kinds_of(many.rank_graphs, range(config.all_ranks))
    for kind in kinds:
        give_layouts(kind.graph, many.graph)
    return one.graph, kinds, first_values(one)


def give_layouts(graph: Graph, many: Graph) -> None:
    """Let results of a rank say how ranks hold them, as the graph of all ranks says."""
    for value, whole in zip(graph.results, many.results, strict=False):
        if value.layout is None and not isinstance(value, Parameter):
            value.layout = whole.layout


def _of_folder(folder: Path, options: CompileOptions) -> tuple[Graph, list[RankKind], Sequence[Any], list[str]]:
    program: Program = checked_program(folder, options)
    network = read_network(program.network, str(program.folder / PROGRAM))
    held = ranks_together(program, network)
    one, _ = network_alone(network)
    graphs, edited = graphs_of_ranks(program)
    for graph in graphs:
        give_layouts(graph, held)
    kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
    arrays = load_slices(program, one, 0)
    values = [Stored(name, array) for name, array in arrays.items()]
    return one, kinds, values, [f"edited since the compile: {', '.join(edited)}"] if edited else []


class Stored:
    """A first value that a folder has."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self._array = name, array

    def make(self) -> Any:
        """The array."""
        return self._array

