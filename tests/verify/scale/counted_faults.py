"""Counts what comes of planted faults: the whole of a command `python -m tests.verify.scale.... SEED COUNT`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np


def counted(outcome: Callable[[int], str], bad: tuple[str, ...]) -> int:
    """Print how often each outcome of a seed came, and the seeds of bad ones. Exit status: 1 where there is one."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    counts: Counter[str] = Counter()
    with np.errstate(all="ignore"):
        for seed in range(first, first + count):
            said = outcome(seed)
            counts[said] += 1
            if said in bad:
                print(f"seed {seed}: {said}", flush=True)
    for said, number in sorted(counts.items()):
        print(f"{number:5} {said}")
    return 1 if any(counts[said] for said in bad) else 0
