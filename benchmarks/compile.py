"""Times of a compile of the quick start, side by side with what they must not exceed.

    python benchmarks/compile.py [--tries N] [--script FILE]

launch -> execute graphs: the compiler alone, warm, from the launch to the last rank's graph in memory.
mspc compile: the whole command with all dumps, a fresh process each time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mspc.api.state import Session
from mspc.compiler.driver import DumpPoint, compile_call
from mspc.engine.capture import capture
from mspc.output.programs import config_of

QUICK_START = Path(__file__).resolve().parent.parent / "samples" / "quickstart" / "net.py"
RANKS = 8
MANY = 4096
IN_MEMORY = 0.060
WITH_DUMPS = 1.3
MANY_OVER_FEW = 1.3


def best(work: Callable[[], object], tries: int) -> float:
    """Seconds of the fastest of `tries` calls."""
    found: list[float] = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def in_process(script: Path, ranks: int, tries: int) -> tuple[float, list[tuple[str, float]]]:
    """(seconds from launch to the last rank's graph, seconds of every shared pass) of the fastest try."""
    times: list[tuple[float, list[tuple[str, float]]]] = []
    for _ in range(tries):
        captured = capture(script, [], Session.of_rank(0, ranks))
        config = config_of(captured, ranks)
        stages: list[tuple[str, float]] = []
        last = start = time.perf_counter()

        def note(stage: DumpPoint, stages: list[tuple[str, float]] = stages) -> None:
            nonlocal last
            now = time.perf_counter()
            stages.append((stage.name, now - last))
            last = now

        compiled = compile_call(captured.target, captured.args, config, note)
        for rank in range(ranks):
            compiled.rank_graph(rank)
        end = time.perf_counter()
        stages.append(("compile id and all ranks", end - last))
        times.append((end - start, stages))
    return min(times, key=lambda pair: pair[0])


def command(script: Path, *flags: str) -> None:
    """`mspc compile` as a user runs it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "mspc",
                "compile",
                str(script),
                "--save-graphs",
                "--out",
                f"{folder}/out",
                *flags,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def show(what: str, seconds: float, limit: float | None = None) -> None:
    print(f"{what:52} {seconds * 1000:8.1f} ms" + (f"   at most {limit * 1000:.0f}" if limit else ""))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--script", type=Path, default=QUICK_START)
    options = parser.parse_args()
    tries = options.tries
    seconds, stages = in_process(options.script, RANKS, tries)
    show(f"launch -> execute graphs of {RANKS} ranks", seconds, IN_MEMORY)
    for name, part in stages:
        show(f"    {name}", part)
    show(
        f"mspc compile --ranks {RANKS} --save-graphs",
        best(lambda: command(options.script, "--ranks", str(RANKS)), tries), WITH_DUMPS,
    )  # fmt: skip
    few = best(lambda: command(options.script, "--ranks", str(RANKS), "--rank", "0"), tries)
    many = best(lambda: command(options.script, "--ranks", str(MANY), "--rank", "0"), tries)
    show(f"mspc compile --ranks {RANKS} --rank 0", few)
    show(f"mspc compile --ranks {MANY} --rank 0", many)
    print(f"{'ratio':52} {many / few:8.2f}      at most {MANY_OVER_FEW}")


if __name__ == "__main__":
    main()
