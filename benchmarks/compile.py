"""Times, memory and written bytes of compiles, beside what they must not exceed.

    python benchmarks/compile.py [--tries N] [--quick] [--script FILE]

The quick start and its passes; transformers by layers and by ranks; networks that no rank could hold unsharded. All
figures are the fastest of N tries; commands run in fresh processes. With `--quick` those of the quick start alone. The
first step of the 24 layers under mpirun:
python benchmarks/start_up.py --script benchmarks/networks/layers.py -- 24
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mspc.compiler.driver import Compiled, DumpPoint, compile_call
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of

SCRIPT = Path(__file__).resolve().parent / "networks" / "layers.py"
QUICK_START = SCRIPT.parent.parent.parent / "samples" / "quickstart" / "net.py"
RANKS = 8
MANY = 1024
MOST = 8192


def in_process(script: Path, *arguments: str) -> tuple[float, dict[str, float]]:
    """(seconds from launch to the last rank's graph with all its nodes, seconds per pass), once."""
    captured = capture(script, arguments, Session.of_rank(0, RANKS))
    passes: dict[str, float] = {}
    last = start = time.perf_counter()

    def note(stage: DumpPoint) -> None:
        nonlocal last
        now = time.perf_counter()
        passes[stage.name] = passes.get(stage.name, 0.0) + now - last
        last = now

    compiled = compile_call(captured.target, captured.args, config_of(captured, RANKS), note)
    middle = time.perf_counter()
    for rank in range(RANKS):
        len(compiled.rank_graph(rank).nodes)
    end = time.perf_counter()
    passes["all ranks"] = end - middle
    return end - start, passes


def ranks_in_memory(ranks: int) -> tuple[float, float, int]:
    """(seconds from launch to the last rank's graph, the same with every rank's kind found and values known, kinds)."""
    captured = capture(SCRIPT, ["12"], Session.of_rank(0, ranks))
    start = time.perf_counter()
    compiled: Compiled = compile_call(captured.target, captured.args, config_of(captured, ranks))
    for rank in range(ranks):
        compiled.rank_graph(rank)
    graphs = time.perf_counter()
    for rank in range(ranks):
        compiled.rank_graphs.of(rank, ())
    return graphs - start, time.perf_counter() - start, compiled.rank_graphs.kinds


class Cost(NamedTuple):
    """Figures of one compile: seconds of wall time and of the processor, MB of memory, MB written."""

    seconds: float
    processor: float
    memory: float
    written: float


def command(script: Path, *flags: str, arguments: Sequence[str] = ()) -> Cost:
    """Compile in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        line = [sys.executable, "-m", "mspc", "compile", str(script), "--out", f"{folder}/out", *flags]
        running = subprocess.Popen([*line, "--", *arguments], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        seconds = time.perf_counter() - start
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, line)
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    # Linux counts memory in kibibytes, macOS in bytes.
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Cost(seconds, used.ru_utime + used.ru_stime, memory / 1e6, written / 1e6)


def imports(script: Path) -> dict[str, float]:
    """Seconds in imports of a compile, by package, as `-X importtime` counts them."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-X", "importtime", "-m", "mspc", "compile", str(script)]
        done = subprocess.run(
            [*line, "--ranks", str(RANKS), "--out", f"{folder}/out"], capture_output=True, text=True, check=True
        )
    found: dict[str, float] = {}
    for own, name in re.findall(r"^import time: +(\d+) \| +\d+ \| +([\w.]+)$", done.stderr, re.MULTILINE):
        package = name.split(".")[0]
        found[package] = found.get(package, 0.0) + int(own) / 1e6
    return found


class Large(NamedTuple):
    """A network and its limits: the script's arguments, ranks, seconds, MB of memory and MB written at most; which rank
    is compiled, "" for all."""

    name: str
    script: str
    sizes: str
    ranks: int
    seconds: float
    memory: float
    written: float
    rank: str = "0"


LARGE = (
    Large("7B, 32 layers x 4096", "llama.py", "32 4096 32 11008 32000 8 8 8 2048", 64, 8, 300, 50),
    Large("70B, 80 layers x 8192", "llama.py", "80 8192 64 28672 32000 128 8 128 2048", 1024, 15, 400, 50),
    Large(
        "8B, 131072 words, lazy", "long_llama.py", "lazy 32 4096 32 8 14336 128256 1 8 8 131072", 64, 10, 300, 50, ""
    ),
)


def quick_start(script: Path, tries: range) -> None:
    """Print the times of a small script's compile."""
    seconds, passes = min(in_process(script) for _ in tries)
    print(f"launch -> execute graphs of {RANKS} ranks in memory {1e3 * seconds:8.1f} ms   (limit 60)")
    for name, part in passes.items():
        print(f"    {name:44} {1e3 * part:8.1f} ms")
    dumps = min(command(script, "--ranks", str(RANKS), "--save-graphs") for _ in tries)
    print(f"mspc compile with all dumps of {RANKS} ranks          {dumps.seconds:6.2f} s   (limit 1.3)")
    few, many = (min(command(script, "--ranks", str(n), "--rank", "0") for _ in tries) for n in (RANKS, 4096))
    print(f"--rank 0 of {RANKS} and 4096 ranks {few.seconds:6.2f} s {many.seconds:6.2f} s "
          f"{many.seconds / few.seconds:5.2f} x (limit 1.3)")  # fmt: skip
    spent = sorted(imports(script).items(), key=lambda item: -item[1])
    largest = ", ".join(f"{name} {part:.2f}" for name, part in spent[:6])
    print(f"   imports of one compile {sum(part for _, part in spent):.2f} s: {largest}")


def layers_and_ranks(tries: range) -> None:
    """Print how a compile grows."""
    runs = {layers: min(in_process(SCRIPT, str(layers)) for _ in tries) for layers in (12, 24)}
    twelve, twice = runs[12][0], runs[24][0]
    print(f"12 layers, captured to all {RANKS} ranks' graphs in memory  {twelve:6.2f} s   (limit 1.0)")
    print(f"24 layers {' ' * 42} {twice:6.2f} s   {twice / twelve:.2f} x 12 (limit 2.2)")
    print("   " + ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in runs[24][1].items()))
    few, many = (min(ranks_in_memory(n) for _ in tries) for n in (RANKS, MANY))
    print(
        f"12 layers, graphs of {RANKS} and {MANY} ranks in memory       {few[0]:6.2f} s {many[0]:6.2f} s "
        f"{many[0] / few[0]:5.2f} x {RANKS} ranks (limit 3)"
    )
    print(
        f"   with kinds of ranks ({few[2]} and {many[2]} kinds)       {few[1]:6.2f} s {many[1]:6.2f} s "
        f"{many[1] / few[1]:5.2f} x {RANKS} ranks"
    )
    dumps = min(command(SCRIPT, "--ranks", str(RANKS), "--save-graphs", arguments=("24",)) for _ in tries)
    print(f"24 layers, mspc compile with all dumps of {RANKS} ranks    {dumps.seconds:6.2f} s   (limit 3)")
    one, of_many = (
        min(command(SCRIPT, "--ranks", str(n), "--rank", "0", arguments=("24",)) for _ in tries) for n in (RANKS, MANY)
    )
    grown = f"{of_many.seconds / one.seconds:.2f} x {RANKS} ranks (limit 1.3)"
    print(f"24 layers, {MANY} ranks, --rank 0 {' ' * 20} {of_many.seconds:6.2f} s   {grown}")
    flags = ("--ranks", str(MOST), "--rank", "0", "--level", "1")
    deep = min(command(SCRIPT, *flags, arguments=("126",)) for _ in tries)
    print(f"126 layers, {MOST} ranks, --rank 0, dumps of level 1    {deep.seconds:6.2f} s   (limit 10)")
    print(f"   peak memory {' ' * 37} {deep.memory:6.0f} MB (limit 300)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the quick start alone")
    parser.add_argument("--script", type=Path, default=QUICK_START, help="in place of the quick start")
    options = parser.parse_args()
    tries = range(options.tries)
    quick_start(options.script, tries)
    if options.quick:
        return
    layers_and_ranks(tries)
    for large in LARGE:
        flags = ["--ranks", str(large.ranks), *(["--rank", large.rank] if large.rank else [])]
        cost = min(command(SCRIPT.with_name(large.script), *flags, arguments=large.sizes.split()) for _ in tries)
        print(
            f"{large.name:22} {large.ranks:5} ranks, {f'--rank {large.rank}' if large.rank else 'all':8}:  "
            f"{cost.seconds:6.2f} s (limit {large.seconds:g}; processor {cost.processor:.2f} s)  "
            f"{cost.memory:5.0f} MB (limit {large.memory:g})  "
            f"{cost.written:5.1f} MB written (limit {large.written:g})"
        )


if __name__ == "__main__":
    main()
