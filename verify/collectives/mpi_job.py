"""Runs a compiled network on the ranks of mpirun, and MPI's communicator on numbers made for it.

The ranks' graphs go to them as text, weights and inputs as tensors, in a folder of which nothing is left behind; what
they computed comes back in it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mspc.engine.ranks.mpirun import end_with_parent, mpirun_command, mpirun_environment, python_module
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.files.tensors import StoredTensor, TensorFile, write_tensors
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType, dtype_of
from mspc.verify.collectives.communicator import expected
from mspc.verify.collectives.compiled import expected_rows
from mspc.verify.difference import ComparedValue, compare
from mspc.verify.many_ranks import ManyRanks, Values

Array = Any
GIVEN = "given.safetensors"
FOUND = "found_{}.safetensors"
EXECUTED, PLAIN = "execute_{}.ir", "plain_{}.ir"
WAIT = 600
"""Seconds after which ranks that do not end are ended."""


@dataclass(frozen=True)
class MpiRanks(ManyRanks):
    """As `ManyRanks`, but that the executor runs under MPI; what is looked at operator by operator runs here."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])

    def executed(self) -> list[list[Values]]:
        """As there. Raises ExecutionError where the ranks do not end well, MspcError without mpirun."""
        return self._found[0]

    def wrong(self) -> list[ComparedValue]:
        """Rows of what a collective of the network, or of MPI's communicator, gives otherwise than NumPy."""
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
        command = mpirun_command(self.ranks, python_module("mspc.verify.collectives.mpi_rank", str(folder)))
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
            made[rank] = [own[name] for name in sorted((n for n in own if n.startswith("made/")), key=_number)]
            for number, (label, wanted) in enumerate(expected(rank, self.ranks)):
                found = own.get(f"communicator/{number}")
                rows.append(compare("collective", f"MPI {label} of rank {rank}", wanted, found, 0.0))
        return steps, rows + expected_rows(self.ranks, self.plain_of, made)


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])


def save(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays by name."""
    stored = [
        StoredTensor(name, TensorType(dtype_of(np.asarray(a).dtype), np.shape(a)), lambda a=a: a)
        for name, a in arrays.items()
    ]
    with open(path, "wb") as file:
        write_tensors(file, stored)
