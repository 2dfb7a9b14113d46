"""Whether a compile takes as long with many micro-batches as with the fewest, which are as many as there are stages.

    python -m benchmarks.pipelines.compiles [--many 32] [--tries 5] [--layers 8,32] [--stages 2,4] [--schedules 1f1b]

Seconds of processor of a whole process, the median of the tries, which take turns; of a rank alone, of all ranks, and
of all ranks with every dump. Layers are inlined, with `--lazy` one graph a stage. The status is 1 where one takes more
than 1.2 times as long.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median

SCRIPT = Path(__file__).with_name("layered_network.py")
ALLOWED = 1.2
WAYS = {"a rank": ("--rank", "0"), "all ranks": (), "all dumps": ("--save-graphs",)}


def seconds(stages: int, options: tuple[str, ...], arguments: tuple[str, ...]) -> float:
    """Of processor, of one compile."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mspc", "compile", str(SCRIPT), "--ranks", str(stages), "--out", folder]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--quiet", *options, "--", *arguments], check=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=32)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--layers", default="8,32")
    parser.add_argument("--stages", default="2,4")
    parser.add_argument("--schedules", default="1f1b")
    parser.add_argument("--lazy", action="store_true", help="layers as lazy_inline makes them")
    parser.add_argument("--optimizer", default="Adam", help="of mindspore.nn, called with parameters and a rate")
    given = parser.parse_args()
    worst, lazy = 0.0, ("lazy",) if given.lazy else ()
    cases = product(*(each.split(",") for each in (given.schedules, given.layers, given.stages)))
    for schedule, layers, stages in cases:
        for way, options in WAYS.items():
            tries = [
                [
                    seconds(int(stages), options, (layers, stages, str(count), schedule, given.optimizer, *lazy))
                    for count in (int(stages), given.many)
                ]
                for _ in range(given.tries)
            ]
            few, many = (median(each) for each in zip(*tries, strict=True))
            worst = max(worst, many / few)
            print(f"{schedule:16} {layers:>3} layers in {stages} stages, {way:9}: {stages} micro-batches {few:.2f} s, "
                  f"{given.many} {many:.2f} s, {many / few:.2f} times", flush=True)  # fmt: skip
    print(f"the most is {worst:.2f} times")
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
