"""One step of all ranks of a compiled network, simulated in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.graph import Graph
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.data import slice_parameter
from mspc.runtime.executor import Executor


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
