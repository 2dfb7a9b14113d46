"""Finds minimum cuts of networks by Dinic's algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

UNBOUNDED = 1 << 62
"""The capacity of an edge that no cut goes through."""
Capacities = dict[int, dict[int, int]]
"""How much more can flow along the edges from each place, by where they lead."""


def nearest_cut(edges: Mapping[tuple[int, int], int], source: int, sink: int) -> set[int]:
    """The places on the sink's side of a minimum cut, of the one that leaves fewest there: from each of them more could
    flow to the sink.

    edges: their capacities, by (start, stop). source, sink: two different places.
    """
    left: Capacities = {source: {}, sink: {}}
    for (start, stop), capacity in edges.items():
        for one, other, more in ((start, stop, capacity), (stop, start, 0)):
            ways = left.setdefault(one, {})
            ways[other] = ways.get(other, 0) + more
    while source in (distance := _distances(left, sink)):
        _fill(left, distance, source, sink)
    return set(distance)


def _distances(left: Capacities, sink: int) -> dict[int, int]:
    """Over how many edges more can flow to the sink, by the places from which it can."""
    found = {sink: 0}
    waiting = deque([sink])
    while waiting:
        stop = waiting.popleft()
        for start in left[stop]:
            if start not in found and left[start][stop]:
                found[start] = found[stop] + 1
                waiting.append(start)
    return found


def _fill(left: Capacities, distance: Mapping[int, int], source: int, sink: int) -> None:
    """Let flow as much as can along the shortest paths."""
    untried = {place: list(left[place]) for place in distance}
    path = [source]
    while path:
        place = path[-1]
        if place == sink:
            steps = list(pairwise(path))
            most = min(left[start][stop] for start, stop in steps)
            for start, stop in steps:
                left[start][stop] -= most
                left[stop][start] += most
            path = [source]
        elif not untried[place]:
            path.pop()
            if path:
                untried[path[-1]].pop()
        elif left[place][stop := untried[place][-1]] and distance.get(stop) == distance[place] - 1:
            path.append(stop)
        else:
            untried[place].pop()
