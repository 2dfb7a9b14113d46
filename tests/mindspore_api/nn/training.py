"""Trains a cell on simulated ranks in this process: compile once, then step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.compiled_scripts import Config, compile_call
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import FLOAT32, DType, Layout, TensorType, dtype_of


class Training:
    """A cell on `ranks` ranks, fed with global batches, Float32 unless `dtypes` are given. mode and settings are those
    of `Config`."""

    def __init__(self, cell: Any, shapes: list[tuple[int, ...]], ranks: int = 1, mode: str = "stand_alone",
                 dtypes: Sequence[DType] = (), **settings: Any) -> None:  # fmt: skip
        self.ranks, self.mode = ranks, mode
        own = mode == "data_parallel" and ranks > 1
        types = [
            TensorType(dtype, (s[0] // ranks, *s[1:]) if own else s)
            for s, dtype in zip(shapes, dtypes or [FLOAT32] * len(shapes), strict=True)
        ]
        strategy = "data_parallel" if own else "full_batch"
        config = Config(ranks=ranks, mode=mode, dataset_strategy=strategy, **settings)
        self.compiled = compile_call(cell, types, config)
        self.graphs = [self.compiled.rank_graph(rank) for rank in range(ranks)]
        self.start = {
            p.name: np.array(self.compiled.traced.parameters[p.name].array)
            for p in self.compiled.graph.parameters if p.kind == "parameter"
        } | self.compiled.traced.constants  # fmt: skip

    def _cut(self, parameter: Any, rank: int, whole: np.ndarray) -> np.ndarray:
        if isinstance(parameter.layout, Layout):
            return np.array(whole[parameter.layout.slices_for(rank, whole.shape)])
        if parameter.kind == "input" and whole.shape != parameter.shape:
            rows = parameter.shape[0]
            return whole[rank * rows : (rank + 1) * rows].copy()
        return whole.copy()

    def run(self, batches: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """The cell's result for every batch, as rank 0 has it; `states` then holds the parameters after each."""

        def main(comm: LocalComm) -> list[tuple[list[Any], dict[str, np.ndarray]]]:
            graph = self.graphs[comm.rank]
            kept = [p for p in graph.parameters if p.kind != "input"]
            cut = {p.name: self._cut(p, comm.rank, self.start[p.name]) for p in kept}
            executor = Executor(graph, NumPyBackend(comm), cut)
            found: list[tuple[list[Any], dict[str, np.ndarray]]] = []
            for arrays in batches:
                fed = [self._cut(p, comm.rank, a) for p, a in zip(executor.inputs, arrays, strict=True)]
                results = executor.run(fed)
                found.append((results, {p.name: np.array(executor.parameter(p.name)) for p in kept}))
            return found

        self.ranks_found = World(self.ranks).run(main)
        self.states = [self._whole([rank[i][1] for rank in self.ranks_found]) for i in range(len(batches))]
        return [self.compiled.traced.rebuild(results) for results, _ in self.ranks_found[0]]

    def _whole(self, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The global parameters, put together from the ranks."""
        found = {name: np.array(array) for name, array in self.start.items()}
        for rank, mine in enumerate(parts):
            for name, array in mine.items():
                layout = self.graphs[rank].parameter(name).layout
                place = layout.slices_for(rank, found[name].shape) if isinstance(layout, Layout) else ...
                found[name][place] = array
        return found

    def names(self) -> list[str]:
        """The operators of rank 0."""
        return [node.op.name for node in self.graphs[0].nodes]


def floats(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Float32 numbers, normally distributed."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype_of("Float32").numpy)
