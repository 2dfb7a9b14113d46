"""The memory of the programs of all kinds of ranks, as it is planned for GPUs and for CPUs, and that of the graphs that
they run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from mspc.ir.late_dataclass import dataclass
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.compiled_loops import pays
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.region_memory import device_bytes_inside
from mspc.verify.scale.buffer_use import buffer_misuses
from mspc.verify.scale.buffers_of_graphs import buffer_plan
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.memory_use import Misuse, memory_misuses

MOST = 8
"""So many misuses of a kind are told."""


@dataclass(frozen=True)
class MemoryFound:
    """What is found. arenas: bytes that values share, of every kind. values: how many have a place there. misuses: what
    is wrong, with its kind."""

    arenas: tuple[int, ...]
    values: int
    misuses: tuple[tuple[RankKind, Misuse], ...]


def memory_of_kinds(kinds: Sequence[RankKind]) -> MemoryFound:
    """Plan the memory of every kind at real sizes as a GPU's step does, and as the executor on CPUs does, and look at
    every access of it.

    Sizes are all that a plan knows of a program, and they are equal for ranks of one kind.
    """
    arenas: list[int] = []
    values = 0
    misuses: list[tuple[RankKind, Misuse]] = []
    for kind in kinds:
        compiles = pays(kind.graph, NumPyBackend(OneRank()))
        for number, graph in enumerate(kind.graph.graphs()):
            plan = plan_memory(graph, inside=device_bytes_inside, early=not number)
            found = list(islice(memory_misuses(graph, plan, early=not number), MOST))
            found += islice(buffer_misuses(graph, buffer_plan(graph, compiles, is_region=number > 0)), MOST)
            misuses += [(kind, misuse) for misuse in found]
            values += sum(any(p.kind == "arena" for p in places) for places in plan.places.values())
            if not number:
                arenas.append(plan.arena)
    return MemoryFound(tuple(arenas), values, tuple(misuses))
