"""Single edits planted in captured steps: `python -m tests.verify.planted_in_captures RANKS ONE SEED COUNT`.

COUNT times a change is drawn (`scale/changes_of_programs.py`) on the ranks' programs of one of some captures, for all
ranks or for one. The proof has to find it, or the edited programs compute the same numbers. Prints each one that is
missed or told at another place, and counts at the end.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mspc.commands.verify_capture import CapturedPrograms, programs_of_captures
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TupleType
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.collectives import AllGather, ReduceScatter
from mspc.ops.control.structural import StopGradient, TupleGetItem
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.verify.scale.proof import ScaleProof, prove
from mspc.verify.scale.rank_kinds import Divided, RankKind, divided, merged
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.small_programs import Unfit
from tests.verify.scale.changes_of_nodes import PLACE, Change, Unusable
from tests.verify.scale.changes_of_programs import draw, made, numbered, rank_of

KINDS = ("collective left out", "collective doubled", "collective of another kind", "collective added", "group",
         "constant", "offset", "operand", "slices exchanged")  # fmt: skip

MOVES = (AllGather, Cast, Concat, ReduceScatter, Split, StopGradient, StridedSlice, Transpose, TupleGetItem)
NO_CHANGES = ("AllReduce of max", "AllReduce: slices")
"""A maximum of equal numbers, and another order of the terms of a sum."""


@dataclass(frozen=True)
class Planted:
    """A change and what is said of it. where: "there" at the changed node or its next reader, "elsewhere", or ""."""

    change: Change
    found: bool
    where: str = ""
    told: str = ""


def planted(programs: CapturedPrograms, generator: random.Random) -> Planted:
    """Plant a change and prove. Raises Unusable."""
    kinds = [part for kind in programs.kinds for part in divided([kind], Divided(kind, [[r] for r in kind.ranks]))]
    ranks = [rank_of(kind.ranks[0], kind.graph) for kind in kinds]
    for kind in kinds:
        numbered(kind.graph)
    first = generator.choice(ranks)
    change = draw(first, generator)
    if change.what not in KINDS or any(each in change.label for each in NO_CHANGES):
        raise Unusable
    changed = [first] if generator.random() < 0.25 else ranks
    nodes = made(change, changed)
    for kind in kinds:
        try:
            check_graph(kind.graph)
        except (MspcError, AssertionError) as error:
            raise Unusable from error
    graph = changed[0].graphs[0]
    near = {node.attrs[PLACE] for node in nodes if PLACE in node.attrs} | _next(graph, nodes)
    together = merged([RankKind(kind.ranks, kind.graph) for kind in kinds])
    try:
        found = prove(programs.one, together, programs.values, 0, None, programs.batch)
    except Unfit as error:
        raise Unusable from error
    if found.same:
        return Planted(change, False)
    told = _told(found)
    places = {node.attrs.get(PLACE) for node in told}
    return Planted(change, True, "there" if places & near else "elsewhere", ", ".join(node.label for node in told))


def _next(graph: Graph, nodes: Sequence[Node]) -> set[object]:
    """The numbers of the next readers of changed nodes whose values are compared: buffers of FSDP and other values that
    only move elements are not."""
    readers = Readers(graph)
    found: set[object] = set()
    waiting: list[Value] = [*nodes]
    seen: set[Value] = set()
    for value in waiting:
        for reader in readers.of(value):
            if isinstance(reader, Node) and reader not in seen:
                seen.add(reader)
                found.add(reader.attrs.get(PLACE))
                if isinstance(reader.op, MOVES) or reader.op.reshapes:  # type: ignore[union-attr]  # operators
                    waiting.append(reader)
                elif isinstance(reader.type, TupleType):
                    found |= {each.attrs.get(PLACE) for each in readers.of(reader) if isinstance(each, Node)}
    return found


def _told(found: ScaleProof) -> list[Node]:
    nodes = [each.node for each in (found.odd, found.first) if each is not None]
    return nodes or [node for _, node in found.stuck] + ([] if found.failed is None else [found.failed[1]])


def main(arguments: Sequence[str]) -> int:
    ranks, one, seed, count = arguments
    generator = random.Random(int(seed))
    counts: Counter[str] = Counter()
    programs = programs_of_captures(Path(ranks), Path(one))
    while counts.total() < int(count):
        try:
            found = planted(programs, generator)
        except Unusable:
            continue
        key = found.where if found.found else "not found"
        counts[key] += 1
        if key != "there":
            print(f"{key}: {found.change.what}: {found.change.label}: {found.told}", flush=True)
    print(dict(counts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
