"""Attention with masks, written out with its gradients."""

from typing import Any

import numpy as np

from mspc.ops.control.structural import Gradient, TupleGetItem
from tests.graphs import FLOAT32, Graph, Node, Parameter, Value
from tests.passes.fusion.written import WrittenGraph

LOWEST = float(np.finfo(np.float32).min)
BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 3, 4, 5, 2


class Masked(WrittenGraph):
    """query, key, value, and the gradient of the result -> attention in `layout` with its gradients."""

    def __init__(self, layout: str = "BNSD", dtype: Any = FLOAT32, key_heads: int = HEADS) -> None:
        super().__init__(dtype)
        self.layout = layout
        self.names: list[Parameter] = []
        self.query = self._sequence("q", QUERIES, HEADS)
        self.key, self.value = (self._sequence(name, KEYS, key_heads) for name in "kv")

    def _sequence(self, name: str, length: int, heads: int) -> Value:
        if self.layout == "BSH":
            self.names.append(self.parameter(name, (BATCH, length, DEPTH)))
            return self.names[-1]
        if self.layout == "BNSD":
            self.names.append(self.parameter(name, (BATCH, heads, length, DEPTH)))
            return self.names[-1]
        self.names.append(self.parameter(name, (BATCH, length, heads, DEPTH)))
        return self.emit("Transpose", self.names[-1], perm=(0, 2, 1, 3))

    def scores(self) -> Node:
        return self.emit("Mul", self.emit("BatchMatMul", self.query, self.key, transpose_b=True), 0.5)

    def filled(self, scores: Value, mask: Value, number: float, select: bool = False) -> Node:
        if select:
            return self.emit("Select", self.emit("LogicalNot", mask), scores, number)
        return self.emit("MaskedFill", scores, mask, number)

    def finish(self, scores: Value, *others: Parameter) -> Graph:
        """Results are the attention and the gradients of query, key, value and `others`."""
        mixed = self.emit("BatchMatMul", self.emit("Softmax", scores), self.value)
        if self.layout == "BSND":
            mixed = self.emit("Transpose", mixed, perm=(0, 2, 1, 3))
        slope = self.parameter("slope", mixed.shape)
        wanted = [*self.names, *others]
        found = self.b.emit(Gradient(1, True), mixed, *wanted, slope)
        self.graph.results = [mixed, *(self.b.emit(TupleGetItem(i), found) for i in range(len(wanted)))]
        self.graph.returns_tuple = True
        return self.graph


def with_whole_rows(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A mask in which some rows are masked as a whole, some not, and others here and there."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, 3, (*shape[:-1], 1))
    kind.flat[0] = 0
    return np.where(kind == 0, True, (kind == 1) & (random.random(shape) < 0.5))
