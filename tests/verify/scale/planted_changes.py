"""Changes planted in what ranks execute: `python -m tests.verify.scale.planted_changes SEED COUNT`.

COUNT times a change is drawn (`changes_of_programs.py`) for all ranks of a kind, or for one, of one of three plans.
`mspc verify --scale` has to find it, or the comparison at full size (`mspc verify` of the folder) has to show that it
changes nothing. Prints a line for each change that is missed, told at another place or that ends in an exception, and
counts at the end; exits with 1 where one is missed or ends so. A change is told at its place where the node that is
told is the changed one, or the next reader whose value is compared with one device's.
"""

import argparse
import contextlib
import io
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mspc.commands.verify_folder import checked_program, give_layouts, ranks_together, verify_folder
from mspc.compiler.in_memory import read_network
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.runtime.program import PROGRAM, load_slices
from mspc.verify.scale.proof import ScaleProof, prove, small_program
from mspc.verify.scale.rank_kinds import RankKind, merged
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.small_programs import Unfit
from mspc.verify.verification import plain_graph
from tests.compiled_scripts import NETWORKS, QUIET, CompileOptions, compile_target
from tests.graphs import Constant, ExecutionError, Graph, MspcError, Node, Parameter, Value, check_graph, print_graph
from tests.verify.scale.changes_of_nodes import PLACE, Change, Unusable
from tests.verify.scale.changes_of_programs import draw, made, numbered, rank_of

PLANS = {
    "llama": ("llama.py", 4, ("1", "32", "4", "48", "64", "2", "2", "2", "16")),
    "stages": ("staged_llama.py", 8, ("2", "16", "4", "2", "24", "16", "2", "2", "2", "2", "8")),
    "experts": ("experts.py", 4, ("small-mixtral", "tables", "2")),
}
MESSAGES = (SendToStage, ReceiveFromStage)
"""Who reads what is sent is the stage that waits for it."""
LONGEST = 120
"""Seconds after which a comparison is thought to hang."""


class Plan:
    """A compiled plan."""

    def __init__(self, name: str, folder: Path) -> None:
        script, ranks, words = PLANS[name]
        options = CompileOptions(ranks=ranks, out=folder, loudness=QUIET, weights=True, script_arguments=words)
        with contextlib.redirect_stdout(io.StringIO()):
            compile_target(str(NETWORKS / script), options)
        self.name, self.folder = name, folder
        self.program = checked_program(folder, CompileOptions(loudness=QUIET))
        self.texts = [self.program.text(rank) for rank in range(ranks)]
        network = read_network(self.program.network, PROGRAM)
        self.held = ranks_together(self.program, network)
        self.one = plain_graph(network)
        arrays = load_slices(self.program, self.one, 0)
        self.values = [SimpleNamespace(name=name, make=partial(arrays.get, name)) for name, array in arrays.items()]

    @cached_property
    def compiled(self) -> list[Graph]:
        """The same, which nobody changes."""
        return self.graphs()

    def graphs(self) -> list[Graph]:
        """Every rank's graph, as it is compiled, nodes numbered."""
        return pickle.loads(self._pickled)

    @cached_property
    def _pickled(self) -> bytes:
        found = [self.program.graph(rank, text, frames=True) for rank, text in enumerate(self.texts)]
        for graph in found:
            numbered(graph)
        return pickle.dumps(found)

    @cached_property
    def kinds(self) -> list[tuple[int, ...]]:
        """The ranks of every kind."""
        return [kind.ranks for kind in merged([RankKind((r,), g) for r, g in enumerate(self.graphs())])]

    @cached_property
    def compared(self) -> set[tuple[int, str]]:
        """The numbers of nodes whose values are found among those of one device, on the first rank of any kind."""
        kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(self.graphs())])
        watch = small_program(self.one, kinds, self.values, 0).watched()
        assert watch.first() is None
        return {(node.attrs[PLACE], node.label) for node in watch.right}

    def proof(self, graphs: Sequence[Graph]) -> ScaleProof:
        """Return the findings of `mspc verify --scale`."""
        for graph in graphs:
            give_layouts(graph, self.held)
        kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
        return prove(self.one, kinds, self.values, 0)

    def differs(self, graphs: Sequence[Graph]) -> str:
        """Return the message of the comparison at full size, "" if it finds nothing."""
        try:
            for rank, graph in enumerate(graphs):
                (self.folder / self.program.execute[rank]).write_text(print_graph(graph))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                verify_folder(self.folder, CompileOptions(loudness=QUIET), 0)
        except (MspcError, ExecutionError) as error:
            return error.message
        finally:
            for rank, text in enumerate(self.texts):
                (self.folder / self.program.execute[rank]).write_text(text)
        return ""


@dataclass(frozen=True)
class Outcome:
    """The result of a change. verdict: found, harmless, MISSED or CRASHED. told: where it is told, "" where it is not
    found. right: whether that is its place."""

    verdict: str
    change: Change
    ranks: tuple[int, ...]
    told: str = ""
    right: bool = True


def planted(plan: Plan, generator: random.Random) -> Outcome:
    """Draw changes until one can be made, and look for it."""
    while True:
        kind = generator.choice(plan.kinds)
        ranks = kind if generator.random() < 0.6 else (generator.choice(kind),)
        graphs = plan.graphs()
        of = [rank_of(rank, graphs[rank]) for rank in ranks]
        try:
            change = draw(of[0], generator)
            nodes = made(change, of)
            for rank in ranks:
                check_graph(graphs[rank])
        except (Unusable, MspcError):
            continue
        return judged(plan, change, ranks, graphs, nodes)


def judged(plan: Plan, change: Change, ranks: tuple[int, ...], graphs: list[Graph], nodes: Sequence[Node]) -> Outcome:
    """Return the verdicts of the comparisons on a change. nodes: that are changed, of the first of the ranks."""
    texts = [print_graph(graph) for graph in graphs]
    compiled = plan.compiled
    before = _by_place(compiled[ranks[0]])
    near = _near(graphs, ranks[0], [*nodes, *_handed_inside(before, nodes)], plan.compared)
    if change.what == "left out":  # who would read it
        near |= _near(compiled, ranks[0], [before[nodes[0].attrs[PLACE]]], plan.compared)
    try:
        with _limited():
            found = plan.proof(graphs)
    except (MspcError, Unfit) as error:
        return Outcome("found", change, ranks, f"refused: {error}")
    except Exception:
        return Outcome("CRASHED", change, ranks, traceback.format_exc(limit=-4))
    if not found.same:
        told = _told(found)
        sent = any(isinstance(node.op, MESSAGES) for node in nodes)
        left = before.get(nodes[0].attrs[PLACE]) if change.what == "left out" else None
        is_gone = left is not None and (left.op.mutates or left in compiled[ranks[0]].results)
        right = any(
            node.attrs.get(PLACE) in near
            or (sent and isinstance(node.op, MESSAGES))
            or (is_gone and PLACE not in node.attrs)  # one device's own, where no node of ranks does it
            for node in told
        )
        return Outcome("found", change, ranks, f"{_words(found)}, not at {near}", right)
    read = [plan.program.graph(rank, text) for rank, text in enumerate(texts)]
    try:
        with _limited():
            said = plan.differs(read)
    except Exception:
        said = traceback.format_exc(limit=-2)
    return Outcome("MISSED" if said else "harmless", change, ranks, said)


def _told(found: ScaleProof) -> list[Node]:
    if found.odd is not None:
        return [found.odd.node]
    told = [found.first.node] if found.first is not None else []
    if found.failed is not None:
        told += [found.failed[1], *found.others]
    return told + [node for _, node in found.stuck]


def _words(found: ScaleProof) -> str:
    told = ", ".join(f"{node.label} ({node.attrs.get(PLACE)})" for node in _told(found))
    how = "stuck" if found.stuck else f"failed: {found.failed[2]}" if found.failed else "differs"
    return f"{how} at {told or 'no node'}"


def _by_place(graph: Graph) -> dict[int, Node]:
    """The nodes of a program by their numbers."""
    return {node.attrs[PLACE]: node for node in graph.all_nodes()}


def _handed_inside(before: Mapping[int, Node], nodes: Sequence[Node]) -> list[Parameter]:
    """Return the values that calls and loops among these nodes hand to their bodies and that have changed: a body's
    node that reads it is the one that reads the changed operand."""
    found: list[Parameter] = []
    for node in (node for node in nodes if node.regions):
        types = [value.type for value in node.inputs]
        old = before[node.attrs[PLACE]].inputs
        for number, region in enumerate(node.regions):
            for value, was, places in zip(node.inputs, old, node.op.places(number, types), strict=True):  # type: ignore[union-attr]  # it has regions
                if _name(value) != _name(was):
                    found += [region.parameters[place] for place in places if place < len(region.parameters)]
    return found


def _name(value: Value) -> Hashable:
    """Return a key that is the same for a value in two copies of a program."""
    if isinstance(value, Constant):
        return value.value.tobytes()
    return value.attrs[PLACE] if isinstance(value, Node) else value.name


def _near(graphs: Sequence[Graph], rank: int, values: Sequence[Value], compared: set[tuple[int, str]]) -> set[int]:
    """The numbers of these nodes of a rank and of their next readers, past nodes whose values are not compared, and
    past messages."""
    found = {value.attrs[PLACE] for value in values if isinstance(value, Node)}
    waiting: list[tuple[int, Value]] = [(rank, value) for value in values]
    seen: set[Value] = set()
    while waiting:
        of, value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        readers = Readers(graphs[of])
        own = [each for graph in graphs[of].graphs() for each in graph.nodes]
        known = {each for each in own if (each.attrs[PLACE], each.label) in compared}
        for reader in (*[value] * isinstance(value, Node), *readers.next(value, known)):
            assert isinstance(reader, Node)
            found.add(reader.attrs[PLACE])
            if isinstance(reader.op, SendToStage):
                to = of + reader.op.distance
                waiting += [(to, each) for each in _received(graphs[to], reader.op)]
    return found


def _received(graph: Graph, sent: SendToStage) -> list[Node]:
    return [n for n in graph.all_nodes() if isinstance(n.op, ReceiveFromStage) and n.op.sr_tag == sent.sr_tag]


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Ends what hangs by TimeoutError."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main(seed: int, count: int, names: Sequence[str]) -> int:
    counts: Counter[str] = Counter()
    places: Counter[str] = Counter()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plans = [Plan(name, Path(folder) / name) for name in names or PLANS]
        for number in range(seed, seed + count):
            plan = plans[number % len(plans)]
            found = planted(plan, random.Random(number))
            counts[found.verdict] += 1
            places["told at the place" if found.right else "ELSEWHERE"] += found.verdict == "found"
            if found.verdict in ("MISSED", "CRASHED") or not found.right:
                verdict = found.verdict if found.right else "ELSEWHERE"
                print(f"{number} {plan.name}: {verdict}: {found.change.what} at {found.change.label} "
                      f"on ranks {found.ranks}: {found.told}", flush=True)  # fmt: skip
    told = ", ".join(f"{n} {what}" for what, n in (counts + places).items())
    print(f"{count} changes in {time.perf_counter() - start:.0f} s: {told}")
    return 1 if counts["MISSED"] or counts["CRASHED"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("names", nargs="*", metavar="PLAN")
    given = parser.parse_args()
    sys.exit(main(given.seed, given.count, given.names))
