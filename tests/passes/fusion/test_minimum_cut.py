"""Minimum cuts are those of networkx, nearest to the sink."""

from __future__ import annotations

import random

import networkx
import pytest

from mspc.passes.fusion.minimum_cut import UNBOUNDED, nearest_cut


def network(seed: int) -> dict[tuple[int, int], int]:
    """Edges in both directions between some of ten places; some are unbounded, but for those to the sink 9."""
    draw = random.Random(seed)
    edges: dict[tuple[int, int], int] = {}
    for _ in range(draw.randrange(5, 40)):
        start, stop = draw.sample(range(10), 2)
        edges[start, stop] = UNBOUNDED if stop != 9 and draw.random() < 0.2 else draw.randrange(4)
    return edges


@pytest.mark.parametrize("seed", range(50))
def test_cuts_are_those_of_networkx(seed: int) -> None:
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from((0, 9))
    for (start, stop), capacity in network(seed).items():
        graph.add_edge(start, stop, capacity=capacity)
    _, (_, far) = networkx.minimum_cut(graph, 0, 9)
    assert nearest_cut(network(seed), 0, 9) == far


def test_of_two_cuts_the_one_near_the_sink_is_taken() -> None:
    assert nearest_cut({(0, 1): 3, (1, 2): 5, (2, 3): 3}, 0, 3) == {3}


def test_places_that_lead_nowhere_are_on_the_other_side() -> None:
    assert nearest_cut({(0, 1): 3, (0, 2): 1, (4, 1): 2}, 0, 3) == {3}


def test_flow_is_led_back_where_another_path_needs_the_edge() -> None:
    """A flow over 1 and 3 leaves no way for what comes over 2, unless it is led over 4 instead."""
    edges = {(0, 1): 1, (0, 2): 1, (1, 3): 1, (1, 4): 1, (2, 3): 1, (3, 5): 1, (4, 5): 1}
    assert nearest_cut(edges, 0, 5) == {5}
