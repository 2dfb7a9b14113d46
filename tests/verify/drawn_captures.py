"""Captures of random training steps (`drawn_plans.py`), all of them right: `python -m tests.verify.drawn_captures`.

The proof has to find each equal to one device. Prints those that differ and the number of each way at the end; exits
with 1 if one differs. Steps that `--captures` has already need no PyTorch.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mspc.commands.verify_capture import ToProve, programs_of_captures
from mspc.verify.scale.proof import ScaleProof, prove
from tests.mutation.processes import forked
from tests.serving import SERVED, succeed
from tests.verify.drawn_plans import drawn

SCRIPT = Path(__file__).with_name("drawn_steps.py")
CAPTURING = """
import os, sys
sys.path.insert(0, FOLDER)
from mspc.readers.pytorch import capture_job
script, *steps = sys.argv[1:]
for step in steps:
    os.environ["MSPC_CAPTURE"], ranks, *arguments = step.split("|")
    if capture_job.main([script, ranks, "0", "0", *arguments]):
        raise SystemExit(step)
""".replace("FOLDER", repr(str(Path(__file__).parents[2])))
AT_ONCE = 8
"""Steps that one process captures."""


def capture(script: Path, steps: Sequence[tuple[Path, int, tuple[str, ...]]]) -> None:
    """Capture steps of a script, each (folder, ranks, arguments), in processes that share the import of PyTorch."""

    words = ["|".join((str(folder), str(ranks), *arguments)) for folder, ranks, arguments in steps]
    succeed(*SERVED, "--torch", "-P", "-c", CAPTURING, str(script), *words)


def captured(seeds: Sequence[int], folder: Path) -> None:
    """Capture the steps of some seeds, on one device and on their ranks."""
    capture(SCRIPT, [
        (folder / str(seed) / name, ranks, (str(seed),))
        for seed in seeds for name, ranks in (("one", 1), ("ranks", drawn(seed).ranks))
    ])  # fmt: skip


def kept_captures(seeds: Sequence[int], folder: Path, jobs: int = 1) -> None:
    """Capture the steps that a folder lacks. The ranks' come last, and their kinds at the end."""
    missing = [seed for seed in seeds if not (folder / str(seed) / "ranks" / "ranks.json").exists()]
    parts = [missing[begin : begin + AT_ONCE] for begin in range(0, len(missing), AT_ONCE)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda part: captured(part, folder), parts))


def programs(folder: Path, seed: int) -> ToProve:
    return programs_of_captures(folder / str(seed) / "ranks", folder / str(seed) / "one")


def proof(given: ToProve) -> ScaleProof:
    return prove(given.one, given.kinds, given.values, 0, None, given.batch)


def differences(folder: Path, seed: int) -> list[str]:
    """Return the values of a captured step that differ from those of one device."""
    found = proof(programs(folder, seed))
    return [] if found.same else [f"{row.what} {row.name}" for row in found.rows if not row.same] or ["no end"]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--captures", type=Path, help="a folder that keeps the captured steps for the next run")
    given = parser.parse_args(words)
    counts: Counter[str] = Counter()
    seeds = range(given.first, given.first + given.count)
    with tempfile.TemporaryDirectory() as name:
        folder = given.captures or Path(name)
        kept_captures(seeds, folder, given.jobs)
        for number, found in forked([partial(differences, folder, seed) for seed in seeds], given.jobs):
            plan = drawn(seeds[number])
            counts[f"{plan.way}: {'DIFFERS' if found else 'equal'}"] += 1
            if found:
                print(seeds[number], plan, found, flush=True)
    print(*sorted(counts.items()), sep="\n")
    return int(any("DIFFERS" in each for each in counts))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
