"""Single edits planted in captured steps: `python -m tests.verify.planted_in_captures --count 500 --jobs 16`.

An edit is drawn (`scale/changes_of_programs.py`) on the ranks' programs of one of some random steps (`drawn_plans.py`),
for all ranks or for one; or a wait for a collective is left out. Edited programs that compute the same numbers are
drawn again; the proof has to find all others. Prints each edit that is missed or located elsewhere, and a table at the
end, of JSON with `--json`; exits with 1 if one is missed.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mspc.commands.verify_capture import VIEWS, WAITS, ToProve, check_waits
from mspc.ops.control.structural import StopGradient, TupleGetItem
from mspc.readers.pytorch.captured import CapturedStep, read_rank
from mspc.readers.pytorch.exported_program import ExportedNode, NodeResult, names_in
from mspc.verify.scale.execution import run_step
from mspc.verify.scale.proof import ScaleProof, prove, small_program
from mspc.verify.scale.rank_kinds import Divided, RankKind, divided, flat, merged
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.small_programs import Unfit
from tests.graphs import ExecutionError, Graph, MspcError, Node, Op, TupleType, Value, check_graph
from tests.mutation.processes import forked
from tests.operators import AllGather, Cast, Concat, ReduceScatter, Split, StridedSlice, Transpose
from tests.verify.drawn_captures import kept_captures, programs
from tests.verify.drawn_plans import drawn
from tests.verify.scale.changes_of_nodes import PLACE, Unusable
from tests.verify.scale.changes_of_programs import STALE, draw, made, numbered, rank_of

KINDS = ("collective left out", "collective doubled", "collective of another kind", "collective added", "group",
         "constant", "offset", "operand", "slices exchanged", STALE)  # fmt: skip
WAIT = "missing wait"

MOVES = (AllGather, Cast, Concat, ReduceScatter, Split, StopGradient, StridedSlice, Transpose, TupleGetItem)
NO_CHANGES = ("AllReduce of max", "AllReduce: slices", "IsFinite: operand")
"""A maximum of equal numbers, another order of the terms of a sum, and a question with one answer for all values."""


TRIES = 40
"""Draws of one kind of edits, after which another kind is drawn: a step on one mesh dimension has no other groups."""
EACH = 8
"""Edits of one process."""


class Planted(NamedTuple):
    """An edit, and whether and where it is reported. what: its kind. where: "located" at the changed node or its next
    reader, "elsewhere", or "not found"."""

    what: str
    label: str
    where: str
    told: str = ""


def planted(programs: ToProve, compared: Collection[object], generator: random.Random, what: str) -> Planted:
    """Plant a change of a kind and prove. compared: see `compared_in`. Raises Unusable."""
    for kind in programs.kinds:
        numbered(kind.graph)
    base = generator.choice(programs.kinds)
    change = draw(rank_of(base.ranks[0], base.graph), generator, (what,))
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
        near |= _moved(nodes[0].inputs[0])
    together = merged([RankKind(kind.ranks, kind.graph) for kind in kinds])
    try:
        found = prove(programs.one, together, programs.values, 0, None, programs.batch)
    except Unfit as error:
        raise Unusable from error
    if found.same:
        if same_numbers(numbers_of(programs, programs.kinds), numbers_of(programs, together)):
            raise Unusable
        return Planted(what, change.label, "not found")
    told = _told(found)
    places = {node.attrs.get(PLACE) for node in told}
    words = ", ".join(node.label for node in told) + (f": {found.first.equals}" if found.first is not None else "")
    return Planted(what, change.label, "located" if places & near else "elsewhere", words)


Numbers = Mapping[tuple[int, int], Sequence[Any]]


def numbers_of(programs: ToProve, kinds: Sequence[RankKind]) -> Numbers:
    """Return the results and stored values of two steps, by rank and step."""
    graphs = [programs.one, *(kind.graph for kind in kinds)]
    parameters = [value for graph in graphs for value in graph.parameters]
    program = small_program(programs.one, kinds, programs.values, 0, None, parameters, batch=programs.batch)
    states = program.states()
    found: dict[tuple[int, int], list[Any]] = {}
    for step in range(2):
        for state, results in zip(states, run_step(states, program.feeds(step), step + 1), strict=True):
            for array in (*results, *state.stored.values()):
                for rank, own in zip(state.kind.ranks, flat(array, state.kind.mesh), strict=True):
                    found.setdefault((rank, step), []).append(own.copy())
    return found


def same_numbers(one: Numbers, other: Numbers) -> bool:
    return all(
        a.shape == b.shape and np.allclose(a, b, 1e-9, 1e-12, equal_nan=True)
        for key, arrays in one.items()
        for a, b in zip(arrays, other[key], strict=True)
    )


def _check(graph: Graph) -> None:
    """Raise Unusable if a graph is invalid. Layouts of parameters and gradients are those of tensors of all ranks."""
    layouts = {value: value.layout for value in graph.values()}
    try:
        for value in layouts:
            value.layout = None
        check_graph(graph)
    except (MspcError, AssertionError) as error:
        raise Unusable from error
    finally:
        for value, layout in layouts.items():
            value.layout = layout


def compared_in(programs: ToProve) -> set[object]:
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
                if reader.attrs.get(PLACE) not in compared or _moves(reader):
                    waiting.append(reader)
                elif isinstance(reader.type, TupleType):
                    found |= {each.attrs.get(PLACE) for each in readers.of(reader) if isinstance(each, Node)}
    return found


def _moves(node: Node) -> bool:
    return isinstance(node.op, MOVES) or (isinstance(node.op, Op) and node.op.reshapes)


def _moved(value: Value) -> set[object]:
    """Return the numbers of the node that makes a value, and of those that make it before it is only moved."""
    found: set[object] = set()
    while isinstance(value, Node):
        found.add(value.attrs.get(PLACE))
        if not _moves(value) or not value.inputs:
            break
        value = value.inputs[0]
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
    try:
        check_waits(replace(step, program=replace(step.program, graph=graph)))
    except ExecutionError as error:
        there = any(node.frames == error.frames for node in readers)
        return Planted(WAIT, result.name, "located" if there else "elsewhere", error.message)
    if all(node.target in (*VIEWS, *WAITS) for node in readers):
        raise Unusable
    return Planted(WAIT, result.name, "not found")


def names_of(node: ExportedNode) -> set[str]:
    return {name for _, value in node.arguments for name in names_in(value)}


def one_of(
    given: ToProve, step: CapturedStep, compared: Collection[object], seed: str, what: str = ""
) -> Planted:
    """Plant an edit in a captured step. Its kind, if not given, is drawn first, so that all are as frequent."""
    generator = random.Random(seed)
    while True:
        kind = what or generator.choice((*KINDS, WAIT))
        for _ in range(TRIES):
            try:
                return without_wait(step, generator) if kind == WAIT else planted(given, compared, generator, kind)
            except Unusable:
                continue


def edits_of(folder: Path, program: int, seeds: Sequence[tuple[str, str]]) -> list[Planted]:
    """Plant edits, each (seed, kind or ""), in one of the captured steps, which is read once."""
    given, step = programs(folder, program), read_rank(folder / str(program) / "ranks", 0)
    compared = compared_in(given)
    return [one_of(given, step, compared, *each) for each in seeds]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--captures", type=Path, help="a folder that keeps the captured steps for the next run")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    given = parser.parse_args(words)
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = given.captures or Path(name)
        kept_captures(range(given.programs), folder, given.jobs)
        parts: list[tuple[int, list[tuple[str, str]]]] = []
        for program in range(given.programs):
            seeds = [(f"{given.seed} {number}", "") for number in range(program, given.count, given.programs)]
            parts += [(program, seeds[first : first + EACH]) for first in range(0, len(seeds), EACH)]
        calls = [partial(edits_of, folder, program, seeds) for program, seeds in parts]
        for number, found in forked(calls, given.jobs):
            program, seeds = parts[number]
            found = found if isinstance(found, list) else [["no answer", "", "not found", str(found)]]
            for (seed, _), (what, label, where, told) in zip(seeds, found, strict=False):
                counts.setdefault(what, Counter())[where] += 1
                if where != "located":
                    print(f"{seed}: {where}: {what}: {label}: {told}: {drawn(program)}", file=sys.stderr, flush=True)
    total = sum(counts.values(), Counter[str]())
    rows = {**dict(sorted(counts.items())), "all": total}
    if given.json:
        print(json.dumps(rows, indent=1))
    for what, each in rows.items() if not given.json else ():
        missed, elsewhere, share = each["not found"], each["elsewhere"], 100 * each["located"] / each.total()
        print(f"{what:27}{each.total():4} edits,{missed:3} not found,{elsewhere:3} elsewhere,{share:6.1f} % located")
    return int(bool(total["not found"]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
