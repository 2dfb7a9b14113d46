"""A network as the search sees it where memory counts, read once for all plans that are compiled of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, OnStage, Stage
from mspc.compiler.strategy_names import CONFIGURED
from mspc.passes.search.limited import Limited
from mspc.passes.search.memory import Memory
from mspc.passes.search.model import Model
from mspc.passes.search.placed import place
from mspc.passes.search.terms import LEAST
from mspc.passes.search.whole_graph import limited, mesh_of
from mspc.passes.sharding.propagate_sharding import MILLION, begun


class _Read(Exception):  # it ends a compile that has told enough
    pass


class Problem:
    """The model of a network, `memory` beside it, and programs of its assignments. compile: makes a program of
    settings, and tells its stages. Raises MspcError of a network that cannot be cut."""

    def __init__(self, config: Config, compile: Callable[[Config, OnStage | None], Compiled]) -> None:
        terms = replace(config.search_terms, memory=LEAST)
        self._config, self._compile = replace(config, search_terms=terms), compile
        self.model: Model

        def look(stage: Stage) -> None:
            if stage.name == CONFIGURED:
                search, _ = begun(stage.graph)
                self.model = Model(search, mesh_of(search))
                raise _Read

        try:
            self._compile(self._config, look)
        except _Read:
            pass
        self.memory = Memory(self.model)

    def solver(self, largest: int, proves: bool = True) -> Limited:
        """The search within limits, with moments of its own; see `Limited`."""
        seconds = self._config.search_terms.milliseconds / 1000
        return limited(self.model, self.memory.anew(), largest, seconds, proves)

    def compiled(self, values: Sequence[int], share: float = 0.0) -> Compiled:
        """The program of an assignment. share: the part of its cost that any other comes to at least, 0 where nothing
        is proved. Raises MspcError."""
        return self._compile(self._config, partial(self._look, tuple(values), share))

    def _look(self, values: Sequence[int], share: float, stage: Stage) -> None:
        if stage.name != CONFIGURED:
            return
        place(self.memory, stage.graph, values)
        if share:
            stage.graph.attrs["search_open"] = round((1 - share) * MILLION)
