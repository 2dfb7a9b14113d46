"""Folders of `mspc capture` as targets of commands: the steps that PyTorch runs on each rank."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mspc.commands.options import is_capture
from mspc.commands.report.tables import print_line
from mspc.compiler.driver import Compiled
from mspc.engine.capture import CapturedCall, capture_network
from mspc.ir.diagnostics import MspcError, shown_ranks
from mspc.ir.files.tensors import StoredTensor
from mspc.ir.graph import Graph
from mspc.ir.types import TensorType
from mspc.mindspore_api.state import Session
from mspc.output.dumps import FirstValue, OutputFolder
from mspc.readers.pytorch.captured_kinds import read_kinds

RANK_FILE = re.compile(r"rank_(\d{1,9})\.step")


def ranks_in(folder: Path) -> int:
    """Return the number of ranks of a folder. Raise MspcError if it is no capture, or the file of a rank is missing."""
    from mspc.readers.pytorch.captured_kinds import read_kinds  # late: few commands read captures

    if not is_capture(folder):
        raise MspcError(f"{folder} is no folder of mspc capture: it has no rank_0.step")
    found = {int(match[1]) for path in folder.iterdir() if (match := RANK_FILE.fullmatch(path.name))}
    kinds = read_kinds(folder)
    wanted = [kind.traced for kind in kinds] or range(max(found) + 1)
    missing = [rank for rank in wanted if rank not in found]
    if missing:
        raise MspcError(
            f"{folder} has no file of rank {missing[0]}, but of {len(found)} others",
            notes=["mspc capture writes all of them again"],
        )
    return sum(len(kind.ranks) for kind in kinds) or len(found)


def capture_step(folder: Path, session: Session) -> CapturedCall:
    """Return the step of the session's rank as a call. Raise MspcError if its file cannot be read, or is of a job of
    another size."""
    from mspc.readers.pytorch.captured import read_rank  # late: few commands read captures
    from mspc.readers.pytorch.network import ImportedNetwork
    from mspc.readers.pytorch.reasons import with_reasons

    planned = session.size > 1 and ranks_in(folder) == 1
    rank = 0 if planned else session.rank

    def make() -> tuple[Any, Sequence[TensorType]]:
        step = read_rank(folder, rank)
        if step.ranks != session.size and not planned:
            raise MspcError(f"{step.program.name} is of one of {step.ranks} ranks, not of {session.size}")
        session.initialized = True
        session.groups.update(step.groups)
        network = ImportedNetwork(with_reasons(step.program), "loss" if step.has_loss else None)
        return network, network.input_types

    captured = capture_network(make, folder, session, lambda types: "full_batch")
    mode = "semi_auto_parallel" if planned else "stand_alone"
    return replace(captured, context=replace(captured.context, parallel_mode=mode))


class ValuesOfRanks:
    """The first values of all ranks of a capture, as slices of whole tensors if possible.

    A parameter or state that DTensor shards evenly is stored whole, and gets its layout on every rank. Another one is
    stored once, and once more for each rank that begins with other values, by a name of its own. Inputs have the rows
    of all ranks one after the other, unless they are DTensors.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        from mspc.readers.pytorch.captured import read_rank  # late, as above
        from mspc.readers.pytorch.placed import layouts_in

        steps = [read_rank(folder, rank) for rank in range(ranks)]
        self._weights = [step.program.weights for step in steps]
        self._places = layouts_in(steps)
        for name in self._places.keys() & self._weights[0].tensors.keys():
            whole, (layout, type) = self._whole(name), self._places[name]
            slices = (whole[layout.slices_for(rank, type.shape)] for rank in range(ranks))
            if any(part.tobytes() != own.tobytes() for part, (_, own) in zip(slices, self._own(name), strict=True)):
                del self._places[name]  # ranks that should have the same slice begin with others
        self._seen: dict[str, FirstValue] = {}
        self.tensors: list[StoredTensor] = []
        """Those of the ranks whose graphs were placed."""

    def _own(self, name: str) -> Iterator[tuple[int, Any]]:
        return ((rank, weights.read(name)) for rank, weights in enumerate(self._weights))

    def _whole(self, name: str) -> Any:
        layout, type = self._places[name]
        found = np.empty(type.shape, type.dtype.numpy)
        for rank, own in self._own(name):
            found[layout.slices_for(rank, type.shape)] = own
        return found

    def shard(self, compiled: Compiled) -> None:
        """Give the parameters and inputs of the graph of all ranks their layouts."""
        self._lay_out(compiled.graph)
        for at, parameter in enumerate(compiled.inputs):
            if parameter.name in self._places:
                layout, type = self._places[parameter.name]
                compiled.fed[at] = replace(compiled.fed[at], layout=layout, global_type=type)

    def _lay_out(self, graph: Graph) -> None:
        for parameter in graph.parameters:
            if parameter.name in self._places:
                parameter.layout, parameter.global_type = self._places[parameter.name]

    def place(self, graph: Graph, rank: int, values: Iterable[FirstValue]) -> None:
        """Give the parameters of a rank's graph their layouts or names. values: the first ones of the rank."""
        self._lay_out(graph)
        own = {value.name: value for value in values if value.description is None}
        for parameter in graph.parameters:
            name = parameter.name
            if name not in own:
                continue
            value, is_new = own[name], name not in self._seen
            first = self._seen.setdefault(name, value)
            if name in self._places:
                if is_new:
                    self.tensors.append(StoredTensor(name, self._places[name][1], partial(self._whole, name)))
                continue
            if not is_new and not _are_equal(first, value):
                parameter.name = f"rank_{rank}.{name}"
            if is_new or parameter.name != name:
                self.tensors.append(StoredTensor(parameter.name, value.type, value.make))


def _are_equal(first: FirstValue, other: FirstValue) -> bool:
    """Return whether two tensors have the same bytes, so that NaN is equal to itself."""
    return first.type == other.type and np.asarray(first.make()).tobytes() == np.asarray(other.make()).tobytes()


# `mspc capture` runs a script of PyTorch in a process of its own and collects the files of its ranks ----


def capture_script(
    script: Path, arguments: Sequence[str], ranks: int, out: Path, values: bool = False, every_rank: bool = False
) -> None:
    """Write the step of every rank to a folder: a file for one rank of each kind and the kinds of all, or a file for
    `every_rank`. Raise MspcError if PyTorch or the script is missing, the script fails on a rank, or the folder holds
    other files."""
    if importlib.util.find_spec("torch") is None:
        raise MspcError("mspc capture needs PyTorch, which is not installed", notes=["pip install torch"])
    if not script.is_file():
        raise MspcError(f"there is no script {str(script)!r}", code="E0101")
    with OutputFolder(out) as folder:
        job = [sys.executable, "-P", "-m", "mspc.readers.pytorch.capture_job"]
        command = [*job, str(script), str(ranks), str(int(values)), str(int(values or every_rank)), *arguments]
        done = subprocess.run(command, env={**os.environ, "MSPC_CAPTURE": str(folder.room)})
        if done.returncode:
            raise MspcError(f"{script} cannot be captured on {ranks} rank{'s' * (ranks > 1)}: see above")
        assert ranks_in(folder.room) == ranks
        kinds = read_kinds(folder.room)
        folder.commit()
    print_line(f"captured {ranks} rank{'s' * (ranks > 1)} in {out}")
    for kind in kinds:
        print_line(f"  traced rank {kind.traced}, which is of one kind with {shown_ranks(kind.ranks)}")
