"""Runs some steps of a compiled network on simulated ranks: by the executor, in its own memory, and operator by
operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from mspc.runtime.observe import observe
from mspc.runtime.slices import full_type, gather, slice_parameter
from mspc.verify.overflow import Poke

Array = Any
Values = dict[Any, Array]


GATHERED = "gathered "
"""Before the name of a parameter whose slices all ranks have gathered after the last step."""


@dataclass(frozen=True)
class ManyRanks:
    """The graphs of some ranks with what they are fed.

    graph_of: a rank's executable graph. plain_of: its graph before any operators are fused. weights: first values of
    parameters and constants; feeds: inputs, by step; all global.
    """

    ranks: int
    graph_of: Callable[[int], Graph]
    plain_of: Callable[[int], Graph]
    weights: dict[str, Array]
    feeds: Sequence[Sequence[Array]]

    def executed(self) -> list[list[Values]]:
        """For every step and rank results under ("result", i) and parameters under their names, as `mspc run` computes
        them, but that a loss may be infinite and that results of any size share memory: a network is often verified in
        a smaller size than that in which it runs.

        Raises:
            NodeFailure: a kernel failed.
        """

        return self._by_step(World(self.ranks).run(self.executed_on))

    def executed_on(self, comm: Communicator) -> list[Values]:
        """For every step the same of one rank, through its communicator."""
        graph = self.graph_of(comm.rank)
        stored = [p for p in graph.parameters if p.kind != "input"]
        held = {p.name: self._held(p, comm.rank) for p in stored}
        executor = Executor(graph, NumPyBackend(comm, planned_from=1), held)
        executor.plan = replace(executor.plan, losses=[], late_losses=[])
        found: list[Values] = []
        for data in self.feeds:
            results = executor.run(self._inputs(graph, comm.rank, data))
            values: Values = {("result", i): np.array(array) for i, array in enumerate(results)}
            values |= {p.name: np.array(executor.parameter(p.name)) for p in stored}
            found.append(values)
        for parameter in stored if found else ():  # as they are saved and printed
            layout = parameter.layout
            if parameter.kind == "parameter" and isinstance(layout, Layout) and layout.ranks == comm.size > 1:
                own = executor.parameter(parameter.name)
                whole = gather(own, layout, full_type(parameter).shape, comm)
                found[-1][GATHERED + parameter.name] = whole
        return found

    def observed(self, mark: str, steps: int, poke: Poke | None = None) -> list[list[Values]]:
        """The same of some steps from the first on, operator by operator, none fused, in memory of their own; beside it
        the operators of the last of these steps under the values of their attribute `mark`.

        Raises:
            NodeFailure: a kernel failed.
        """

        graphs = [] if poke is None else [self.plain_of(rank) for rank in range(self.ranks)]

        def main(comm: LocalComm) -> list[Values]:
            graph = self.plain_of(comm.rank)
            backend = NumPyBackend(comm)
            held = {p: self._held(p, comm.rank) for p in graph.parameters if p.kind != "input"}
            inputs = [p for p in graph.parameters if p.kind == "input"]
            found: list[Values] = []
            for step, data in enumerate(self.feeds[:steps], 1):
                backend.step = step
                fed = zip(inputs, self._inputs(graph, comm.rank, data), strict=True)
                operands = None if poke is None else poke.on_rank(comm.rank, graphs)
                at = mark if step == steps else ""
                found.append(observe(graph, backend, held | dict(fed), at, None, operands))
            return found

        return self._by_step(World(self.ranks).run(main))

    def _held(self, parameter: Parameter, rank: int) -> Array:
        return np.array(slice_parameter(parameter, self.weights[parameter.name], rank, parameter.kind))

    def _inputs(self, graph: Graph, rank: int, data: Sequence[Array]) -> list[Array]:
        inputs = [p for p in graph.parameters if p.kind == "input"]
        return [np.array(slice_parameter(p, array, rank, "input")) for p, array in zip(inputs, data, strict=True)]

    def _by_step(self, ran: list[list[Values]]) -> list[list[Values]]:
        return [[steps[s] for steps in ran] for s in range(len(ran[0]))]
