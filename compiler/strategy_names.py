"""What strategy files call the operators of a graph, and how a graph gets its strategies from such a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mspc.checkpoint.strategy_file import Cuts, read_strategies
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.types import TensorType

STRATEGIES = "step_parallel_begin"
"""The stage that the strategies are read from."""
MOST_LISTED = 5


@dataclass
class StrategyNames:
    """The cuts of operators: of those that read a trainable parameter as `MatMul_w`, and of all as
    `Default/network-Net/MatMul-op0`, by their cells and their place among those of their kind."""

    by_parameter: dict[str, Cuts] = field(default_factory=dict[str, Cuts])
    by_place: dict[str, Cuts] = field(default_factory=dict[str, Cuts])

    def note(self, graph: Graph) -> None:
        """Keep the cuts of a graph's operators."""
        for node, names, place in _named(graph):
            if node.strategy is not None:
                cuts = tuple(tuple(entry) for entry in node.strategy)
                self.by_place[place] = cuts
                self.by_parameter.update(dict.fromkeys(names, cuts))


def cut_as_in_file(graph: Graph, file: str) -> None:
    """Give the operators that a strategy file names the strategies that it has for them; they go before the script's.

    Raises:
        MspcError: there is no such file, or it names no operator of the graph, or cuts one of other dimensions.
    """
    known = read_strategies(Path(file)).operators
    seen: list[str] = []
    met = False
    for node, names, place in _named(graph):
        seen += names
        cuts = next((known[name] for name in (place, *names) if name in known), None)
        if cuts is None or node.op.is_collective:
            continue
        met = True
        shapes = [value.type.shape for value in node.inputs if isinstance(value.type, TensorType)]
        given = [cut for cut in cuts if cut] if len(cuts) != len(shapes) else list(cuts)
        if len(given) > len(shapes) or any(len(c) != len(s) for c, s in zip(given, shapes, strict=False) if c):
            raise node.error(
                f"{node.label}: the strategy file {file} cuts it {cuts}, its operands have shapes {tuple(shapes)}",
                ["the strategy file is of another network"],
            )
        if any(n != 1 for cut in given for n in cut):
            node.in_strategy, node.out_strategy = tuple(given), None
    if known and not met:
        raise MspcError(
            f"the strategy file {file} names no operator of this network", kind=ValueError,
            notes=[f"it names {_listed(sorted(known))}; the network has {_listed(sorted(set(seen)))}"],
        )  # fmt: skip


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "") or "none"


def _named(graph: Graph) -> Iterator[tuple[Node, list[str], str]]:
    """(node, its names by trainable parameters, its name by its place) of every forward operator."""
    count: Counter[str] = Counter()
    for node in graph.nodes:
        if node.phase != "forward":
            continue
        kind = f"{node.scope or 'Default'}/{node.op.name}"
        parameters = [v.name for v in node.inputs if isinstance(v, Parameter) and v.kind == "parameter" and v.trainable]
        yield node, [f"{node.op.name}_{name}" for name in parameters], f"{kind}-op{count[kind]}"
        count[kind] += 1
