"""How a compile grows: with the layers of a transformer, with the number of ranks; and where its time goes.

    python benchmarks/scale.py [--tries N]

All figures are the fastest of N tries, printed beside what they must not exceed. The first step of the 24 layers under
mpirun: python benchmarks/start_up.py --script benchmarks/networks/layers.py -- 24
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mspc.api.state import Session
from mspc.compiler.driver import Stage, compile_launch
from mspc.engine.capture import capture
from mspc.engine.programs import config_of

SCRIPT = Path(__file__).resolve().parent / "networks" / "layers.py"
RANKS = 8


def in_process(layers: int) -> tuple[float, dict[str, float]]:
    """(seconds from launch to the last rank's graph, seconds per pass), once."""
    launch = capture(SCRIPT, [str(layers)], Session.of_rank(0, RANKS))
    config = config_of(launch, RANKS)
    passes: dict[str, float] = {}
    last = start = time.perf_counter()

    def note(stage: Stage) -> None:
        nonlocal last
        now = time.perf_counter()
        passes[stage.name] = passes.get(stage.name, 0.0) + now - last
        last = now

    compiled = compile_launch(launch.target, launch.args, config, note)
    last = time.perf_counter()
    for rank in range(RANKS):
        compiled.rank_graph(rank, note)
    return time.perf_counter() - start, passes


def command(layers: int, *flags: str) -> float:
    """Seconds of one `mspc compile` in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "mspc", "compile", str(SCRIPT), "--out", f"{folder}/out", *flags, "--", str(layers)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = range(parser.parse_args().tries)
    runs = {layers: min(in_process(layers) for _ in tries) for layers in (12, 24)}
    twelve, twice = runs[12][0], runs[24][0]
    print(f"12 layers, launch to all {RANKS} ranks' graphs in memory  {twelve:6.2f} s   (at most 1.0)")
    grown, apart = f"{twice / twelve:.2f} x 12 (at most 2.2)", " " * 42
    print(f"24 layers {apart} {twice:6.2f} s   {grown}")
    print("   " + ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in runs[24][1].items()))
    dumps = min(command(24, "--ranks", str(RANKS), "--save-graphs") for _ in tries)
    print(f"24 layers, mspc compile with all dumps of {RANKS} ranks    {dumps:6.2f} s   (at most 4)")
    few, many = (min(command(24, "--ranks", n, "--rank", "0") for _ in tries) for n in ("8", "1024"))
    print(f"24 layers, 1024 ranks, --rank 0 {' ' * 20} {many:6.2f} s   {many / few:.2f} x 8 ranks (at most 1.3)")


if __name__ == "__main__":
    main()
