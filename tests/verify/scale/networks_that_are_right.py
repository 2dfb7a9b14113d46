"""`mspc verify --scale` of networks that are right: `python -m tests.verify.scale.networks_that_are_right SEED COUNT`.

Every source gives COUNT networks from SEED: such as other tests draw and hold to one device (in stages under every
schedule, experts, sharded sequences, control flow, rows of every rank, public networks, `tests/networks.py`), and all
scripts of files and folders that are named. Each is to be equal. A network that is not is looked at by `mspc verify` at
its own sizes, which says whether it is a false alarm.

Prints a line for each network that is not equal, with `--kept` one for each dimension that stayed large, and counts;
exits with 1 where there is a false alarm. `--source SOURCE` takes one source, `--only SEED` one network, `--show`
prints its script. `--files PATH ...` takes scripts instead; a script says its ranks, or `--ranks` does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script, verify_target
from mspc.commands.verify_folder import give_layouts
from mspc.compiler.config import Config, Fed
from mspc.compiler.driver import DumpPoint, TracedCall, compile_traced
from mspc.compiler.frontend.trace import Traced
from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.layout import Layout
from mspc.ops.op import load_operators
from mspc.verify.same_values import MARK, number_operators
from mspc.verify.scale.proof import ScaleProof, prove
from mspc.verify.scale.rank_kinds import kinds_of
from mspc.verify.scale.small_programs import Unfit
from tests.networks import RandomNetwork, usable
from tests.verify.scale.written_networks import WRITTEN

QUIET = Loudness(quiet=True)
EQUAL, DIFFERS, REFUSED, FAILS = "equal", "differs", "is refused", "fails"
LARGE = 16
"""From so many elements on a dimension is large that stays as it is."""
Proved = Callable[[], ScaleProof]


@cache
def _names() -> tuple[str, ...]:
    """Operators of random networks but those whose integers have to fit together, as where experts' rows end: inputs
    that are made for a small program do not."""
    return tuple(n for n in usable() if not n.startswith(("Expert", "Grouped")) and "Varlen" not in n)



@dataclass
class Outcome:
    """The result of a network. kept: dimensions of parameters that stayed large, by their sizes."""

    kind: str
    message: str = ""
    kept: tuple[str, ...] = ()
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
    kept = tuple(
        f"{name} {real} -> {small}"
        for name, (real, small) in found.sizes.items()
        if any(a == b >= LARGE for a, b in zip(real, small, strict=True))
    )
    if found.whole:
        return Outcome(DIFFERS, "but for its own sizes", kept)
    if found.same:
        return Outcome(EQUAL, kept=kept, values=len(found.rows))
    return Outcome(DIFFERS, _reason(found), kept)


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
SAID = re.compile(r"device_num\s*=\s*(\d+)")


def drawn(source: str, seed: int) -> Proved:
    """The proof of a network that is drawn."""
    return of_text(*WRITTEN[source](seed)) if source in WRITTEN else of_graph(seed)


def scripts(paths: Sequence[Path], ranks: int) -> Iterator[tuple[Path, int]]:
    """Scripts that are named, or in folders, each with its number of ranks."""
    for path in paths:
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            said = SAID.search(each.read_text(encoding="utf-8")) if each.suffix == ".py" else None
            yield each, ranks or (int(said[1]) if said else 8)


def is_right(target: str, options: CompileOptions) -> bool:
    """Whether a network is equal at its own sizes."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            verify_target(target, options, 0)
    except (ExecutionError, MspcError):
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="mspc verify --scale of networks that are right.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--source", choices=SOURCES, action="append")
    parser.add_argument("--only", type=int, help="the seed of one network")
    parser.add_argument("--show", action="store_true", help="print the script of that network")
    parser.add_argument("--files", type=Path, nargs="+", default=[])
    parser.add_argument("--ranks", type=int, default=0, help="of the scripts")
    parser.add_argument("--words", nargs="*", default=[], help="arguments of the scripts")
    parser.add_argument("--kept", action="store_true", help="print dimensions that stayed large")
    given = parser.parse_args(arguments)
    load_operators()
    start, alarms = time.perf_counter(), 0
    if given.files:
        options = CompileOptions(loudness=QUIET, script_arguments=tuple(given.words))
        found = ((str(path), str(path), n) for path, n in scripts(given.files, given.ranks))
        counts = Counter[str]()
        for name, target, ranks in found:
            own = replace(options, ranks=ranks)
            outcome = outcome_of(lambda target=target, own=own: of_script(target, own).proved(0))
            counts[outcome.kind] += 1
            alarms += _told(name, outcome, given.kept, outcome.kind == DIFFERS and is_right(target, own))
        print(f"{sum(counts.values())} scripts: {_counted(counts)}, {time.perf_counter() - start:.1f} s")
        return int(alarms > 0)
    seeds = range(given.seed, given.seed + given.count) if given.only is None else [given.only]
    for source in given.source or SOURCES:
        counts, begin = Counter[str](), time.perf_counter()
        for seed in seeds:
            if given.show and source in WRITTEN:
                print(WRITTEN[source](seed)[0])
            outcome = outcome_of(drawn(source, seed))
            counts[outcome.kind] += 1
            alarms += _told(f"{source} {seed}", outcome, given.kept, outcome.kind == DIFFERS)
        print(f"{source}: {_counted(counts)}, {time.perf_counter() - begin:.1f} s", flush=True)
    return int(alarms > 0)


def _told(name: str, outcome: Outcome, kept: bool, false_alarm: bool) -> bool:
    """Print what is to be seen of a network; whether it counts against the proof."""
    if outcome.kind != EQUAL:
        said = f" although it is right: {outcome.message}" if false_alarm else f": {outcome.message}"
        print(f"{name} {outcome.kind}{said}"[:400], flush=True)
    if kept:
        for each in outcome.kept:
            print(f"{name} keeps {each}", flush=True)
    return false_alarm or outcome.kind == FAILS


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in (EQUAL, DIFFERS, REFUSED, FAILS) if counts[kind]) or "none"


if __name__ == "__main__":
    sys.exit(main())
