"""How a compile grows: with the layers of a transformer, with the number of ranks; and where its time goes.

    python benchmarks/scale.py [--tries N]

All figures are the fastest of N tries, printed beside what they must not exceed. The first step of the 24 layers under
mpirun: python benchmarks/start_up.py --script benchmarks/networks/layers.py -- 24
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mspc.api.state import Session
from mspc.compiler.driver import Compiled, DumpPoint, compile_call
from mspc.engine.capture import capture
from mspc.output.programs import config_of

SCRIPT = Path(__file__).resolve().parent / "networks" / "layers.py"
QUICK_START = SCRIPT.parent.parent.parent / "samples" / "quickstart" / "net.py"
RANKS = 8
MANY = 1024
MOST = 8192


def in_process(layers: int) -> tuple[float, dict[str, float]]:
    """(seconds from launch to the last rank's graph with all its nodes, seconds per pass), once."""
    captured = capture(SCRIPT, [str(layers)], Session.of_rank(0, RANKS))
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


def command(script: Path, *flags: str, arguments: tuple[str, ...] = ()) -> tuple[float, float]:
    """(seconds, MiB at most) of one `mspc compile` in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        line = [sys.executable, "-m", "mspc", "compile", str(script), "--out", f"{folder}/out", *flags]
        running = subprocess.Popen([*line, "--", *arguments], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, line)
        return time.perf_counter() - start, used.ru_maxrss / 1024


def imports() -> dict[str, float]:
    """Seconds in imports of a compile of the quick start, by package: `-X importtime` counts them."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-X", "importtime", "-m", "mspc", "compile", str(QUICK_START)]
        done = subprocess.run(
            [*line, "--ranks", str(RANKS), "--out", f"{folder}/out"], capture_output=True, text=True, check=True
        )
    found: dict[str, float] = {}
    for own, name in re.findall(r"^import time: +(\d+) \| +\d+ \| +([\w.]+)$", done.stderr, re.MULTILINE):
        package = name.split(".")[0]
        found[package] = found.get(package, 0.0) + int(own) / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = range(parser.parse_args().tries)
    runs = {layers: min(in_process(layers) for _ in tries) for layers in (12, 24)}
    twelve, twice = runs[12][0], runs[24][0]
    print(f"12 layers, captured to all {RANKS} ranks' graphs in memory  {twelve:6.2f} s   (at most 1.0)")
    grown, apart = f"{twice / twelve:.2f} x 12 (at most 2.2)", " " * 42
    print(f"24 layers {apart} {twice:6.2f} s   {grown}")
    print("   " + ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in runs[24][1].items()))
    few = min(ranks_in_memory(RANKS) for _ in tries)
    many = min(ranks_in_memory(MANY) for _ in tries)
    print(
        f"12 layers, graphs of {RANKS} and {MANY} ranks in memory       {few[0]:6.2f} s {many[0]:6.2f} s "
        f"{many[0] / few[0]:5.2f} x {RANKS} ranks (at most 3)"
    )
    print(
        f"   with each rank's kind found ({few[2]} and {many[2]} kinds)       {few[1]:6.2f} s {many[1]:6.2f} s "
        f"{many[1] / few[1]:5.2f} x {RANKS} ranks"
    )
    dumps = min(command(SCRIPT, "--ranks", str(RANKS), "--save-graphs", arguments=("24",)) for _ in tries)
    print(f"24 layers, mspc compile with all dumps of {RANKS} ranks    {dumps[0]:6.2f} s   (at most 3)")
    one, of_many = (
        min(command(SCRIPT, "--ranks", str(n), "--rank", "0", arguments=("24",)) for _ in tries) for n in (RANKS, MANY)
    )
    grown = f"{of_many[0] / one[0]:.2f} x {RANKS} ranks (at most 1.3)"
    print(f"24 layers, {MANY} ranks, --rank 0 {' ' * 20} {of_many[0]:6.2f} s   {grown}")
    flags = ("--ranks", str(MOST), "--rank", "0", "--level", "1")
    deep = min(command(SCRIPT, *flags, arguments=("126",)) for _ in tries)
    print(f"126 layers, {MOST} ranks, --rank 0, dumps of level 1    {deep[0]:6.2f} s   (at most 10)")
    print(f"   memory at most {' ' * 34} {deep[1]:6.0f} MiB (at most 286)")
    quick = min(command(QUICK_START, "--ranks", str(RANKS)) for _ in tries)
    print(f"quick start, mspc compile for {RANKS} ranks {' ' * 15} {quick[0]:6.2f} s   (at most 0.8)")
    spent = sorted(imports().items(), key=lambda item: -item[1])
    largest = ", ".join(f"{name} {part:.2f}" for name, part in spent[:6])
    print(f"   of it imports {sum(part for _, part in spent):.2f} s: {largest}")


if __name__ == "__main__":
    main()
