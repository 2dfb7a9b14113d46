"""Whether random schedules with a planted fault are refused, and right ones are not, and in what time.

    python -m benchmarks.pipelines.faults [--schedules N]

It draws this number of right ones, and as many with a fault each, whose kinds take turns.
`tests/random_schedules.py` makes them. Times are those of the checks alone, on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from mspc.passes.lib.schedule_checks import check_schedule
from tests.random_schedules import SCHEDULE_FAULTS, random_schedule


def draw_all(
    what: str, count: int, make: Callable[[Random], Any], faults: tuple[Any, ...], checked: Callable[[Any], list[Any]]
) -> int:
    """Draw, check and print; how many were told wrongly."""
    planted, missed, refused = Counter[str](), Counter[str](), 0
    seconds = 0.0

    def is_refused(made: Any) -> bool:
        nonlocal seconds
        begin = time.process_time()
        found = checked(made)
        seconds += time.process_time() - begin
        return bool(found)

    for number in range(count):
        draw = Random(number)
        right = make(draw)
        refused += is_refused(right)
        turns = [*faults[number % len(faults) :], *faults[: number % len(faults)]]
        fault, made = next((f, m) for f in turns for m in [f(draw, _with_messages(draw, make, right))] if m is not None)
        planted[fault.__name__] += 1
        missed[fault.__name__] += not is_refused(made)
    told = f"{count} right ones, {refused} refused; {count} with a fault, {sum(missed.values())} not refused"
    print(f"{what}: {told}; {2 * count} checks in {seconds:.1f} s")
    for name, number in planted.items():
        print(f"  {name:22} {number - missed[name]:6} of {number} refused")
    return refused + sum(missed.values())


def _with_messages(draw: Random, make: Callable[[Random], Any], right: Any) -> Any:
    """One with two stages at least, so that every fault can be planted in it."""
    while len(getattr(right, "entries", right)) == 1:
        right = make(draw)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    count = parser.parse_args().schedules
    wrong = draw_all("schedules", count, random_schedule, SCHEDULE_FAULTS, check_schedule)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
