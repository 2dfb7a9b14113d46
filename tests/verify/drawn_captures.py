"""Captures of random training steps (`drawn_plans.py`), all of them right: `python -m tests.verify.drawn_captures`.

The proof has to find each equal to one device. Prints those that differ and the number of each way at the end; exits
with 1 if one differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mspc.commands.verify_capture import CapturedPrograms, programs_of_captures
from mspc.verify.scale.proof import ScaleProof, prove
from tests.conftest import HANG
from tests.serving import SERVED
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
    command = [*SERVED, "--torch", "-P", "-c", CAPTURING, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


def captured(seeds: Sequence[int], folder: Path) -> None:
    """Capture the steps of some seeds, on one device and on their ranks."""
    capture(SCRIPT, [
        (folder / str(seed) / name, ranks, (str(seed),))
        for seed in seeds for name, ranks in (("one", 1), ("ranks", drawn(seed).ranks))
    ])  # fmt: skip


def kept_captures(seeds: Sequence[int], folder: Path, jobs: int = 1) -> None:
    """Capture the steps that a folder lacks."""
    missing = [seed for seed in seeds if not (folder / str(seed)).exists()]
    parts = [missing[begin : begin + AT_ONCE] for begin in range(0, len(missing), AT_ONCE)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda part: captured(part, folder), parts))


def programs(folder: Path, seed: int) -> CapturedPrograms:
    return programs_of_captures(folder / str(seed) / "ranks", folder / str(seed) / "one")


def proof(given: CapturedPrograms) -> ScaleProof:
    return prove(given.one, given.kinds, given.values, 0, None, given.batch)


def proofs(seeds: Sequence[int]) -> Iterator[tuple[int, ScaleProof]]:
    """Capture and prove the steps of some seeds."""
    for begin in range(0, len(seeds), AT_ONCE):
        part = seeds[begin : begin + AT_ONCE]
        with tempfile.TemporaryDirectory() as name:
            captured(part, Path(name))
            for seed in part:
                yield seed, proof(programs(Path(name), seed))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args(words)
    counts: Counter[str] = Counter()
    for seed, found in proofs(range(given.first, given.first + given.count)):
        plan = drawn(seed)
        counts[f"{plan.way}: {'equal' if found.same else 'DIFFERS'}"] += 1
        if not found.same:
            print(seed, plan, [(row.what, row.name) for row in found.rows if not row.same][:3], flush=True)
    print(*sorted(counts.items()), sep="\n")
    return int(any("DIFFERS" in each for each in counts))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
