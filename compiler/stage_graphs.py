"""Makes the graphs of the ranks of several stages: those of a stage are of kinds of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

from mspc.compiler.rank_graphs import RankGraph, RankGraphs, RankStages
from mspc.ir.graph import STAGE, STAGES, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.base import OnPass, find_pass, run_passes
from mspc.passes.per_rank.slice_to_rank import check_rank

CUT, ORDERED = "cut_stages", "order_micro_batches"
"""The passes that make a stage's program of one micro-batch, and of all."""
KNOW_STAGE = (CUT, "join_products", "pack_attention")
"""Passes that are told the stage; those ahead of the cut leave alone what others compute."""


@dataclass
class StageGraphs(RankGraphs):
    """As `RankGraphs`, of a graph of several stages."""

    _of_stage: dict[int, RankGraphs] = field(default_factory=dict[int, RankGraphs])
    _kinds: dict[tuple[int, int], int] = field(default_factory=dict["tuple[int, int]", int])

    def _graphs(self, rank: int) -> RankGraphs:
        check_rank(self.graph, rank)
        stage = rank // int(self.graph.attrs["ranks"])
        if stage not in self._of_stage:
            options: dict[str, dict[str, Any]] = {name: {STAGE: stage} for name in KNOW_STAGE}
            self._of_stage[stage] = self.with_options(options)
        return self._of_stage[stage]

    def alone(self, rank: int, on_pass: OnPass) -> Graph:
        return self._graphs(rank).alone(rank, on_pass)

    def executable(self, rank: int) -> RankGraph:
        return self._graphs(rank).executable(rank)

    @property
    def kinds(self) -> int:
        return sum(graphs.kinds for graphs in self._of_stage.values())

    def kind(self, rank: int, wanted: Collection[str] | None = None) -> int | None:
        graphs = self._graphs(rank)
        found = graphs.kind(rank, wanted)
        if found is None:
            return None
        stage = rank // int(self.graph.attrs["ranks"])
        self.kind_of[rank] = self._kinds.setdefault((stage, found), len(self._kinds))
        return self.kind_of[rank]

    def of(self, rank: int, wanted: Collection[str]) -> RankStages:
        found = self._graphs(rank).of(rank, wanted)
        self.kind(rank, ())
        return found


def before_joining(sliced: Graph, rank: int) -> Graph:
    """A rank's graph before operators are joined: as it is sliced, or, of several stages, the program of its own, with
    its work on all micro-batches."""
    if STAGES not in sliced.attrs:
        return sliced
    stage = rank // int(sliced.attrs["ranks"])
    return run_passes(sliced, [find_pass(CUT, {STAGE: stage}), find_pass(ORDERED)])


def rank_graphs(graph: Graph, passes: Sequence[str], on_pass: OnPass | None = None) -> RankGraphs:
    """The graphs of a program's ranks."""
    kind = StageGraphs if STAGES in graph.attrs else RankGraphs
    return kind(graph, passes, on_pass)
