"""Tells from the measurements themselves which measured rates are not to be believed.

A machine that does other work at the same time gives times that differ from one repeat to the next, rates that fall
and rise again with the amount, and waits that no hardware has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mspc.analysis.cost.machine import Link, Rate

NOISY = 0.35
"""The share of its least time by which a step's repeats may differ, in the median of what is timed together."""
VALLEY = 0.6
"""The share of the rates on both sides of it that a rate has at least: caches make rates fall, not rise again."""
FALL = 0.5
"""The share of the best rate that work still has where there is more of it: what computes needs no larger cache."""
SLOW_KERNEL = 5e-4
"""Seconds from one small operator to the next that no idle machine takes."""
SLOW_LINK, SLOW_NETWORK = 1e-3, 1e-2
"""The same of a small collective inside of a host, and between hosts."""
ROUNDS = 3
"""How often what is doubtful is measured."""
LOST = 3
"""Kinds of measurements that stay doubtful, from which on nothing is measured again."""

Measured = TypeVar("Measured")
Times = list[tuple[Any, float]]


def doubts_of_spreads(spreads: Sequence[float]) -> list[str]:
    """Whether repeats differ. spreads: by which share of the least."""
    typical = statistics.median(spreads) if spreads else 0.0
    return [f"repeats of one step differ by {typical:.0%}"] if typical > NOISY else []


def doubts_of_rate(rate: Rate, falls: bool = True) -> list[str]:
    """Whether rates fall and rise again. falls: they may be less for the largest amounts."""
    found: list[str] = []
    points = rate.points
    for i in range(1, len(points) - 1):
        amount, at = points[i]
        around = min(max(each for _, each in points[:i]), max(each for _, each in points[i + 1 :]))
        if at < VALLEY * around:
            found.append(f"{at:.3g} per second at {amount:.3g}, and {around:.3g} with less and with more")
    best = max(at for _, at in points)
    if not falls and points[-1][1] < FALL * best:
        found.append(f"{points[-1][1]:.3g} per second at {points[-1][0]:.3g}, and {best:.3g} with less, which is taken")
    return found


def not_falling(rate: Rate) -> Rate:
    """The rates where what is doubtful as it falls has the rate of less work: more of it can be done in parts."""
    found: list[tuple[float, float]] = []
    best = 0.0
    for amount, at in rate.points:
        best = max(best, at)
        found.append((amount, best if at < FALL * best else at))
    return Rate(tuple(found))


def doubts_of_kernel(kernel: float) -> list[str]:
    """Whether small operators take long."""
    return [f"{kernel * 1e3:.2g} ms from one small operator to the next"] if kernel > SLOW_KERNEL else []


def doubts_of_link(link: Link, slow: float) -> list[str]:
    """Whether small collectives take long, or their rates fall and rise again. slow: seconds that are too many."""
    found: list[str] = []
    for operator, own in {"AllReduce": link, **link.own}.items():
        waits = own.latency + own.hop
        if waits > slow:
            found.append(f"{waits * 1e3:.2g} ms for a small {operator}")
        found += [f"{operator}: {why}" for why in doubts_of_rate(own.bandwidth)]
    return found


class Trust:
    """Measures again what is doubtful. spreads: by which share of the least the repeats of every step differ that was
    timed since it was emptied, the same on all ranks. doubts: what is doubtful after all. is_late: told alike on all
    ranks whether there is no time for more than one measurement."""

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        self._is_late = is_late
        self.spreads: list[float] = []
        self.doubts: list[str] = []
        self.lost = 0

    def kernel(self, measure: Callable[[], float]) -> float:
        """Seconds from one small operator to the next."""
        return self._measured("small operators", measure, doubts_of_kernel)

    def times(self, what: str, measure: Callable[[], Times], rate_of: Callable[[Times], Rate], falls: bool) -> Rate:
        """The rates of what is timed in several sizes. falls: as `doubts_of_rate` takes it."""
        rate = self._measured(what, lambda: rate_of(measure()), lambda rate: doubts_of_rate(rate, falls))
        return rate if falls else not_falling(rate)

    def link(self, what: str, measure: Callable[[], Link], slow: float) -> Link:
        """What joins ranks. slow: as `doubts_of_link` takes it."""
        return self._measured(what, measure, lambda found: doubts_of_link(found, slow))

    def _measured(
        self, what: str, measure: Callable[[], Measured], doubts_of: Callable[[Measured], list[str]]
    ) -> Measured:
        """What is measured, `ROUNDS` times at most while it is doubtful; of several times the one that was disturbed
        the least. Not the least of each: what is told by the difference of two steps is too little where the shorter
        one was disturbed."""
        found: list[tuple[int, float, int, Measured, list[str]]] = []
        for i in range(ROUNDS if self.lost < LOST else 1):
            self.spreads.clear()
            measured = measure()
            doubts = [*doubts_of_spreads(self.spreads), *doubts_of(measured)]
            typical = statistics.median(self.spreads) if self.spreads else 0.0
            found.append((len(doubts), typical, i, measured, doubts))
            if not doubts or self._is_late():
                break
        *_, best, doubts = min(found, key=lambda each: each[:3])
        self.doubts += [f"{what}: {why}" for why in doubts]
        self.lost += bool(doubts)
        return best
