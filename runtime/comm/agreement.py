"""Before their first step ranks agree that all can start, and that their graphs fit together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.faults.failure import StoppedByOther
from mspc.runtime.faults.stalled import shown_ranks


def agree(comm: Communicator, compile_id: str, folder: str = "") -> None:
    """Make sure that all ranks hold graphs of one compile; all ranks call this before their first step.

    Raises:
        MspcError: some hold another; status 2.
    """
    if comm.size == 1:
        return
    everyone = tuple(range(comm.size))
    own = fingerprint(compile_id)
    found = comm.all_gather(own[None], everyone, 0)
    different = [rank for rank in everyone if not np.array_equal(found[rank], found[0])]
    if not different:
        return
    ranks = ", ".join(map(str, different[:8])) + (", ..." if len(different) > 8 else "")
    raise MspcError(
        f"the ranks hold graphs of different compiles: rank{'s' if len(different) > 1 else ''} {ranks} "
        f"and rank 0 differ; rank {comm.rank} holds {compile_id}" + (f" from {folder}" if folder else ""),
        notes=["compile once and run that on all ranks; a script must build the same network on every rank"],
    )


def stop_together(comm: Communicator, error: MspcError | None) -> None:
    """Raise on every rank when one rank cannot start, so that no other waits for it; all ranks call this
    together.

    Raises:
        MspcError: this rank's own `error`. StoppedByOther: another rank has one.
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return
    found = comm.all_gather(np.array([error is not None]), tuple(range(comm.size)), 0)
    if error is not None:
        raise error
    if found.any():
        raise StoppedByOther(f"rank {int(np.argmax(found))} cannot start")


def agree_on_collectives(comm: Communicator, graph: Graph) -> None:
    """Make sure that whenever ranks meet in the graphs that they hold, all say the same: operator, attributes, types,
    group, in one order. All ranks call this before a graph's first step; ranks may hold graphs of their own, or files
    that somebody has edited.

    Raises:
        MspcError: ranks do not fit together; status 2. StoppedByOther: another rank reports it.
    """
    if comm.size == 1:
        return
    own = _schedule(graph, comm.rank)
    digests = {key: hashlib.sha256("\n".join(said).encode()).hexdigest()[:32] for key, (said, _) in own.items()}
    of_ranks = gathered(comm, digests)
    for key in sorted({key for found in of_ranks for key in found}):
        ranks = [int(rank) for rank in key.partition(";")[0].split()]
        wrong = [rank for rank in ranks if rank >= comm.size]
        if wrong:
            raise MspcError(f"a collective names rank {wrong[0]}; the ranks are 0 to {comm.size - 1}")
        if len({of_ranks[rank].get(key) for rank in ranks}) > 1:
            _refuse(comm, key, ranks, own.get(key, ([], [])))


Said = dict[str, tuple[list[str], list[Node]]]
"""What a rank says at its meetings, in their order, and the nodes that say it; by the ranks that meet."""


def _schedule(graph: Graph, rank: int) -> Said:
    found: Said = {}
    _add_meetings(graph, rank, "", found)
    return found


def _add_meetings(graph: Graph, rank: int, inside: str, found: Said) -> None:
    """Add the meetings of a graph. inside: of which nodes it is, as in " in the body of For of 3 turns"."""
    for node in graph.nodes:
        for name, region in zip(getattr(node.op, "region_names", ()), node.regions, strict=False):
            turns = getattr(node.op, "turns", -1)
            counted = f" of {turns} turns" if turns >= 0 else ""
            _add_meetings(region, rank, f" in the {name} of {node.op.name}{counted}{inside}", found)
        if not isinstance(node.op, Collective):
            continue
        for ranks, label, said in node.op.meetings(rank, [value.type for value in node.inputs]):
            if len(ranks) < 2:
                continue
            texts, nodes = found.setdefault(f"{' '.join(map(str, ranks))};{label}", ([], []))
            texts.append(said + inside)
            nodes.append(node)


def gathered(comm: Communicator, own: Any) -> list[Any]:
    """The values that the ranks hand over, by rank; they travel as JSON."""
    everyone = tuple(range(comm.size))
    data = np.frombuffer(json.dumps(own).encode(), np.uint8)
    sizes = comm.all_gather(np.array([data.size]), everyone, 0)
    padded = np.zeros((1, int(sizes.max())), np.uint8)
    padded[0, : data.size] = data
    rows = comm.all_gather(padded, everyone, 0)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _refuse(comm: Communicator, key: str, ranks: Sequence[int], own: tuple[list[str], list[Node]]) -> None:
    """Raise the error of ranks that do not say the same; the first that differs from the first rank reports it."""
    texts, nodes = own
    said = gathered(comm, texts)
    first = ranks[0]
    other = next(rank for rank in ranks if said[rank] != said[first])
    if comm.rank != other:
        raise StoppedByOther(f"rank {other} has other collectives than rank {first}")
    length = max(len(said[first]), len(said[other]))
    at = next(i for i in range(length) if said[first][i : i + 1] != said[other][i : i + 1])
    label = key.partition(";")[2]
    of = [", ".join(said[rank][at : at + 1]) or "nothing more" for rank in (first, other)]
    frames = nodes[at].frames if at < len(nodes) else ()
    alike = "ranks that meet must call the same collectives, with the same group and types, in one order"
    paired = "what a rank sends another must receive, with the same type and tag, in one order, and nothing else"
    raise MspcError(
        f"the ranks' graphs do not fit together: as number {at + 1} of "
        f"{label or f'the collectives of {shown_ranks(ranks)}'}, rank {first} has {of[0]} and rank {other} {of[1]}",
        notes=[paired if label else alike],
        frames=frames,
    )
