"""Makes the graphs of all ranks once more from the traced network, for a compile that stored no dumps."""

from __future__ import annotations

from collections.abc import Collection

from mspc.compiler.driver import DumpPoint, identity, run_shared_passes
from mspc.compiler.pipeline import shared_passes
from mspc.compiler.rank_graphs import copied
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import PassManager

DEVICES = ("CPU", "GPU")
"""Those that graphs of all ranks are made for."""


def stages_again(network: str, path: str, compile_id: str, wanted: Collection[str]) -> dict[str, Graph]:
    """The graph behind each pass that is `wanted`.

    Args:
        network: the text of the graph as it was read, with what passes read from its header. path: of the file that has
            it. compile_id: of the compile.

    Returns:
        Nothing where the passes do not lead to that very program, as one whose graph has been edited.

    Raises:
        MspcError: the text is no graph.
    """
    for device in DEVICES:
        graph = read_network(network, path)
        try:
            identified, found = _stages(graph, device, wanted)
        except MspcError:
            continue
        if identified == compile_id:
            return found
    return {}


def read_network(text: str, path: str) -> Graph:
    """The graph of such a text. path: of the file that has it. Raises MspcError where it is none."""
    module = parse(text, REGISTRY, path, frames=True)
    if module.dialect:
        raise MspcError(f"{path} is damaged: its network is a graph of {module.dialect}")
    graph = module.main
    graph.attrs = {**module.attrs, **graph.attrs}
    check_graph(graph)
    return graph


def _stages(graph: Graph, device: str, wanted: Collection[str]) -> tuple[str, dict[str, Graph]]:
    """(the identity of the program, graphs)."""
    said = graph.attrs.get("ranks")
    ranks = said if isinstance(said, int) else 1
    found: dict[str, Graph] = {}

    def look(stage: DumpPoint) -> None:
        if stage.name in wanted:
            found[stage.name] = copied(stage.graph)

    graph = run_shared_passes(graph, shared_passes(str(graph.attrs.get("mode", "")), device), look, PassManager())
    return identity(ranks, print_graph(graph)), found
