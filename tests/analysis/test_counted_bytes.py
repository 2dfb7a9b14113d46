"""The bytes that a compile says it sends are those that its ranks hand to their communicators in a step.

The networks are the shared ones, which lie beside the checkout; where they are missing this test is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.analysis.cost.nodes import sent_bytes
from mspc.engine.capture import capture
from mspc.ir.graph import Parameter
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.search.plans.alternatives import CONFIGURED, PlannedNetwork
from tests.executors import Executor, LocalComm, NumPyBackend, World

MOST = 1 << 24
"""Elements of a parameter of networks that run here."""


class Counting:
    """A communicator that counts what its rank sends: by ring algorithms what it is handed, between two ranks as it is
    handed."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size, self.sent = comm, comm.rank, comm.size, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def for_graph(self, number: int) -> Counting:
        return self

    def all_reduce(self, array: Any, op: str, ranks: Sequence[int]) -> Any:
        self.sent += 2 * (len(ranks) - 1) / len(ranks) * array.nbytes
        return self.comm.all_reduce(array, op, ranks)

    def all_gather(self, array: Any, ranks: Sequence[int], axis: int = 0) -> Any:
        self.sent += (len(ranks) - 1) * array.nbytes
        return self.comm.all_gather(array, ranks, axis)

    def reduce_scatter(self, array: Any, op: str, ranks: Sequence[int], axis: int = 0) -> Any:
        self.sent += (len(ranks) - 1) / len(ranks) * array.nbytes
        return self.comm.reduce_scatter(array, op, ranks, axis)

    def all_to_all(self, array: Any, ranks: Sequence[int], split_dim: int, concat_dim: int) -> Any:
        self.sent += (len(ranks) - 1) / len(ranks) * array.nbytes
        return self.comm.all_to_all(array, ranks, split_dim, concat_dim)

    def broadcast(self, array: Any, root: int, ranks: Sequence[int]) -> Any:
        self.sent += (len(ranks) - 1) / len(ranks) * array.nbytes
        return self.comm.broadcast(array, root, ranks)

    def exchange(self, sends: Sequence[tuple[int, Any]], receives: Any) -> Any:
        self.sent += sum(array.nbytes for rank, array in sends if rank != self.rank)
        return self.comm.exchange(sends, receives)

    def exchange_into(self, sends: Sequence[tuple[int, Any]], receives: Any) -> Any:
        self.sent += sum(array.nbytes for rank, array in sends if rank != self.rank)
        return self.comm.exchange_into(sends, receives)


def some(parameter: Parameter) -> np.ndarray:
    """A slice of any numbers that no operator refuses."""
    dtype = parameter.tensor_type.dtype
    return np.full(parameter.type.shape, 0.5 if dtype.is_float else 0, dtype.numpy)


def test_bytes_estimated_are_bytes_sent(conformance: Path) -> None:
    tried = 0
    for case in sorted((conformance / "cases").glob("*.py")):
        ranks = int(json.loads((conformance / "reference" / f"{case.stem}.json").read_text())["world"])
        captured = capture(case, [], Session.of_rank(0, ranks))
        compiled = PlannedNetwork.read(captured, config_of(captured, ranks)).compiled(CONFIGURED)
        graphs = [compiled.rank_graph(rank) for rank in range(ranks)]
        if sum(p.tensor_type.size for p in graphs[0].parameters) > MOST:
            continue

        def main(comm: LocalComm, graphs: Any = graphs) -> float:
            graph, counting = graphs[comm.rank], Counting(comm)
            held = {p.name: some(p) for p in graph.parameters if p.kind != "input"}
            executor = Executor(graph, NumPyBackend(counting), held)
            with np.errstate(all="ignore"):
                executor.run([some(p) for p in executor.inputs])
            return counting.sent

        counted = sum(World(ranks).run(main))
        assert counted == pytest.approx(sum(sent_bytes(node) for graph in graphs for node in graph.nodes)), case.stem
        tried += 1
    assert tried >= 30
