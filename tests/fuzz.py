"""Changes files of compiled programs at random and hands them to `mspc opt` and `mspc run`: `python -m tests.fuzz`.

    python -m tests.fuzz --cases 50000              # cases 0 to 49999
    python -m tests.fuzz --first 1234 --cases 1     # one case again, with its traceback

A case must end well or with an MspcError. A find is everything else: another exception, a worker that dies, needs
longer than LIMIT or more memory than MEMORY, and a file touched, a process started or a connection made outside of the
case's folder. Prints a line for every kind of find, with the first case that had it; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mspc.commands.opt import optimize
from mspc.compiler import pipeline
from mspc.ops.op import load_operators
from mspc.passes.base import PassManager, parse_passes
from tests.commands.test_run_script import NETWORK
from tests.compiled_scripts import CompileOptions, compile_target, run_directory
from tests.conftest import LOADED
from tests.damage import damage
from tests.graphs import MspcError, print_graph
from tests.networks import RandomNetwork
from tests.serving import SERVED

LIMIT = 10.0
"""Seconds that a case may compute; it may be `LOADED` times as long under way, where the machine has other work."""
STARTED = 30.0
"""Seconds that a command with a process for every rank may take on a machine of its own; `LOADED` times as long where
that has other work."""
MEMORY = 1_500_000_000
"""Bytes of address space of a worker, of which Python and NumPy need a third before the first case."""
PASSES = list(dict.fromkeys(step.name for step in pipeline.STEPS))
CHAIN = tuple(
    name
    for name in (*pipeline.shared_passes("semi_auto_parallel"), *pipeline.rank_passes())
    if name not in pipeline.VIEWS
)
GROWN = 6
"""Random networks whose graph of every stage is there to be changed, beside the compiled ones."""
TOUCHES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class", "os.kill",
)  # fmt: skip


# Changes ----------------------------------------------------------------------------------------------


def make_corpus(folder: Path) -> None:
    """Fill a folder with `graphs/`, graphs of every stage, and `programs/`, folders that `mspc run` takes."""
    load_operators()
    graphs, programs = folder / "graphs", folder / "programs"
    for place in (graphs, programs):
        place.mkdir(parents=True)
    sharded = f"{NETWORK}\nstep(*rows(0))\n"
    by_data = sharded.replace(
        'parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel"', 'parallel_mode="data_parallel"'
    ).replace("if size > 1:", "if False:")
    forward = f"{NETWORK}\nnet(Tensor(np.ones((8, 8), np.float32)))\n"
    for name, text, weights in (("sharded", sharded, True), ("by_data", by_data, False), ("forward", forward, True)):
        script = folder / f"{name}.py"
        script.write_text(text, encoding="utf-8")
        out = folder / name
        options = CompileOptions(ranks=2, level=2, out=out, weights=weights, json=folder / "table.json")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            compile_target(str(script), options)
        for file in sorted((out / "rank_1").glob("*.ir")):
            shutil.copy(file, graphs / f"{name}_{file.name}")
        _keep_what_runs(out, programs / name)
    for seed in range(GROWN):
        graph = RandomNetwork(seed).graph
        (graphs / f"grown_{seed}_00.ir").write_text(print_graph(graph), encoding="utf-8")
        for number, name in enumerate(CHAIN, 1):
            graph = PassManager(verify="").run(graph, parse_passes(name))
            (graphs / f"grown_{seed}_{number:02}_{name}.ir").write_text(print_graph(graph), encoding="utf-8")


def _keep_what_runs(compiled: Path, program: Path) -> None:
    shutil.copytree(compiled, program, ignore=lambda folder, names: [n for n in names if _is_dump(n)])
    content = json.loads((program / "program.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    arrays = {entry["name"]: rng.random(entry["shape"]).astype(np.float32) for entry in content["inputs"]}
    np.savez(program / "data.npz", **arrays)


def _is_dump(name: str) -> bool:
    return name.endswith(".ir") and "_execute_" not in name


# One case ----------------------------------------------------------------------------------------------


@dataclass
class Corpus:
    """The corpus that `make_corpus` has made."""

    graphs: list[Path]
    programs: list[tuple[Path, list[Path]]]

    @staticmethod
    def of(folder: Path) -> Corpus:
        programs = [
            (program, [p.relative_to(program) for p in sorted(program.rglob("*")) if p.is_file()])
            for program in sorted((folder / "programs").iterdir())
        ]
        return Corpus(sorted((folder / "graphs").iterdir()), programs)


def run_case(corpus: Corpus, number: int, folder: Path) -> str:
    """Make case `number` in an empty folder and run it: "well" or "refused"; whatever else is raised is a find."""
    rng = random.Random(number)
    case = _opt_case if rng.random() < 0.6 else _run_case
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            case(corpus, rng, folder)
    except MspcError as error:
        if isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, MspcError):
            if not _is_failure_of_a_kernel(error):
                raise error.__cause__ from None
        str(error)
        return "refused"
    return "well"


def _is_failure_of_a_kernel(error: MspcError) -> bool:
    from mspc.runtime.faults.record import NodeFailure

    return isinstance(error, NodeFailure)


def _opt_case(corpus: Corpus, rng: random.Random, folder: Path) -> None:
    file = folder / "graph.ir"
    shutil.copy(rng.choice(corpus.graphs), file)
    damage(rng, file)
    names = rng.sample(PASSES, rng.choice([0, 1, 1, 1, 1, 2, 3]))
    optimize(file, ",".join(f"{name}{{rank=1}}" if name == "slice_to_rank" else name for name in names))


def _run_case(corpus: Corpus, rng: random.Random, folder: Path) -> None:
    chosen = _damaged_program(corpus, rng, folder)
    data = folder / "data.npz" if chosen.name == "data.npz" or rng.random() < 0.5 else None
    run_directory(
        folder, data=data, synthetic=data is None, steps=1, simulate=True,
        save=folder / "saved", save_outputs=folder / "outputs",
    )  # fmt: skip


def _damaged_program(corpus: Corpus, rng: random.Random, folder: Path) -> Path:
    """Put a program with one damaged file into a folder; the file."""
    program, files = rng.choice(corpus.programs)
    shutil.copytree(program, folder, dirs_exist_ok=True)
    chosen = rng.choice(files)
    damage(rng, folder / chosen)
    return chosen


def run_command(corpus: Corpus, number: int, folder: Path, limit: float = LOADED * STARTED) -> str:
    """Run a damaged program by the command, with a process for every rank; what is wrong with how it ends, if any."""
    _damaged_program(corpus, random.Random(f"command {number}"), folder)
    command = [*SERVED, "run", str(folder), "--synthetic", "--steps", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"command: longer than {limit:.0f} s"
    if "Traceback" in done.stderr or done.returncode not in (0, 1, 2):
        return f"command: status {done.returncode}, {done.stderr.strip()[-3000:]}"
    return ""


# A worker ----------------------------------------------------------------------------------------------


def _watch(folder: Path, noted: Callable[[str], None]) -> None:
    """Note whatever this process touches outside of a folder, from now on."""
    inside = str(folder) + os.sep

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            noted(f"{event} {arguments[:1]}")
        elif event == "open" and isinstance(arguments[2], int):
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and isinstance(path, str | bytes):
                check(event, path)
        elif event in TOUCHES:
            check(event, arguments[0])

    def check(event: str, path: str | bytes) -> None:
        if not os.path.realpath(os.fsdecode(path)).startswith(inside):
            noted(f"{event} {os.fsdecode(path)!r}")

    sys.addaudithook(hook)


def _work(corpus: Corpus, numbers: range, folder: Path, limit: float, pipe: int) -> None:
    """Run cases in this process and write a line for each; the signal of a timer ends it in a case that takes long."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.dont_write_bytecode = True
    touched: list[str] = []
    _watch(folder, touched.append)
    for number in numbers:
        place = folder / "case"
        place.mkdir()
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, LOADED * limit)
        try:
            found = run_case(corpus, number, place)
        except BaseException as error:
            found = _summary(error)
        if touched:
            found = f"touches {touched[0]}"
        shutil.rmtree(place)
        touched.clear()  # of the cleaning
        os.write(pipe, json.dumps(found).encode() + b"\n")


def _summary(error: BaseException) -> str:
    """The kind of an exception and where it was raised, so that finds of one cause are one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/" not in f.filename]
    own = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(own[-3:]))
    return f"{type(error).__name__}: {str(error)[:100]} at {places}"


@dataclass
class Tally:
    """The results of the cases. finds: kind -> the numbers of the cases."""

    ends: dict[str, int] = field(default_factory=lambda: {"well": 0, "refused": 0})
    finds: dict[str, list[int]] = field(default_factory=dict[str, "list[int]"])

    def add(self, what: str, number: int) -> None:
        if what in self.ends:
            self.ends[what] += 1
        else:
            self.finds.setdefault(what, []).append(number)


def fuzz(corpus: Corpus, first: int, cases: int, folder: Path, limit: float = LIMIT) -> Tally:
    """Run cases in worker processes, one at a time; a worker that dies or hangs is replaced."""
    tally = Tally()
    at, stop = first, first + cases
    while at < stop:
        place = folder / f"worker_{at}"
        place.mkdir()
        found = _results(corpus, range(at, stop), place, limit)
        shutil.rmtree(place, ignore_errors=True)
        for number, what in enumerate(found, at):
            tally.add(what, number)
        at += len(found)
    return tally


def _results(corpus: Corpus, numbers: range, folder: Path, limit: float) -> list[str]:
    """Run cases in one worker; return the results of those before it was lost, and of the one that ended it."""
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        with contextlib.suppress(BaseException):
            _work(corpus, numbers, folder, limit, writing)
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        found = [json.loads(line) for line in pipe]
    _, status = os.waitpid(worker, 0)
    if len(found) < len(numbers):
        slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
        found.append(f"longer than {limit:.0f} s" if slow else "the worker died")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Hand damaged files to mspc opt and mspc run.")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=50000, help="how many")
    parser.add_argument("--commands", type=int, default=0, help="how many programs more to run by the command")
    asked = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        make_corpus(folder / "corpus")
        corpus = Corpus.of(folder / "corpus")
        if asked.cases == 1:
            (folder / "case").mkdir()
            print(run_case(corpus, asked.first, folder / "case"))
            return 0
        tally = fuzz(corpus, asked.first, asked.cases, folder)
        for number in range(asked.first, asked.first + asked.commands):
            (folder / f"command_{number}").mkdir()
            wrong = run_command(corpus, number, folder / f"command_{number}")
            if wrong:
                tally.add(wrong, number)
    for what, numbers in sorted(tally.finds.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(numbers)} times, first in case {numbers[0]}: {what}")
    found = sum(map(len, tally.finds.values()))
    ended = ", ".join(f"{count} {how}" for how, count in tally.ends.items())
    seconds = time.monotonic() - start
    print(f"{asked.cases} cases and {asked.commands} commands, {ended}, {found} finds, {seconds:.0f} s in all")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
