"""`mspc verify --scale` of networks that are right: `python -m tests.verify.scale.networks_that_are_right SEED COUNT`.

Every source gives COUNT networks from SEED: such as other tests draw and hold to one device (in stages under every
schedule, experts, sharded sequences, control flow, rows of every rank, public networks, `tests/networks.py`). Each is
to be equal.

Prints a line for each network that is not equal, and counts; exits with 1 if there is one. `--source SOURCE` takes one
source, `--only SEED` one network.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mspc.commands.verify import of_script
from mspc.commands.verify_folder import give_layouts
from mspc.compiler.config import Config, Fed
from mspc.compiler.driver import DumpPoint, TracedCall, compile_traced
from mspc.compiler.frontend.trace import Traced
from mspc.engine.script import ScriptError
from mspc.ops.op import load_operators
from mspc.verify.same_values import MARK, number_operators
from mspc.verify.scale.proof import ScaleProof, prove
from mspc.verify.scale.rank_kinds import kinds_of
from mspc.verify.scale.small_programs import Unfit
from tests.compiled_scripts import QUIET, CompileOptions
from tests.graphs import Layout, MspcError
from tests.networks import RandomNetwork, usable
from tests.verify.scale.written_networks import WRITTEN

EQUAL, DIFFERS, REFUSED, FAILS = "equal", "differs", "is refused", "fails"
Proved = Callable[[], ScaleProof]


@cache
def _names() -> tuple[str, ...]:
    """Operators of random networks but those whose integers have to fit together, as where experts' rows end: inputs
    that are made for a small program do not."""
    return tuple(n for n in usable() if not n.startswith(("Expert", "Grouped")) and "Varlen" not in n)


@dataclass
class Outcome:
    """The result of a network."""

    kind: str
    message: str = ""
    values: int = 0


def outcome_of(proved: Proved) -> Outcome:
    """The message on a network that is right."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = proved()
    except Unfit as error:
        return Outcome(FAILS, f"cannot be made smaller: {error.reason}")
    except ScriptError as error:
        return Outcome(REFUSED, f"the script fails: {error.render().strip().splitlines()[-1]}")
    except MspcError as error:
        return Outcome(REFUSED, error.message)
    except Exception as error:  # whatever else is raised is a defect
        return Outcome(FAILS, f"{type(error).__name__}: {error} {_place(error)}")
    if found.whole:
        return Outcome(DIFFERS, "but for its own sizes")
    if found.same:
        return Outcome(EQUAL, values=len(found.rows))
    return Outcome(DIFFERS, _reason(found))


def _place(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})" if at is not None else ""


def _reason(found: ScaleProof) -> str:
    if found.stuck:
        return f"ranks wait: {', '.join(node.label for _, node in found.stuck)}"
    if found.failed is not None:
        return f"{found.failed[1].label} cannot be computed: {found.failed[2]}"
    wrong = [row for row in found.rows if not row.same]
    first = "" if found.first is None else f", first {found.first.node.label} {found.first.equals}"
    worst = max(wrong, key=lambda row: row.apart)
    away = f"{worst.what} {worst.name} by {worst.apart:.1e} (allowed {worst.allowed:.1e})"
    return f"{len(wrong)} of {len(found.rows)} values, {away}{first}"


# Networks


def of_text(text: str, ranks: int) -> Proved:
    """The proof of a script that is written for it."""

    def proved() -> ScaleProof:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.py"
            path.write_text(text, encoding="utf-8")
            return of_script(str(path), CompileOptions(ranks=ranks, loudness=QUIET)).proved(0)

    return proved


def of_graph(seed: int) -> Proved:
    """The proof of a network of `tests/networks.py`."""

    def proved() -> ScaleProof:
        network = RandomNetwork(seed, _names())
        many = compile_traced(_call(network, Config(mode="semi_auto_parallel", ranks=network.ranks)), _numbered)
        alone = compile_traced(_call(RandomNetwork(seed, _names()), Config(mode="stand_alone", ranks=1)), _numbered)
        kinds = kinds_of(many.rank_graphs, range(network.ranks))
        for kind in kinds:
            give_layouts(kind.graph, many.graph)
        held = [p for p in alone.graph.parameters if p.kind != "input" and p.name not in alone.traced.constants]
        values = [_Given(p.name, network.feeds[p.name]) for p in held]
        constants = {p.name for p in alone.graph.parameters} - {p.name for p in held}
        values += [_Given(name, alone.traced.constants[name]) for name in constants if name in alone.traced.constants]
        return prove(alone.graph, kinds, values, 0)

    return proved


def _numbered(stage: DumpPoint) -> None:
    """Let operators of both programs be known by their numbers, as those of a script are."""
    if stage.name == "grad":
        number_operators(stage.graph, MARK)


@dataclass(frozen=True)
class _Given:
    """A first value that a network has."""

    name: str
    array: Any

    def make(self) -> Any:
        return self.array


def _call(network: RandomNetwork, config: Config) -> TracedCall:
    inputs = [p for p in network.graph.parameters if p.kind == "input"]
    fed = [Fed(p.tensor_type, p.tensor_type, p.layout) for p in inputs if isinstance(p.layout, Layout)]
    network.graph.attrs = {}
    return TracedCall(config, Traced(network.graph, {}, {}, None), fed)


SOURCES = (*WRITTEN, "networks")


def drawn(source: str, seed: int) -> Proved:
    """The proof of a network that is drawn."""
    return of_text(*WRITTEN[source](seed)) if source in WRITTEN else of_graph(seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="mspc verify --scale of networks that are right.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--source", choices=SOURCES, action="append")
    parser.add_argument("--only", type=int, help="the seed of one network")
    given = parser.parse_args(arguments)
    load_operators()
    alarms = 0
    seeds = range(given.seed, given.seed + given.count) if given.only is None else [given.only]
    for source in given.source or SOURCES:
        counts, begin = Counter[str](), time.perf_counter()
        for seed in seeds:
            outcome = outcome_of(drawn(source, seed))
            counts[outcome.kind] += 1
            if outcome.kind != EQUAL:
                print(f"{source} {seed} {outcome.kind}: {outcome.message}"[:400], flush=True)
                alarms += outcome.kind in (DIFFERS, FAILS)
        print(f"{source}: {_counted(counts)}, {time.perf_counter() - begin:.1f} s", flush=True)
    return int(alarms > 0)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in (EQUAL, DIFFERS, REFUSED, FAILS) if counts[kind]) or "none"


if __name__ == "__main__":
    sys.exit(main())
