"""Attention that is written out operator by operator, and the pass run on it."""

from typing import Any

from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.graphs import FLOAT32, REGISTRY, Graph, Node, difference, parse, print_graph
from tests.interpret import random_feeds, run_global, same
from tests.passes.fusion.written import WrittenGraph

HEADS = (2, 4, 1, 1)
"""A strategy that shards batch and heads."""


class Written(WrittenGraph):
    """query, key, value [4, 8, 6, 2] -> attention, operator by operator; subclasses' methods change one of them."""

    def __init__(self, dtype: Any = FLOAT32) -> None:
        super().__init__()
        self.graph.attrs = {"mode": "semi_auto_parallel", "ranks": 8}
        self.query, self.key, self.value = (self.parameter(name, (4, 8, 6, 2), dtype) for name in ("q", "k", "v"))

    def scores(self, strategy: Any = None) -> Node:
        return self.emit("BatchMatMul", self.query, self.key, transpose_b=True, strategy=strategy)

    def finish(self, scores: Node, softmax: Any = None, mix: Any = None) -> Graph:
        weights = self.emit("Softmax", scores, strategy=softmax)
        self.graph.results = [self.emit("BatchMatMul", weights, self.value, strategy=mix)]
        return self.graph


def fused(graph: Graph) -> Node | None:
    """Run the pass; the operator that it made. The text reads back equal, and the numbers stay."""
    before = parse(print_graph(graph), REGISTRY).main
    changed = FuseAttention().run(graph)
    graph.verify()
    assert difference(parse(print_graph(graph), REGISTRY).main, graph) == ""
    assert changed == (difference(before, graph) != "")
    feeds = random_feeds(before)
    same(run_global(graph, feeds), run_global(before, feeds))
    found = [node for node in graph.nodes if node.op.name == "FlashAttentionScore"]
    assert len(found) <= 1
    return found[0] if found else None
