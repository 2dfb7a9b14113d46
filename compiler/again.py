"""The graphs of all ranks once more, from the network as it was read: of a compile whose dumps were not kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mspc.compiler.driver import Stage, identity, run_shared_passes
from mspc.compiler.pipeline import passes_of
from mspc.compiler.plan_file import PlanFile
from mspc.compiler.planned import cut_by_plan
from mspc.compiler.rank_graphs import copied
from mspc.compiler.strategy_names import CONFIGURED, StrategyNames
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.layout import Layout
from mspc.ir.text.fragments import Malformed, read_layouts
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import PassManager

DEVICES = ("CPU", "GPU")
"""Those that graphs of all ranks are made for."""
PLANNED = "the program"
"""Where layouts of a plan come from, in messages."""


def stages_again(
    network: str, path: str, compile_id: str, wanted: Collection[str], plan: PlanFile | None
) -> dict[str, Graph]:
    """The graph behind each pass that is `wanted`.

    Args:
        network: the text of the graph as it was read, with what passes read from its header. path: of the file that has
            it. compile_id: of the compile. plan: that the script's operators and parameters were cut by.

    Returns:
        Nothing where the passes do not lead to that very program, as one whose graph has been edited.

    Raises:
        MspcError: the text is no graph.
    """
    for device in DEVICES:
        graph = read_network(network, path)
        try:
            identified, found = _stages(graph, device, plan, wanted)
        except MspcError:
            continue
        if identified == compile_id:
            return found
    return {}


def plan_of_texts(
    ranks: int, path: str, operators: Mapping[str, Sequence[str]], parameters: Mapping[str, str],
    gather_again: Sequence[str], recompute: Sequence[str] = (), results: Mapping[str, Sequence[str]] | None = None,
) -> PlanFile:  # fmt: skip
    """A plan whose layouts are texts. path: of the file that has them. Raises MspcError where one cannot be read."""
    return PlanFile(
        ranks,
        {name: _layouts(path, name, texts) for name, texts in operators.items()},
        {name: layout for name, text in parameters.items() for layout in _layouts(path, name, [text])},
        tuple(recompute),
        tuple(gather_again),
        {name: _layouts(path, name, texts) for name, texts in (results or {}).items()},
    )


def _layouts(path: str, name: str, texts: Sequence[str]) -> tuple[Layout, ...]:
    try:
        return tuple(layout for text in texts for layout in read_layouts(text))
    except Malformed as error:
        raise MspcError(f"{path} is damaged: a layout of {name}: {error}") from None


def read_network(text: str, path: str) -> Graph:
    """The graph of such a text. path: of the file that has it. Raises MspcError where it is none."""
    module = parse(text, REGISTRY, path, frames=True)
    if len(module.graphs) != 1:
        raise MspcError(f"{path} is damaged: its network has {len(module.graphs)} graphs")
    graph = module.graphs[0]
    graph.attrs = {**module.attrs, **graph.attrs}
    check_graph(graph)
    return graph


def _stages(
    graph: Graph, device: str, plan: PlanFile | None, wanted: Collection[str]
) -> tuple[str, dict[str, Graph]]:
    """(the identity of the program, graphs)."""
    said = graph.attrs.get("ranks")
    ranks = said if isinstance(said, int) else 1
    names = StrategyNames()
    names.name(graph)
    found: dict[str, Graph] = {}

    def look(stage: Stage) -> None:
        if stage.name == CONFIGURED and plan is not None:
            names.name_made(stage.graph)
            cut_by_plan(names, stage.graph, plan, PLANNED)
        if stage.name in wanted:
            found[stage.name] = copied(stage.graph)

    graph = run_shared_passes(graph, passes_of(str(graph.attrs.get("mode", "")), device), look, PassManager())
    return identity(ranks, print_graph(graph)), found
