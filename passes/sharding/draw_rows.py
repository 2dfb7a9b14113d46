"""In data parallel mode, draws for a rank's rows the random numbers that one device draws for them in the global batch.

Input:  `%2 = Dropout(%1) {keep_prob: 0.9}` in the graph that every rank runs on rows of its own, fed `(4) [0, -]`
Output: the same with `rows: (0, 1)`: along dimension 0 rank r of 4 draws what one device draws for the r-th quarter

The rows of the batch in a value follow from the inputs through the operators' factor rules; if a value is
made of random numbers alone, from the values combined with it; and if nothing tells, its first dimension is taken
for the batch if it has the batch's size and belongs to no parameter. Values without rows, such as
a mask of weights, are sampled alike by all ranks. Regions are opened: rows are followed into loops, branches and called
graphs and out of them again.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ops.random.words import draws_by_place
from mspc.passes.base import GLOBAL, WHOLE, Pass
from mspc.passes.lib.batch_rows import FIRST, FedRows, Rows
from mspc.passes.lib.gradients import number_calls
from mspc.passes.lib.opened_graphs import opened


class DrawRows(Pass):
    needs = (GLOBAL,)
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        draws = any(draws_by_place(node.op) for node in graph.all_nodes())
        if int(graph.attrs.get("ranks", 1)) == 1 or not draws:
            return False
        number_calls(graph)  # before graphs that several nodes run become different ones
        with opened(graph):
            found = random_rows(graph)
            for node, (dimension, outer) in found.items():
                if draws_by_place(node.op):
                    node.op = node.op.over_rows(dimension, outer)
        return bool(found)


def random_rows(graph: Graph) -> dict[Node, Rows]:
    """Return the places of the ranks' rows in the results of operators that draw, of those that have rows."""
    # Of these inputs every rank feeds rows of its own.
    fed: dict[Value, Rows] = {}
    for parameter in graph.parameters:
        layout = parameter.layout
        if isinstance(parameter, Parameter) and parameter.kind == "input" and isinstance(layout, Layout):
            sharded = [d for d, axes in enumerate(layout.dims) if axes]
            if sharded:
                fed[parameter] = sharded[0], 1
    draws = [node for node in graph.nodes if draws_by_place(node.op)]
    pinned: dict[Value, Rows] = {}
    while True:
        rows = FedRows(graph, fed | pinned)
        found = {node: place for node in draws if (place := rows.of(node)) is not None}
        guessed = next((n for n in draws if n not in found and rows.may_be_rows(n)), None)
        if guessed is None:
            return found
        pinned[guessed] = FIRST
