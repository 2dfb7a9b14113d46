"""Changes planted in the ranks of scripts and `.pt2` networks: `python -m tests.verify.planted_in_scripts SEED COUNT`.

A change (`scale/changes_of_programs.py`) is made in the programs that ranks execute, or in those before operators are
fused. `mspc verify` has to report it at the changed node or at its next reader whose value one device has. Prints each
change that is reported elsewhere, and counts at the end; exits with 1 if less than 95 % are reported at their place.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mspc.commands.options import ImportOptions
from mspc.commands.verify import compared_program, compiled_call, of_call
from mspc.commands.verify_folder import give_layouts, located
from mspc.compiler.rank_graphs import copied
from mspc.verify.same_values import MARK
from mspc.verify.scale.blame import odd_one
from mspc.verify.scale.rank_kinds import RankKind, merged
from mspc.verify.scale.readers import Readers
from mspc.verify.verification import Verified, verified
from tests.compiled_scripts import QUIET, CompileOptions
from tests.graphs import ExecutionError, Graph, MspcError, Node, check_graph
from tests.planted_networks import FOLDED, LOOPS, NETWORK, RECOMPUTED
from tests.verify.scale.changes_of_nodes import PLACE, Change, Unusable, meets
from tests.verify.scale.changes_of_programs import draw, made, numbered, rank_of
from tests.verify.scale.planted_changes import NETWORKS, PLANS, _limited, _near

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TEXTS = {
    "network": (NETWORK, 8), "recomputed": (RECOMPUTED, 4), "loops": (LOOPS, 4),
    "folded": (FOLDED.replace("range(3)", "range(12)"), 4),
}  # fmt: skip


class Script:
    """A script or an imported network, compiled for its ranks."""

    def __init__(self, name: str, folder: Path) -> None:
        words: tuple[str, ...] = ()
        imported = None
        if name in PLANS:
            file, ranks, words = PLANS[name]
            target = NETWORKS / file
        elif name in TEXTS:
            text, ranks = TEXTS[name]
            target = folder / f"{name}.py"
            target.write_text(text)
        else:
            target, ranks = SAMPLES / "pytorch" / "language_model.pt2", 4
            imported = ImportOptions("cross_entropy", "adamw:lr=0.01")
        sys.argv = [str(target), *words]
        options = CompileOptions(ranks=ranks, script_arguments=words, loudness=QUIET)
        if imported is not None:
            options = replace(options, imported=imported)
        self.name = name
        found, many = compiled_call(str(target), options)
        self.base = compared_program(found.captured, many, 0, inlines=False)
        self.given = of_call(found.captured, many, self.base)
        self.many = many.graph
        self.own = self.given.own is not None

    @cached_property
    def compiled(self) -> dict[bool, list[Graph]]:
        return {is_plain: self._graphs(is_plain) for is_plain in (False, True)}

    def _graphs(self, is_plain: bool) -> list[Graph]:
        of = self.base.plain_of if is_plain else self.base.graph_of
        graphs = [copied(of(rank), rank, ()) for rank in range(self.base.ranks)]
        for graph in graphs:
            numbered(graph)
        return graphs

    def graphs(self, is_plain: bool) -> list[Graph]:
        return [copied(graph, rank, ()) for rank, graph in enumerate(self.compiled[is_plain])]

    def kinds(self, graphs: Sequence[Graph]) -> list[RankKind]:
        if not self.own:
            for graph in graphs:
                give_layouts(graph, self.many)
        return merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])

    @cached_property
    def compared(self) -> set[tuple[int, str]]:
        """The numbers of the nodes of programs that have a value of one device."""
        from mspc.verify.scale.proof import small_program

        found: set[tuple[int, str]] = set()
        for is_plain in (False, True):
            given = self.given
            program = small_program(given.one, self.kinds(self.graphs(is_plain)), given.values, 0, given.own)
            watch = program.watched()
            right = {(node.attrs[PLACE], node.label) for node in watch.right} if watch is not None else set()
            found |= {(is_plain, *each) for each in right}
        return found

    def right(self, is_plain: bool) -> set[tuple[int, str]]:
        return {each[1:] for each in self.compared if each[0] == is_plain}

    def said(self, graphs: list[Graph], is_plain: bool) -> Verified:
        program = replace(self.base, graph_of=graphs.__getitem__)
        if is_plain:
            program = replace(program, plain_of=graphs.__getitem__)
        return located(lambda: verified(program, 0), lambda: replace(self.given, kinds=self.kinds(graphs)), 0)


@dataclass
class Outcome:
    verdict: str
    change: Change
    ranks: tuple[int, ...]
    is_plain: bool
    told: str = ""
    seconds: float = 0.0


def planted(script: Script, generator: random.Random) -> Outcome:
    while True:
        is_plain = generator.random() < 0.5
        compiled = script.compiled[is_plain]
        first = generator.randrange(len(compiled))
        alone = generator.random() < 0.3
        kind = next(k.ranks for k in merged([RankKind((r,), g) for r, g in enumerate(script.graphs(is_plain))])
                    if first in k.ranks)  # fmt: skip
        ranks = (first,) if alone else kind
        graphs = script.graphs(is_plain)
        of = [rank_of(rank, graphs[rank]) for rank in ranks]
        try:
            change = draw(of[0], generator)
            nodes = made(change, of)
            for rank in ranks:
                check_graph(graphs[rank])
        except (Unusable, MspcError, AssertionError):
            continue
        return judged(script, change, ranks, graphs, nodes, is_plain)


def judged(
    script: Script, change: Change, ranks: tuple[int, ...], graphs: list[Graph], nodes: Sequence[Node], is_plain: bool
) -> Outcome:
    compared = script.right(is_plain)
    near = _near(graphs, ranks[0], nodes, compared)
    before = script.compiled[is_plain]
    places = {node.attrs[PLACE]: node for each in before[ranks[0]].graphs() for node in each.nodes}
    if "left out" in change.what and nodes[0].attrs.get(PLACE) in places:
        near |= _near(before, ranks[0], [places[nodes[0].attrs[PLACE]]], compared)
    marks = {_mark(places[place]) for place in near if place in places} - {None}
    near |= _met(script, graphs, ranks[0], near)
    start = time.perf_counter()
    try:
        with _limited():
            found = script.said(graphs, is_plain)
    except (MspcError, ExecutionError) as error:
        own = [n for g in graphs for each in g.graphs() for n in each.nodes if n.attrs.get(PLACE) in near]
        named = any(n.label in error.message or (n.frames and n.frames == error.frames) for n in own)
        odd = odd_one(script.kinds(graphs))
        named |= odd is not None and error.notes[:1] == (odd.words,) and odd.node in own
        verdict = "refused there" if named else "refused ELSEWHERE"
        return Outcome(verdict, change, ranks, is_plain, error.message, time.perf_counter() - start)
    except TimeoutError:
        return Outcome("HANGS", change, ranks, is_plain)
    seconds = time.perf_counter() - start
    if all(row.same for row in found.rows):
        return Outcome("equal", change, ranks, is_plain, "", seconds)
    if found.first is None:
        return Outcome("NOWHERE", change, ranks, is_plain, found.note, seconds)
    node = found.first.node
    at = node.attrs.get(PLACE) in near or _mark(node) in marks  # the numbers of other kinds of ranks are others
    was = places.get(nodes[0].attrs.get(PLACE, -1))
    at = at or (was is not None and bool(was.op.mutates) and PLACE not in node.attrs and node.op.name == was.op.name)
    said = f"{node.label} ({node.attrs.get(PLACE)}, {node.attrs.get(MARK)}), not {sorted(near)}; {found.located}"
    return Outcome("there" if at else "ELSEWHERE", change, ranks, is_plain, said, seconds)


def _mark(node: Node) -> Any:
    mark = node.attrs.get(MARK)
    return tuple(mark) if isinstance(mark, list) else mark


def _met(script: Script, graphs: Sequence[Graph], rank: int, near: set[int]) -> set[int]:
    """Return the numbers, in programs of other kinds, of the readers of collectives that a near one meets."""
    nodes = [n for each in graphs[rank].graphs() for n in each.nodes if n.attrs.get(PLACE) in near and meets(n)]
    found: set[int] = set()
    for kind in (each for each in script.kinds(list(graphs)) if each.ranks[0] != rank):
        own = [n for each in kind.graph.graphs() for n in each.nodes]
        readers, known = Readers(kind.graph), {n for n in own if _mark(n) is not None}
        for node in (n for n in own if any(_is_met(n, other) for other in nodes)):
            found |= {each.attrs[PLACE] for each in (node, *readers.next(node, known))}
    return found


def _is_met(node: Node, other: Node) -> bool:
    key = other.op.name, other.scope, other.frames, other.phase
    return meets(node) and (node.op.name, node.scope, node.frames, node.phase) == key


def main(seed: int, count: int, names: Sequence[str]) -> int:
    counts: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [*PLANS, *TEXTS, "pt2"]:
            script = Script(name, Path(folder))
            start = time.perf_counter()
            right = verified(script.base, 0)
            print(f"{name}: right: {time.perf_counter() - start:.1f} s, "
                  f"{'equal' if all(row.same for row in right.rows) else 'DIFFERS'}", flush=True)  # fmt: skip
            for number in range(seed, seed + count):
                found = planted(script, random.Random(number))
                counts[found.verdict] += 1
                if found.verdict in ("NOWHERE", "ELSEWHERE", "HANGS", "refused ELSEWHERE"):
                    wrong[found.change.what] += 1
                    where = "before fusion" if found.is_plain else "executed"
                    print(f"{number} {name} {where}: {found.verdict} ({found.seconds:.1f} s): {found.change.what} at "
                          f"{found.change.label} on ranks {found.ranks}: {found.told}", flush=True)  # fmt: skip
    print(dict(counts), dict(wrong))
    there, located = counts["there"] + counts["refused there"], sum(counts.values()) - counts["equal"]
    return int(there < 0.95 * located)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("names", nargs="*", metavar="NETWORK")
    given = parser.parse_args()
    sys.exit(main(given.seed, given.count, given.names))
