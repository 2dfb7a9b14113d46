"""`mspc verify --scale` runs the programs of all ranks together at small sizes and compares them with one device."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.explain import place_in_dump
from mspc.commands.options import is_capture, is_imported
from mspc.commands.report.scale import report_scale, told_nodes
from mspc.commands.report.tables import check_json
from mspc.commands.search import check_fit
from mspc.commands.verify import (
    compiled_call,
    global_batch,
    reference_of,
    traced,
    with_global_types,
)
from mspc.commands.verify_folder import (
    checked_program,
    fed_layouts,
    graphs_of_ranks,
    has_dumps,
    ranks_together,
    verify_dumps,
)
from mspc.compiler.config import Config
from mspc.compiler.in_memory import read_network
from mspc.engine.script import forget_script
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.output.dumps import first_values
from mspc.runtime.available_memory import room_for
from mspc.runtime.program import PROGRAM, Program, slices_to_load
from mspc.verify.plain_network import plain_network
from mspc.verify.scale.proof import ScaleProof, prove
from mspc.verify.scale.rank_kinds import RankKind, kinds_of, merged
from mspc.verify.scale.reference import OwnRows
from mspc.verify.scale.small_programs import Unfit

FEW_FILES = 3
"""Most edited files that are listed."""


@dataclass(frozen=True)
class ToProve:
    """Programs that are compared with one device; see `prove`. notes: for the user. compile_id: of a folder. program:
    the folder's. results: (kind, name) of each result of a capture. batch: see `prove`."""

    one: Graph
    kinds: list[RankKind]
    values: Sequence[Any]
    own: OwnRows | None = None
    notes: tuple[str, ...] = ()
    compile_id: str = ""
    program: Program | None = None
    results: Sequence[tuple[str, str]] = ()
    batch: Sequence[tuple[int, ...]] = ()

    def places(self, found: ScaleProof) -> tuple[str, ...]:
        """Return sentences with the positions of the reported nodes in a folder's files; () for a script."""
        if self.program is None:
            return ()
        places = (place_in_dump(self.program, rank, kind.graph, node) for rank, kind, node in told_nodes(found))
        return tuple(f"it stands in {place}" for place in dict.fromkeys(places) if place)

    def proved(self, seed: int) -> ScaleProof:
        """Return the result of the comparison. Raise Unfit if the program cannot be made smaller."""
        found = prove(self.one, self.kinds, self.values, seed, self.own, self.batch)
        for place, row in enumerate(found.rows if self.results else ()):
            if row.what == "result":
                what, name = self.results[int(row.name)]
                found.rows[place] = replace(row, what=what, name=name)
        return found


def verify_scale(target: str, options: CompileOptions, seed: int, against: Path | None = None) -> None:
    """Compare, print the compared values and the verdict, and fail if anything differs.

    Args:
        target: as for `mspc compile`, the folder that it wrote, or a folder of MindSpore's dumps.
        against: the capture of one device, if the target is a capture.

    Raises:
        MspcError: the program cannot be compiled or read, or it cannot be run at sizes that fit on this machine.
        ExecutionError: a value differs, or ranks wait for each other.
    """
    check_json(options.json)
    begin = time.perf_counter()
    is_folder = os.path.isdir(target) and not is_imported(Path(target))
    if is_folder and has_dumps(Path(target)):
        verify_dumps(Path(target), options.json)
        return
    if is_capture(Path(target)):
        from mspc.commands.verify_capture import programs_of_captures  # late: few commands read captures

        if against is None:
            notes = ["mspc capture script.py --ranks 1 --out DIR records one device, and --against DIR names it"]
            raise MspcError(f"{target} is a capture, and says nothing of one device", notes=notes)
        made = programs_of_captures(Path(target), against)
        given = ToProve(made.one, made.kinds, made.values, results=made.results, batch=made.batch)
    elif against is not None:
        raise MspcError(f"--against {against} is for a capture, and {target} is none")
    else:
        given = of_folder(Path(target), options) if is_folder else of_script(target, options)
    gc.collect()
    try:
        with room_for("what ranks hold at small sizes"):
            found = given.proved(seed)
    except Unfit as error:
        raise MspcError(f"the program cannot be made smaller: {error.reason}") from None
    seconds = time.perf_counter() - begin
    notes = (*given.places(found), *given.notes)
    report_scale(found, options.json, options.loudness, seed, seconds, notes, given.compile_id)


def of_script(target: str, options: CompileOptions) -> ToProve:
    """Return the programs of a script or of an imported network. Raise MspcError if they cannot be compiled."""
    found, many = compiled_call(target, options)
    config = many.config
    rows = config.feeds_own_rows
    given = with_global_types(found.captured, [f.graph_type if rows else f.global_type for f in many.fed])
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.ranks * config.sharded)
    call = traced(given, alone)
    one = reference_of(given, call, own_weights=False)
    kinds = kinds_of(many.rank_graphs, range(config.all_ranks))
    own = None
    if rows:
        batch = global_batch(found.captured, one, [f.global_type for f in many.fed], alone)
        own = OwnRows(config.ranks, tuple(f.layout for f in many.fed), config.gradients_mean, batch.graph)
    else:
        for kind in kinds:
            give_layouts(kind.graph, many.graph)
    values = first_values(call.traced, one.graph)
    forget_script(found.captured.script)
    return ToProve(one.graph, kinds, values, own)


def give_layouts(graph: Graph, many: Graph) -> None:
    """Copy missing layouts of a rank's results from the graph of all ranks."""
    for value, whole in zip(graph.results, many.results, strict=False):
        if value.layout is None and not isinstance(value, Parameter):
            value.layout = whole.layout


def of_folder(folder: Path, options: CompileOptions) -> ToProve:
    """Return the programs of a folder that `mspc compile` wrote, edited by hand or not."""
    program: Program = checked_program(folder, options)
    network = read_network(program.network, str(program.folder / PROGRAM))
    mean = bool(network.attrs.get("gradients_mean"))
    held = ranks_together(program, network)
    one, _ = plain_network(network)
    graphs, edited = graphs_of_ranks(program)
    own = None
    rows = Config(ranks=program.ranks, mode=program.mode).feeds_own_rows
    check_fit(program, one, graphs, fed_layouts(program) if rows else ())
    if rows:
        own = OwnRows(program.ranks, fed_layouts(program), mean)
    else:
        for graph in graphs:
            give_layouts(graph, held)
    kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
    values = [StoredFirstValue(name, load) for name, load in slices_to_load(program, one, 0).items()]
    more = f" and {len(edited) - FEW_FILES} more" * (len(edited) > FEW_FILES)
    notes = [f"edited since the compile: {', '.join(edited[:FEW_FILES])}{more}"] if edited else []
    return ToProve(one, kinds, values, own, tuple(notes), program.compile_id, program)


@dataclass(frozen=True)
class StoredFirstValue:
    """A first value stored in a folder."""

    name: str
    make: Callable[[], Any]

