"""`mspc run --profile`: times some steps on every rank, gathers the times on rank 0, writes the trace, prints a table.

Timed are the launches of the first graph that trains, or of the first graph where none does. Its first two steps
prepare: they count only where the run has no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from mspc.commands.profile_options import ProfileOptions
from mspc.commands.table import Table, print_table
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.parser import parse
from mspc.ir.printer import print_graph
from mspc.runtime.choose import EACH_ITS_OWN
from mspc.runtime.comm import fingerprint
from mspc.runtime.comm_local import LocalComm
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.profile import STREAMS, Timed, costs, sums, trace

PREPARING = 2
"""Steps of a graph that also prepare: kernels and memory in the first, the CUDA graph in the second."""
LISTED = 10
WIDEST = 60
"""Characters of a cell."""


@dataclass
class _Noted:
    """A graph whose steps are timed. preparing: times of its first steps; steps: of those after them."""

    executor: Any
    preparing: list[list[Timed]] = field(default_factory=list[Any])
    steps: list[list[Timed]] = field(default_factory=list[Any])

    def add(self, step: int, times: list[Timed]) -> None:
        """The times of a step, whose number counts from 1."""
        (self.preparing if step <= PREPARING else self.steps).append(times)

    def best(self) -> tuple[int, list[list[Timed]]]:
        """(number of the first, times) of the steps that say most; no steps where none has times."""
        if self.steps:
            return PREPARING + 1, self.steps
        for number in range(len(self.preparing), 0, -1):
            if self.preparing[number - 1]:
                return number, [self.preparing[number - 1]]
        return 0, []


@dataclass(frozen=True)
class _Gathered:
    """What rank 0 knows of all ranks: times of their steps, the number of the first of these, their graphs."""

    steps: Mapping[int, list[list[Timed]]]
    first: Mapping[int, int]
    graphs: Mapping[int, Graph]


class Profiler:
    """Times the steps of one rank.

    Args:
        out: where the table is printed, whatever becomes of the script's output.
    """

    def __init__(self, options: ProfileOptions, out: Any) -> None:
        self.options = options
        self._place = Path(os.path.abspath(options.file))  # a script may change its folder
        self._out = out
        self._noted: _Noted | None = None
        self._over = False

    def run(self, executor: Any, inputs: Sequence[Any], origins: Sequence[Any]) -> list[Any]:
        """A step as `executor.run` makes it, timed where it is one of those that count."""
        if not self._times(executor):
            return executor.run(inputs, origins)
        assert self._noted is not None
        results, times = executor.run_timed(inputs, origins)
        self._noted.add(executor.step, times)
        return results

    def _times(self, executor: Any) -> bool:
        if self._over:
            return False
        if self._noted is None or (executor.trains and not self._noted.executor.trains):
            self._noted = _Noted(executor)
        return self._noted.executor is executor and len(self._noted.steps) < self.options.steps

    def step_done(self, job: Any) -> None:
        """A step has ended. Once enough are timed on all ranks, these come together here.

        Raises:
            MspcError: the file cannot be written.
        """
        noted = self._noted
        if self._over or noted is None or not noted.executor.trains or len(noted.steps) < self.options.steps:
            return
        if job.size > 1 and noted.executor.graph.attrs.get("mode") in EACH_ITS_OWN:
            return  # every rank may be at another graph
        self.end(job)

    def end(self, job: Any) -> None:
        """The run has ended, on all ranks: write what was timed, unless that is done.

        Raises:
            MspcError: the file cannot be written.
        """
        if self._over:
            return
        self._over = True
        gathered = _gather(job.aside, self._noted)
        if job.rank:
            return
        _write(self._place, self.options.file, trace(gathered.steps, gathered.graphs, gathered.first))
        # Under mpirun rank 0 has a terminal of mpirun's own, and lines of other ranks come between single prints.
        whole = StringIO() if job.size > 1 and not isinstance(job.comm, LocalComm) else None
        with contextlib.redirect_stdout(whole or self._out):
            self._show(gathered, job)
        if whole is not None:
            self._out.write(whole.getvalue())
        self._out.flush()

    def _show(self, gathered: _Gathered, job: Any) -> None:
        if self._noted is None or not gathered.steps[0]:
            why = "a first step on the CPU prepares, run 2 or more"
            why = "the script ran no network" if self._noted is None else why
            print(f"warning: {self.options.file} holds no times of rank 0: {why}", file=sys.stderr, flush=True)
            return
        executor = self._noted.executor
        print_table(cost_table(gathered.steps[0], gathered.first[0], executor))
        compute, communication, step = sums(gathered.steps[0], executor.graph)
        print(f"compute {_ms(compute)}, communication {_ms(communication)}, step {_ms(step)}")
        if hasattr(executor, "memory"):
            print_table(memory_table(executor))
        else:
            print(f"memory: planned peak {plan_memory(executor.graph).peak:,} bytes")
        for note in _notes(gathered, job):
            print(f"note: {note}")
        print(f"trace in {self.options.file}; ui.perfetto.dev shows it")


def cost_table(steps: Sequence[Sequence[Timed]], first: int, executor: Any) -> Table:
    """The most expensive nodes of one rank. first: number of the first of the steps. executor: that ran them."""
    last = first + len(steps) - 1
    which = f"steps {first} to {last}" if last > first else f"step {first}"
    kind = "the first graph that trains" if executor.trains else "the first graph; none trains"
    found = costs(steps, executor.graph, LISTED)
    return Table(
        f"profile of {executor.graph.name} ({kind}), rank {executor.rank}, mean of {which}",
        ("node", "result", "stream", "time", "share", "line"),
        [
            (_short(c.label), _short(c.type), c.stream, _ms(c.seconds), f"{100 * c.share:.1f} %", _short(c.line))
            for c in found
        ],
        (3, 4),
    )


def memory_table(executor: Any) -> Table:
    """Memory of a GPU: what was planned beside what is in use."""
    parts = executor.memory()
    device = executor.device
    rows = [*parts.items(), ("planned together", sum(parts.values()))]
    rows.append((f"in use on GPU {device.index} (by all graphs)", device.pool.used_bytes()))
    return Table("device memory", ("for", "bytes"), [(name, f"{size:,}") for name, size in rows], (1,))


def _notes(gathered: _Gathered, job: Any) -> list[str]:
    notes: list[str] = []
    steps, first = gathered.steps[0], gathered.first[0]
    if first <= PREPARING:
        notes.append(f"step {first} may still prepare; a run of {PREPARING + 1} steps or more gives better times")
    plain = {t.index: 0.0 for times in steps for t in times if t.plain}
    if plain:
        taken = sum(t.duration for times in steps for t in times if t.plain) / 1000 / len(steps)
        notes.append(f"{len(plain)} nodes have no kernel of their own for GPUs; they take {_ms(taken)}")
    if job.size > 1 and isinstance(job.comm, LocalComm):
        notes.append("simulated ranks take turns: the time of a collective holds work of the other ranks")
    return notes


def _gather(comm: Any, noted: _Noted | None) -> _Gathered:
    """The times of all ranks, which call this together; what is wanted of graphs stands on rank 0 alone."""
    first, steps = noted.best() if noted is not None else (0, [])
    everyone = tuple(range(comm.size))
    rows = np.array(
        [
            (number, t.index, STREAMS.index(t.stream), t.begin, t.duration, t.plain)
            for number, times in enumerate(steps)
            for t in times
        ],
        np.float64,
    ).reshape(-1, 6)
    sizes = comm.all_gather(np.array([[first, len(steps), len(rows)]], np.int64), everyone, 0)
    padded = np.zeros((1, max(1, int(sizes[:, 2].max())), 6))
    padded[0, : len(rows)] = rows
    every = comm.all_gather(padded, everyone, 0)
    found: dict[int, list[list[Timed]]] = {}
    for rank in everyone:
        found[rank] = [[] for _ in range(sizes[rank, 1])]
        for number, index, stream, begin, duration, plain in every[rank, : sizes[rank, 2]].tolist():
            timed = Timed(int(index), STREAMS[int(stream)], begin, duration, bool(plain))
            found[rank][int(number)].append(timed)
    graphs = _graphs(comm, None if noted is None else noted.executor.graph)
    return _Gathered(found, {rank: int(sizes[rank, 0]) for rank in everyone}, graphs)


def _graphs(comm: Any, graph: Graph | None) -> dict[int, Graph]:
    """On rank 0 a graph for every rank: its own for those whose nodes are the same, which is the rule; the others
    send the text of theirs."""
    everyone = tuple(range(comm.size))
    graph = Graph("none") if graph is None else graph
    own = fingerprint("\n".join(f"{node.label}: {node.type}" for node in graph.nodes))
    found = comm.all_gather(own[None], everyone, 0)
    others = [rank for rank in everyone if not np.array_equal(found[rank], found[0])]
    text = np.frombuffer(print_graph(graph).encode() if comm.rank in others else b"", np.uint8)
    sizes = comm.all_gather(np.array([len(text)], np.int64), everyone, 0)
    graphs = dict.fromkeys(everyone, graph)
    for rank in others:
        if comm.rank in (0, rank):
            mine = text if comm.rank == rank else np.zeros(sizes[rank], np.uint8)
            sent = bytes(comm.broadcast(mine, rank, (0, rank)))
            if comm.rank == 0:
                graphs[rank] = _read(sent.decode(), rank)
    return graphs


def _read(text: str, rank: int) -> Graph:
    from mspc.ops.modules import load_operators
    from mspc.ops.op import REGISTRY

    load_operators()
    return parse(text, REGISTRY, f"rank {rank}", frames=True).graphs[0]


def _write(place: Path, shown: Path, content: Mapping[str, Any]) -> None:
    beside = place.with_name(f".{place.name}.{os.getpid()}.new")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
            file.write("\n")
        os.replace(beside, place)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise MspcError(f"cannot write {shown}: {error.strerror}") from None


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."
