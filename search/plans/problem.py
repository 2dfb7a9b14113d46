"""Describes a network as the search sees it where memory counts, read once for all plans that are compiled of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide
from mspc.ir.graph import Graph
from mspc.passes.lib.opened_graphs import open_regions, opened
from mspc.passes.lib.plan_header import LEAST, MILLION
from mspc.passes.sharding.propagate_sharding import begun
from mspc.search.layouts.cheapest import limited, mesh_of, place
from mspc.search.layouts.within_memory import Limited
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import CostModel
from mspc.search.plans.host_room import NOTHING, HostMemoryUse


class _ProblemRead(Exception):  # it ends a compile that has told enough
    pass


class SearchProblem:
    """The model of a network, `memory` beside it, and programs of its assignments. compile: makes a program of
    settings, with what decides on its graph. Raises MspcError of a network that cannot be sharded."""

    def __init__(self, config: Config, compile: Callable[[Config, Decide], Compiled]) -> None:
        terms = replace(config.search_terms, memory=LEAST)
        self._config, self._compile = replace(config, search_terms=terms), compile
        self.model: CostModel

        def read(graph: Graph) -> None:
            if any(node.regions for node in graph.nodes):
                open_regions(graph)  # for good: the compile ends here
            search, _ = begun(graph)
            self.model = CostModel(search, mesh_of(search))
            raise _ProblemRead

        try:
            self._compile(self._config, read)
        except _ProblemRead:
            pass
        self.memory = MemoryModel(self.model)

    def solver(self, largest: int, proves: bool = True) -> Limited:
        """The search within limits, with moments of its own; see `Limited`."""
        seconds = self._config.search_terms.milliseconds / 1000
        return limited(self.model, self.memory.anew(), largest, seconds, proves)

    def compiled(self, values: Sequence[int], share: float = 0.0, on_host: HostMemoryUse = NOTHING) -> Compiled:
        """The program of an assignment. share: the part of its cost that any other comes to at least, 0 where nothing
        is proved. Raises MspcError."""
        return self._compile(self._config, partial(self._decide, tuple(values), share, on_host))

    def _decide(self, values: Sequence[int], share: float, on_host: HostMemoryUse, graph: Graph) -> None:
        with opened(graph):
            place(self.memory, graph, values)
            on_host.mark(graph)
        if on_host != NOTHING:
            del graph.attrs["search_held"]  # of less than is foreseen
        if share:
            graph.attrs["search_open"] = round((1 - share) * MILLION)
