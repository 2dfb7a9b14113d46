"""Single edits planted in captured steps: `python -m tests.verify.planted_in_captures --count 500`.

An edit is drawn (`scale/changes_of_programs.py`) on the ranks' programs of one of some random steps (`drawn_plans.py`),
for all ranks or for one; or a wait for a collective is left out. The proof has to find it, or the edited programs
compute the same numbers. Prints each one that is missed or told at another place, and a table at the end; exits with 1
if one is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mspc.commands.verify_capture import VIEWS, WAITS, CapturedPrograms, check_waits
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TupleType
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.collectives import AllGather, ReduceScatter
from mspc.ops.control.structural import StopGradient, TupleGetItem
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.readers.pytorch.captured import CapturedStep, read_rank
from mspc.readers.pytorch.exported_program import ExportedNode, NodeResult, names_in
from mspc.verify.scale.proof import ScaleProof, prove, small_program
from mspc.verify.scale.rank_kinds import Divided, RankKind, divided, merged
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.small_programs import Unfit
from tests.verify.drawn_captures import AT_ONCE, captured, programs
from tests.verify.drawn_plans import drawn
from tests.verify.scale.changes_of_nodes import PLACE, Change, Unusable
from tests.verify.scale.changes_of_programs import STALE, draw, made, numbered, rank_of

KINDS = ("collective left out", "collective doubled", "collective of another kind", "collective added", "group",
         "constant", "offset", "operand", "slices exchanged", STALE)  # fmt: skip
WAIT = "missing wait"

MOVES = (AllGather, Cast, Concat, ReduceScatter, Split, StopGradient, StridedSlice, Transpose, TupleGetItem)
NO_CHANGES = ("AllReduce of max", "AllReduce: slices", "IsFinite: operand")
"""A maximum of equal numbers, another order of the terms of a sum, and a question with one answer for all values."""


@dataclass(frozen=True)
class Planted:
    """A change and what is said of it. where: "there" at the changed node or its next reader, "elsewhere", or ""."""

    change: Change
    found: bool
    where: str = ""
    told: str = ""


def planted(programs: CapturedPrograms, compared: Collection[object], generator: random.Random) -> Planted:
    """Plant a change and prove. compared: see `compared_in`. Raises Unusable."""
    for kind in programs.kinds:
        numbered(kind.graph)
    base = generator.choice(programs.kinds)
    change = draw(rank_of(base.ranks[0], base.graph), generator, KINDS)
    if any(each in change.label for each in NO_CHANGES):
        raise Unusable
    kinds = [part for kind in programs.kinds for part in divided([kind], Divided(kind, [[r] for r in kind.ranks]))]
    ranks = [rank_of(kind.ranks[0], kind.graph) for kind in kinds]
    alone = next(rank for rank in ranks if rank.rank == base.ranks[0])
    changed = [alone] if generator.random() < 0.25 else ranks
    nodes = made(change, changed)
    for kind in kinds:
        _check(kind.graph)
    graph = changed[0].graphs[0]
    near = {node.attrs[PLACE] for node in nodes if PLACE in node.attrs} | _next(graph, nodes, compared)
    if change.what == "collective left out":  # it is missing after the node that makes its operand
        near |= {value.attrs.get(PLACE) for value in nodes[0].inputs if isinstance(value, Node)}
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


def _check(graph: Graph) -> None:
    """Raise Unusable if a graph is none. Layouts of its parameters are those of tensors of all ranks."""
    layouts = {parameter: parameter.layout for parameter in graph.parameters}
    try:
        for parameter in layouts:
            parameter.layout = None
        check_graph(graph)
    except (MspcError, AssertionError) as error:
        raise Unusable from error
    finally:
        for parameter, layout in layouts.items():
            parameter.layout = layout


def compared_in(programs: CapturedPrograms) -> set[object]:
    """Return the numbers of nodes whose values are found among those of one device in the right step."""
    for kind in programs.kinds:
        numbered(kind.graph)
    graphs = [programs.one, *(kind.graph for kind in programs.kinds)]
    parameters = [value for graph in graphs for value in graph.parameters]  # they keep their sizes
    program = small_program(programs.one, programs.kinds, programs.values, 0, None, parameters, batch=programs.batch)
    program.compare()
    watch = program.watched()
    assert watch is not None
    return {node.attrs[PLACE] for node in watch.right}


def _next(graph: Graph, nodes: Sequence[Node], compared: Collection[object]) -> set[object]:
    """Return the numbers of the next readers of changed nodes whose values are compared: buffers of FSDP and DDP are
    not, nor are values that are divided otherwise than those of one device."""
    readers = Readers(graph)
    found: set[object] = set()
    waiting: list[Value] = [*nodes]
    seen: set[Value] = set()
    for value in waiting:
        for reader in readers.of(value):
            if isinstance(reader, Node) and reader not in seen:
                seen.add(reader)
                found.add(reader.attrs.get(PLACE))
                if reader.attrs.get(PLACE) not in compared or isinstance(reader.op, MOVES):
                    waiting.append(reader)
                elif isinstance(reader.type, TupleType):
                    found |= {each.attrs.get(PLACE) for each in readers.of(reader) if isinstance(each, Node)}
    return found


def _told(found: ScaleProof) -> list[Node]:
    nodes = [each.node for each in (found.odd, found.first) if each is not None]
    return nodes or [node for _, node in found.stuck] + ([] if found.failed is None else [found.failed[1]])


def without_wait(step: CapturedStep, generator: random.Random) -> Planted:
    """Leave a wait out. Raises Unusable if there is none, or nobody computes with its result."""
    nodes = step.program.graph.nodes
    waits = [node for node in nodes if node.target in WAITS]
    made = {name for node in waits for name in node.results}
    waits = [node for node in waits if made.isdisjoint(names_of(node))]
    if not waits:
        raise Unusable
    wait = generator.choice(waits)
    ((_, read),) = wait.arguments
    result = NodeResult(wait.results[0])

    def other(value: Any) -> Any:
        return read if value == result else tuple(map(other, value)) if isinstance(value, tuple) else value

    changed = tuple(
        replace(node, arguments=tuple((name, other(value)) for name, value in node.arguments))
        for node in nodes if node is not wait
    )  # fmt: skip
    readers = [node for node in nodes if result.name in names_of(node)]
    for node in readers:
        if node.target in VIEWS:
            readers += [each for each in nodes if not names_of(each).isdisjoint(node.results)]
    graph = replace(step.program.graph, nodes=changed)
    change = Change(WAIT, f"{wait.results[0]}", lambda rank: ())
    try:
        check_waits(replace(step, program=replace(step.program, graph=graph)))
    except ExecutionError as error:
        there = any(node.frames == error.frames for node in readers)
        return Planted(change, True, "there" if there else "elsewhere", error.message)
    if all(node.target in (*VIEWS, *WAITS) for node in readers):
        raise Unusable
    return Planted(change, False)


def names_of(node: ExportedNode) -> set[str]:
    return {name for _, value in node.arguments for name in names_in(value)}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=24)
    given = parser.parse_args(words)
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for first in range(0, given.programs, AT_ONCE):
            captured(range(first, min(first + AT_ONCE, given.programs)), folder)
        for number in range(given.count):
            found = one_of(folder, number % given.programs, random.Random(f"{given.seed} {number}"))
            key = found.where if found.found else "NOT FOUND"
            counts.setdefault(found.change.what, Counter())[key] += 1
            if key != "there":
                program = drawn(number % given.programs)
                print(f"{number} {key}: {found.change.what}: {found.change.label}: {found.told}: {program}", flush=True)
    for what, each in sorted(counts.items()):
        print(f"{what:28} {dict(each)}")
    return int(any(each["NOT FOUND"] for each in counts.values()))


def one_of(folder: Path, seed: int, generator: random.Random) -> Planted:
    """Plant an edit in one of the captured steps."""
    given = programs(folder, seed)
    compared = compared_in(given)
    while True:
        try:
            if generator.random() < 1 / (len(KINDS) + 1):
                return without_wait(read_rank(folder / str(seed) / "ranks", 0), generator)
            return planted(given, compared, generator)
        except Unusable:
            continue


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
