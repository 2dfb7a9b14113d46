"""Random networks of the operators that PyTorch judges, on one device beside PyTorch."""

from __future__ import annotations

import random

import pytest

from mspc.ir.graph import Graph
from mspc.ops.op import load_operators
from mspc.verify.made_inputs import MadeInput
from mspc.verify.pytorch.against import Against, against_torch
from mspc.verify.verification import STEPS, PlainNetwork, VerifiedProgram, plain_network
from tests.networks import RandomNetwork, usable
from tests.oracle.test_counterparts import NAMES
from tests.shares import share_of

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
SEED, COUNT = 20261122, share_of(60, 2)


def beside_torch(seed: int) -> Against:
    """The errors found in a network."""
    network = RandomNetwork(seed, [name for name in usable() if name in NAMES])
    graph, doubled = plain_network(network.graph)
    inputs = [p.name for p in graph.parameters if p.kind == "input"]
    made = {name: MadeInput((network.feeds[name],) * STEPS, "") for name in inputs}

    def graph_of(rank: int) -> Graph:
        return graph

    reference = PlainNetwork(graph, doubled, network.feeds)
    return against_torch(VerifiedProgram(graph, graph, 1, reference, network.feeds, lambda _: made, graph_of, graph_of))


def test_networks_equal_pytorch() -> None:
    load_operators()
    generator = random.Random(SEED)
    kinds: set[tuple[str, str]] = set()
    for seed in [generator.getrandbits(48) for _ in range(COUNT)]:
        found = beside_torch(seed)
        assert [row for row in found.rows if not row.same] == [], f"seed {seed}"
        kinds |= {(row.kind, row.name) for row in found.rows if row.kind != "gradient"}
    assert len({name for kind, name in kinds if kind == "operator"}) > 40
    assert len({name for kind, name in kinds if kind == "rule"}) > 25
