"""Describes what a pass may need of the graph that it is given, and the message where the graph lacks it."""

from __future__ import annotations

from collections.abc import Callable

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.structural import Gradient
from mspc.ops.op import Op
from mspc.passes.sharding.search_terms import wants_search


@dataclass(frozen=True)
class Need:
    """A property of graphs.

    lacks: the node for which a graph has it not, True where that is no single node, or None. wants: what the pass
    needs, and in which the graph fails; `{label}` is replaced by the node's. remedy: what would be right.
    """

    lacks: Callable[[Graph], Node | bool | None]
    wants: str
    remedy: str

    def check(self, name: str, graph: Graph) -> None:
        """Raise MspcError where the graph has not what the pass `name` needs."""
        found = self.lacks(graph)
        if not found:
            return
        label, frames = (found.label, found.frames) if isinstance(found, Node) else ("", ())
        message = f"pass {name} needs {self.wants.format(label=label)}"
        raise MspcError(message, notes=[self.remedy.format(name=name)], frames=frames)


def _of_one_rank(graph: Graph) -> bool:
    return "rank" in graph.attrs


def _unknown(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if not isinstance(node.op, Op)), None)


def _asked(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if isinstance(node.op, Gradient)), None)


def _to_be_lowered(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if isinstance(node.op, Redistribute)), None)


def _unsearched(graph: Graph) -> bool:
    return wants_search(graph) and "search_cost" not in graph.attrs


GLOBAL = Need(
    _of_one_rank,
    "a graph of all ranks; the header of this one names its rank",
    "run {name} before slice_to_rank",
)
KNOWN = Need(_unknown, "operators that mspc knows; no operator is called {label}", "`mspc ops` lists them")
DIFFERENTIATED = Need(
    _asked, "gradients made of operators; {label} only asks for them", "run grad before {name}"
)
LOWERED = Need(
    _to_be_lowered, "collectives; {label} is still to become some", "run lower_redistribution before {name}"
)
SEARCHED = Need(
    _unsearched,
    "layouts that a search has decided on; the header of this graph has search_mode, and no layouts were searched",
    "run search_sharding before {name}, or take search_mode out of the header",
)
