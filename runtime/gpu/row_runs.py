"""Runs of rows in a grouped matmul, each multiplied by one matrix: the rows outside all runs, and their lanes.

A matmul of few tiles leaves multiprocessors idle at its end. With two lanes, each a stream, the next one starts there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Rows `begin` to `end` multiplied by matrix number `matrix`. adds: accumulate onto earlier runs of the matrix."""

    matrix: int
    begin: int
    end: int
    adds: bool = False


def runs_of(given: Iterable[tuple[int, slice]], rows: int, summed: bool = False) -> list[Run]:
    """Return the nonempty runs within `rows` rows, in order. summed: results of one matrix are accumulated instead of
    stored per run."""
    found: list[Run] = []
    seen: set[int] = set()
    for matrix, place in given:
        begin, end, _ = place.indices(rows)
        if end > begin:
            found.append(Run(matrix, begin, end, summed and matrix in seen))
            seen.add(matrix)
    return found


def rows_outside(runs: Sequence[Run], rows: int) -> Iterator[slice]:
    """Yield the ranges of rows outside all runs."""
    behind = 0
    for run in runs:
        if run.begin > behind:
            yield slice(behind, run.begin)
        behind = max(behind, run.end)
    if rows > behind:
        yield slice(behind, rows)


def matrices_without_runs(runs: Sequence[Run], matrices: int) -> Iterator[int]:
    """Yield the numbers of matrices without a run."""
    seen = {run.matrix for run in runs}
    return (matrix for matrix in range(matrices) if matrix not in seen)


def lanes_of(runs: Sequence[Run], count: int) -> list[list[Run]]:
    """Return the runs of every lane, balanced by rows; runs of one matrix stay in one lane and in order if some
    accumulate."""
    lanes: list[list[Run]] = [[] for _ in range(count)]
    rows = [0] * count
    bound = any(run.adds for run in runs)
    home: dict[int, int] = {}
    for run in runs:
        lane = home.get(run.matrix, -1) if bound else -1
        if lane < 0:
            lane = home[run.matrix] = rows.index(min(rows))
        lanes[lane].append(run)
        rows[lane] += run.end - run.begin
    return lanes


def sample_runs(rows: int, matrices: int, most: int) -> list[Run]:
    """Return runs for timing: one for each matrix, for at most `most` matrices. As in real data, adjacent lengths
    differ: by a sixteenth of the mean."""
    even = rows / matrices
    borders = [round(even * (i + i % 2 / 32)) for i in range(min(matrices, most))]
    borders.append(rows if matrices <= most else round(even * most))
    pairs = enumerate(itertools.pairwise(borders))
    return [Run(matrix, begin, end) for matrix, (begin, end) in pairs if end > begin]
