"""Profile of a run for `mspc run --profile`: times steps on every rank, gathers the times on rank 0, writes the trace.

It times the launches of the first graph that trains, or of the first graph if none does. The first two steps are
warm-up and count only if the run has no others.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from io import StringIO
from pathlib import Path
from typing import Any

from mspc.engine.profile_options import ProfileOptions
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import fingerprint
from mspc.runtime.comm.local import LocalComm
from mspc.runtime.device_choice import RANK_LOCAL_MODES
from mspc.runtime.profile import NodeTiming, trace

WARMUP_STEPS = 2
"""Number of warm-up steps of a graph: the first makes kernels and memory, the second the CUDA graph."""


@dataclass
class _TimedGraph:
    """A graph whose steps are timed. preparing: times of its warm-up steps; steps: times of later steps."""

    executor: Any
    preparing: list[list[NodeTiming]] = field(default_factory=list[Any])
    steps: list[list[NodeTiming]] = field(default_factory=list[Any])

    def add(self, step: int, times: list[NodeTiming]) -> None:
        """Add the times of a step, numbered from 1."""
        (self.preparing if step <= WARMUP_STEPS else self.steps).append(times)

    def best(self) -> tuple[int, list[list[NodeTiming]]]:
        """Return (number of the first step, times) of the most useful steps; no steps if none has times."""
        if self.steps:
            return WARMUP_STEPS + 1, self.steps
        for number in range(len(self.preparing), 0, -1):
            if self.preparing[number - 1]:
                return number, [self.preparing[number - 1]]
        return 0, []


@dataclass(frozen=True)
class GatheredProfile:
    """Data of all ranks on rank 0: times of their steps, the number of the first step, their graphs.

    executor: rank 0's, None if no network ran. job: rank 0's. file: of the trace, as given on the command line.
    """

    steps: Mapping[int, list[list[NodeTiming]]]
    first: Mapping[int, int]
    graphs: Mapping[int, Graph]
    executor: Any
    job: Any
    file: Path


class StepProfiler:
    """Timer of the steps of one rank.

    out: the stream of the tables, even if the script redirects its output. show: prints them.
    """

    def __init__(self, options: ProfileOptions, out: Any, show: Callable[[GatheredProfile], None]) -> None:
        self.options = options
        self._print = show
        self._place = Path(os.path.abspath(options.file))  # a script may change its folder
        self._out = out
        self._noted: _TimedGraph | None = None
        self._over = False

    def run(self, executor: Any, inputs: Sequence[Any], origins: Sequence[Any]) -> list[Any]:
        """Run a step like `executor.run`, and time it if it counts."""
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
            self._noted = _TimedGraph(executor)
        return self._noted.executor is executor and len(self._noted.steps) < self.options.steps

    def step_done(self, job: Any) -> None:
        """Record that a step has ended. Once enough steps are timed on all ranks, the times are gathered here. Raise
        MspcError if the file cannot be written."""
        noted = self._noted
        if self._over or noted is None or not noted.executor.trains or len(noted.steps) < self.options.steps:
            return
        if job.size > 1 and noted.executor.graph.attrs.get("mode") in RANK_LOCAL_MODES:
            return  # every rank may be at another graph
        self.end(job)

    def end(self, job: Any) -> None:
        """Write the times at the end of a run, on all ranks, unless already written. Raise MspcError if the file cannot
        be written."""
        if self._over:
            return
        self._over = True
        gathered = _gather(job, self._noted, self.options.file)
        if job.rank:
            return
        content = trace(gathered.steps, gathered.graphs, gathered.first)
        text = json.dumps(content, separators=(",", ":")) + "\n"
        write_atomically(self._place, lambda file: file.write(text.encode()), self.options.file)
        # Under mpirun, lines of other ranks may interleave with single prints.
        buffer = StringIO() if job.size > 1 and not isinstance(job.comm, LocalComm) else None
        with contextlib.redirect_stdout(buffer or self._out):
            self._print(gathered)
        if buffer is not None:
            self._out.write(buffer.getvalue())
        self._out.flush()


def _gather(job: Any, noted: _TimedGraph | None, file: Path) -> GatheredProfile:
    """Return the times of all ranks, which call this together; data of graphs are on rank 0 alone."""
    first, steps = noted.best() if noted is not None else (0, [])
    told = gathered(job.aside, [first, [[list(vars(t).values()) for t in times] for times in steps]])
    found = {rank: [[NodeTiming(*t) for t in times] for times in told[rank][1]] for rank in range(len(told))}
    graphs = _graphs(job.aside, None if noted is None else noted.executor.graph)
    firsts = {rank: told[rank][0] for rank in found}
    return GatheredProfile(found, firsts, graphs, None if noted is None else noted.executor, job, file)


def _graphs(comm: Any, graph: Graph | None) -> dict[int, Graph]:
    """Return, on rank 0, a graph for every rank: its own for those whose nodes are the same, which is the rule; the
    others send the text of theirs."""
    graph = Graph("none") if graph is None else graph
    own = fingerprint("\n".join(f"{node.label}: {node.type}" for node in graph.nodes)).tolist()
    found = gathered(comm, own)
    texts = gathered(comm, print_graph(graph) if own != found[0] else "")
    return {rank: _read(text, rank) if text and comm.rank == 0 else graph for rank, text in enumerate(texts)}


def _read(text: str, rank: int) -> Graph:
    from mspc.ir.text.parser import parse  # its library takes a tenth of a command's start
    from mspc.ops.op import REGISTRY

    return parse(text, REGISTRY, f"rank {rank}", frames=True).main
