"""Runs some steps of a compiled network on simulated ranks: by the executor, in its own memory, and operator by
operator.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mspc.engine.ranks.launcher import end_with_parent, mpirun_command, mpirun_environment, python_module
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.files.tensors import StoredTensor, TensorFile, write_tensors
from mspc.ir.graph import Graph, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType, dtype_of
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.data import full_type, gather, slice_parameter
from mspc.runtime.executor import Executor
from mspc.runtime.observe import observe
from mspc.verify.difference import ComparedValue, compare
from mspc.verify.judged_collectives import expected, expected_rows
from mspc.verify.one_device import Poke

Array = Any
Values = dict[Any, Array]


GATHERED = "gathered "
"""Before the name of a parameter whose slices all ranks have gathered after the last step."""


@dataclass(frozen=True)
class ManyRanks:
    """The graphs of some ranks, and their inputs.

    graph_of: a rank's executable graph. plain_of: its graph before fusion. weights: first values of parameters and
    constants; feeds: inputs, by step; all global.
    """

    ranks: int
    graph_of: Callable[[int], Graph]
    plain_of: Callable[[int], Graph]
    weights: dict[str, Array]
    feeds: Sequence[Sequence[Array]]

    def executed(self) -> list[list[Values]]:
        """Return, for every step and rank, results under ("result", i) and parameters under their names, as `mspc run`
        computes them, but that a loss may be infinite and that results of any size share memory: a network is often
        verified in a smaller size than that in which it runs. Raise NodeFailure if a kernel failed."""

        return self._by_step(World(self.ranks).run(self.executed_on))

    def executed_on(self, comm: Communicator) -> list[Values]:
        """Return, for every step, the same of one rank, through its communicator."""
        graph = self.graph_of(comm.rank)
        stored = [p for p in graph.parameters if p.kind != "input"]
        held = {p.name: self._slice(p, comm.rank) for p in stored}
        executor = Executor(graph, NumPyBackend(comm, planned_from=1), held)
        executor.plan = replace(executor.plan, losses=[], late_losses=[])
        found: list[Values] = []
        for data in self.feeds:
            results = executor.run(self._inputs(graph, comm.rank, data))
            values: Values = {("result", i): np.array(array) for i, array in enumerate(results)}
            values |= {p.name: np.array(executor.parameter(p.name)) for p in stored}
            found.append(values)
        for parameter in stored if found else ():  # as they are saved and printed
            layout = parameter.layout
            if parameter.kind == "parameter" and isinstance(layout, Layout) and layout.ranks == comm.size > 1:
                own = executor.parameter(parameter.name)
                whole = gather(own, layout, full_type(parameter).shape, comm)
                found[-1][GATHERED + parameter.name] = whole
        return found

    def observed(self, mark: str, steps: int, poke: Poke | None = None) -> list[list[Values]]:
        """Return the same of some steps from the first on, operator by operator, none fused, in memory of their own;
        beside it the operators of the last of these steps under the values of their attribute `mark`. Raise NodeFailure
        if a kernel failed."""

        graphs = [] if poke is None else [self.plain_of(rank) for rank in range(self.ranks)]

        def main(comm: LocalComm) -> list[Values]:
            graph = self.plain_of(comm.rank)
            backend = NumPyBackend(comm)
            held = {p: self._slice(p, comm.rank) for p in graph.parameters if p.kind != "input"}
            inputs = [p for p in graph.parameters if p.kind == "input"]
            found: list[Values] = []
            for step, data in enumerate(self.feeds[:steps], 1):
                backend.step = step
                fed = zip(inputs, self._inputs(graph, comm.rank, data), strict=True)
                operands = None if poke is None else poke.on_rank(comm.rank, graphs)
                at = mark if step == steps else ""
                found.append(observe(graph, backend, held | dict(fed), at, None, operands))
            return found

        return self._by_step(World(self.ranks).run(main))

    def _slice(self, parameter: Parameter, rank: int) -> Array:
        return np.array(slice_parameter(parameter, self.weights[parameter.name], rank, parameter.kind))

    def _inputs(self, graph: Graph, rank: int, data: Sequence[Array]) -> list[Array]:
        inputs = [p for p in graph.parameters if p.kind == "input"]
        return [np.array(slice_parameter(p, array, rank, "input")) for p, array in zip(inputs, data, strict=True)]

    def _by_step(self, ran: list[list[Values]]) -> list[list[Values]]:
        return [[steps[s] for steps in ran] for s in range(len(ran[0]))]


# Under mpirun the ranks' graphs travel as text, weights and inputs as tensors, in a temporary folder; results come back
# in it.


GIVEN = "given.safetensors"
FOUND = "found_{}.safetensors"
EXECUTED, PLAIN = "execute_{}.ir", "plain_{}.ir"
WAIT = 600
"""Seconds after which ranks that do not end are ended."""


@dataclass(frozen=True)
class MpiRanks(ManyRanks):
    """As `ManyRanks`, but the executor runs under MPI; runs operator by operator stay in this process."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])

    def executed(self) -> list[list[Values]]:
        """Return the same as `ManyRanks.executed`. Raise ExecutionError if a rank fails, MspcError without mpirun."""
        return self._found[0]

    def wrong(self) -> list[ComparedValue]:
        """Return rows of collectives, of the network or of MPI's communicator, that differ from NumPy."""
        return [row for row in self._found[1] if not row.same]

    @cached_property
    def _found(self) -> tuple[list[list[Values]], list[ComparedValue]]:
        folder = Path(tempfile.mkdtemp(prefix="mspc-verify-"))
        try:
            self._write(folder)
            self._start(folder)
            ranks = [TensorFile(folder / FOUND.format(rank)) for rank in range(self.ranks)]
            return self._read(ranks)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        for rank in range(self.ranks):
            for name, graph_of in ((EXECUTED, self.graph_of), (PLAIN, self.plain_of)):
                (folder / name.format(rank)).write_text(print_graph(graph_of(rank)), encoding="utf-8")
        given = {f"weight/{name}": array for name, array in self.weights.items()}
        for step, arrays in enumerate(self.feeds):
            given |= {f"step/{step}/{i}": array for i, array in enumerate(arrays)}
        save(folder / GIVEN, given)

    def _start(self, folder: Path) -> None:
        command = mpirun_command(self.ranks, python_module("mspc.verify.mpi_rank", str(folder)))
        try:
            done = subprocess.run(
                command, env=mpirun_environment(), capture_output=True, text=True, errors="replace", timeout=WAIT,
                stdin=subprocess.DEVNULL, preexec_fn=end_with_parent, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ExecutionError(f"{self.ranks} ranks under mpirun have not ended within {WAIT} s") from None
        except OSError as error:
            raise ExecutionError(f"cannot start mpirun: {error.strerror}") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            why = lines[0].removeprefix("error: ") if lines else f"mpirun ended with status {done.returncode}"
            raise ExecutionError(f"the ranks under mpirun failed: {why}")

    def _read(self, files: Sequence[TensorFile]) -> tuple[list[list[Values]], list[ComparedValue]]:
        steps: list[list[Values]] = [[{} for _ in files] for _ in self.feeds]
        made: list[list[Array]] = [[] for _ in files]
        rows: list[ComparedValue] = []
        for rank, file in enumerate(files):
            own = {name: np.array(file.read(name)) for name in file.names}
            for name, array in own.items():
                kind, _, rest = name.partition("/")
                if kind == "step":
                    step, what, key = rest.split("/", 2)
                    steps[int(step)][rank][("result", int(key)) if what == "result" else key] = array
            names = sorted((n for n in own if n.startswith("made/")), key=lambda name: int(name.rpartition("/")[2]))
            made[rank] = [own[name] for name in names]
            for number, (label, wanted) in enumerate(expected(rank, self.ranks)):
                found = own.get(f"communicator/{number}")
                rows.append(compare("collective", f"MPI {label} of rank {rank}", wanted, found, 0.0))
        return steps, rows + expected_rows(self.ranks, self.plain_of, made)


def save(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays by name."""
    stored = [
        StoredTensor(name, TensorType(dtype_of(np.asarray(a).dtype), np.shape(a)), lambda a=a: a)
        for name, a in arrays.items()
    ]
    with open(path, "wb") as file:
        write_tensors(file, stored)
