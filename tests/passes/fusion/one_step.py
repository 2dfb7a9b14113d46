"""One step of all ranks of a compiled network, simulated in this process."""

from typing import Any

import numpy as np

import mspc as ms
from mspc.ir.graph import Graph
from mspc.runtime.data import slice_parameter
from tests.executors import Executor, LocalComm, NumPyBackend, World


def step(found: Any, feeds: list[Any], graphs: list[Graph]) -> list[dict[str, Any]]:
    """Return the loss of every rank and, where it trains, the parameters after one step."""
    full = {name: np.asarray(p.array) for name, p in found.traced.parameters.items()}

    def run(comm: LocalComm) -> dict[str, Any]:
        graph = graphs[comm.rank]
        own = {p.name: np.array(slice_parameter(p, full[p.name], comm.rank, "")) for p in graph.parameters
               if p.kind == "parameter"}  # fmt: skip
        own |= {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
        executor = Executor(graph, NumPyBackend(comm), own)
        loss = np.asarray(executor.run(feeds)[0])
        return {"": loss} | {name: np.array(executor.parameter(name)) for name in own}

    return World(len(graphs)).run(run)


def same_step(found: Any, feeds: list[Any], kind: Any, graphs: list[Graph], others: list[Graph]) -> None:
    """Check that the graphs give the same numbers, as far as those of a type can be."""
    tolerance = 1e-5 if kind == ms.float32 else 2e-2
    for mine, expected in zip(step(found, feeds, graphs), step(found, feeds, others), strict=True):
        for name, value in expected.items():
            size = max(float(np.max(np.abs(value))), 1e-3)
            np.testing.assert_allclose(mine[name], value, rtol=0, atol=tolerance * size, err_msg=name)
