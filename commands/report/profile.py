"""This module makes the tables of `mspc run --profile`: the most expensive nodes, and memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from mspc.commands.report.fitting import Table
from mspc.commands.report.table import print_table
from mspc.engine.profile import PREPARING, Gathered
from mspc.runtime.comm.local import LocalComm
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.profile import Timed, costs, sums

LISTED = 10


def show_profile(gathered: Gathered) -> None:
    """Print what the times of a run say, on rank 0."""
    executor = gathered.executor
    if executor is None or not gathered.steps[0]:
        why = "a first step on the CPU prepares, run 2 or more"
        why = "the script ran no network" if executor is None else why
        print(f"warning: {gathered.file} holds no times of rank 0: {why}", file=sys.stderr, flush=True)
        return
    print_table(cost_table(gathered.steps[0], gathered.first[0], executor))
    compute, communication, step = sums(gathered.steps[0], executor.graph)
    print(f"compute {_ms(compute)}, communication {_ms(communication)}, step {_ms(step)}")
    if hasattr(executor, "memory"):
        print_table(memory_table(executor))
    else:
        print(f"memory: planned peak {plan_memory(executor.graph).peak:,} bytes")
    for note in _notes(gathered):
        print(f"note: {note}")
    print(f"trace in {gathered.file}; ui.perfetto.dev shows it")


def cost_table(steps: Sequence[Sequence[Timed]], first: int, executor: Any) -> Table:
    """The most expensive nodes of one rank. first: number of the first of the steps. executor: that ran them."""
    last = first + len(steps) - 1
    which = f"steps {first} to {last}" if last > first else f"step {first}"
    kind = "the first graph that trains" if executor.trains else "the first graph; none trains"
    found = costs(steps, executor.graph, LISTED)
    return Table(
        f"profile of {executor.graph.name} ({kind}), rank {executor.rank}, median of {which}",
        ("node", "result", "stream", "time", "share", "line"),
        [
            (c.label, c.type, c.stream, _ms(c.seconds), f"{100 * c.share:.1f} %", c.line or "-")
            for c in found
        ],
        (3, 4),
        below=(5, 1),
    )


def memory_table(executor: Any) -> Table:
    """Memory of a GPU: what was planned beside what is in use."""
    parts = executor.memory()
    device = executor.device
    rows = [*parts.items(), ("planned together", sum(parts.values()))]
    rows.append((f"in use on GPU {device.index} (by all graphs)", device.pool.used_bytes()))
    return Table("device memory", ("for", "bytes"), [(name, f"{size:,}") for name, size in rows], (1,))


def _notes(gathered: Gathered) -> list[str]:
    notes: list[str] = []
    steps, first = gathered.steps[0], gathered.first[0]
    timed = len({t.index for times in steps for t in times})
    if timed > LISTED:
        notes.append(f"{LISTED} of {timed} nodes are listed, the most expensive ones; the trace holds all")
    if first <= PREPARING:
        notes.append(f"step {first} may still prepare; a run of {PREPARING + 1} steps or more gives better times")
    plain = {t.index: 0.0 for times in steps for t in times if t.plain}
    if plain:
        taken = sum(t.duration for times in steps for t in times if t.plain) / 1000 / len(steps)
        notes.append(f"{len(plain)} nodes have no kernel of their own for GPUs; they take {_ms(taken)}")
    if gathered.job.size > 1 and isinstance(gathered.job.comm, LocalComm):
        notes.append("simulated ranks take turns: the time of a collective holds work of the other ranks")
    return notes


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"

