"""Changes a usual plan so that it takes less memory on a rank: smaller slices of parameters, recomputed cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass

SLICES = {"parallel_optimizer": True, "parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": -1}
"""The settings that share every update among all that would do the same."""
SMALLER, AGAIN = "smaller slices of parameters and states", "computing cells again"


@dataclass(frozen=True)
class Variant:
    """A usual plan that takes less memory. words: what is done. settings: of `Config`, otherwise than in the plan.
    again: whether cells are computed again for gradients."""

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    again: bool = False


def variants_of(graph: Graph) -> tuple[list[Variant], list[Variant]]:
    """The variants of a compiled plan: of which the quickest is taken, and what is tried where none of those fits. None
    where nothing is trained."""
    phases = {node.phase for node in graph.nodes}
    slices = [Variant(SMALLER, SLICES)] if "update" in phases else []
    again = [Variant(AGAIN, again=True)] if "backward" in phases else []
    return slices + again, [Variant(f"{SMALLER} and {AGAIN}", SLICES, again=True)] if slices and again else []
