"""Random graphs with regions inside of regions, for passes that must keep what a graph computes.

Nothing grows: values stay near one through Tanh. Conditions compare integers, so that no rounding decides.
"""

import random
from collections.abc import Sequence
from typing import Any

from mspc.ops.control.regions import Call, For, If, Loop, RegionOp, Scan, While, captured_values, emit_regions, outlined
from tests.graphs import FLOAT64, INT64, REGISTRY, Builder, Constant, Graph, Node, Parameter, TensorType, Value

COUNT = TensorType(INT64, ())
ROWS, WIDTH, RANKS = 8, 16, 8
STRATEGIES: Sequence[Any] = (
    None, None, ((8, 1), (1, 1)), ((1, 8), (8, 1)), ((1, 1), (1, 8)), ((2, 2), (2, 2)), ((2, 1), (1, 4)),
    ((1, 2), (2, 4)),
)  # fmt: skip
"""The shapes of a product of rows by a weight."""


class RandomRegions:
    """Makes one graph.

    differentiated: it also returns gradients. overwrites: regions overwrite a parameter; by default where it does not.
    """

    def __init__(
        self, seed: int, mode: str = "semi_auto_parallel", depth: int = 3, differentiated: bool = False,
        overwrites: bool | None = None,
    ) -> None:  # fmt: skip
        self.generator = random.Random(seed)
        self.graph = Graph("net")
        self.graph.attrs = {"mode": mode, "ranks": RANKS}
        self.depth, self.overwrites = depth, not differentiated if overwrites is None else overwrites
        x = Parameter("x", TensorType(FLOAT64, (ROWS, WIDTH)))
        n, k = Parameter("n", COUNT), Parameter("k", COUNT)
        self.weights = [
            Parameter(f"w{i}", TensorType(FLOAT64, (WIDTH, WIDTH)), "parameter", trainable=True) for i in range(2)
        ]
        self.state = Parameter("state", TensorType(FLOAT64, (ROWS, WIDTH)), "parameter")
        self.graph.parameters = [x, n, k, *self.weights, self.state]
        self.strategies = [self.generator.choice(STRATEGIES) for _ in self.weights]
        self.numbers = 0
        self.nodes = self.graph.nodes
        rows = self.block([x], [n, k], depth)
        self.graph.results = [*rows[-2:], *(self.gradients(rows[-2:], [x, *self.weights]) if differentiated else ())]
        self.graph.returns_tuple = len(self.graph.results) > 1

    def gradients(self, rows: Sequence[Value], wanted: Sequence[Value]) -> list[Value]:
        """The gradients of the sum of products of these rows with themselves."""
        squares = [self.emit("Mul", row, row) for row in rows]
        loss = self.emit("ReduceSum", self.emit("AddN", *squares), axis=(), keep_dims=False)
        asked = self.emit("Gradient", loss, *wanted)
        return [self.item(asked, i) for i in range(len(wanted))]

    def emit(self, name: str, *inputs: Value, **attributes: Any) -> Node:
        return Builder(self.graph, self.nodes).emit(REGISTRY[name](**attributes), *inputs)

    def block(self, rows: Sequence[Value], counts: Sequence[Value], depth: int) -> list[Value]:
        """Some nodes; the rows that there are then."""
        found = list(rows)
        for _ in range(self.generator.randint(2, 4)):
            kinds = ["product", "add", "tanh", "multiply", "moved"]
            if self.overwrites:
                kinds.append("overwrite")
            if depth:
                kinds += ["if", "while", "for", "turns", "scan", "call"]
            found.append(getattr(self, f"make_{self.generator.choice(kinds)}")(found, list(counts), depth))
        return found

    # Operators ------------------------------------------------------------------------------------------------

    def make_product(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        number = self.generator.randrange(len(self.weights))
        made = self.emit("MatMul", self.generator.choice(rows), self.weights[number])
        made.in_strategy = self.strategies[number]
        return self.emit("Tanh", made)

    def make_add(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        return self.emit("Tanh", self.emit("Add", self.generator.choice(rows), self.generator.choice(rows)))

    def make_tanh(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        return self.emit("Tanh", self.generator.choice(rows))

    def make_multiply(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        number = self.emit("Cast", self.emit("Add", counts[0], Constant(1, INT64)), dst_type=FLOAT64)
        return self.emit("Tanh", self.emit("Mul", self.generator.choice(rows), number))

    def make_moved(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        total = self.emit("ReduceSum", self.generator.choice(rows), axis=(1,), keep_dims=True)
        return self.emit("Tanh", self.emit("Add", total, self.generator.choice(rows)))

    def make_overwrite(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        before = self.emit("Tanh", self.emit("Add", self.state, self.generator.choice(rows)))
        self.emit("Assign", self.state, before).phase = "update"
        return self.emit("Tanh", self.emit("Mul", before, self.generator.choice(rows)))

    # Regions --------------------------------------------------------------------------------------------------

    def name(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}_{self.numbers}"

    def inside(self, own: Sequence[Value], rows: Sequence[Value], counts: Sequence[Value], depth: int) -> list[Node]:
        """Nodes of a region, whose rows are then `self.left`."""
        outer, self.nodes = self.nodes, []
        self.left = self.block(rows, counts, depth - 1)
        nodes, self.nodes = self.nodes, outer
        return nodes

    def region_node(
        self, op: RegionOp, given: Sequence[Value], parts: Sequence[tuple[str, list[Node], list[Value], list[Value]]]
    ) -> Node:
        """A node of regions, each with its name, nodes, results, and parameters that are handed in."""
        captured: list[Value] = []
        for _, nodes, results, own in parts:
            captured += [v for v in captured_values(nodes, results, own) if v not in captured]
        regions = [outlined(name, nodes, results, own, captured)[0] for name, nodes, results, own in parts]
        return emit_regions(Builder(self.graph, self.nodes), op, [*given, *captured], regions)

    def item(self, node: Node, index: int) -> Value:
        return self.emit("TupleGetItem", node, index=index)

    def make_if(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        condition = self.emit("Less", self.generator.choice(counts), Constant(self.generator.randint(0, 3), INT64))
        name = self.name("if")
        parts: list[tuple[str, list[Node], list[Value], list[Value]]] = []
        for branch in ("then", "else"):
            nodes = self.inside((), rows, counts, depth)
            parts.append((f"{name}_{branch}", nodes, [self.left[-1], self.generator.choice(self.left)], []))
        node = self.region_node(If(), [condition], parts)
        return self.item(node, self.generator.randint(0, 1))

    def make_call(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        nodes = self.inside((), rows, counts, depth)
        node = self.region_node(Call(), [], [(self.name("call"), nodes, [self.left[-1]], [])])
        first = self.item(node, 0)
        if self.generator.random() < 0.5 or node.op.mutates:
            return first
        inputs = [first if v.type == first.type and v is not self.state else v for v in node.inputs]
        again = emit_regions(Builder(self.graph, self.nodes), Call(), inputs, node.regions)
        return self.item(again, 0)

    def make_while(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        bound = self.generator.choice(counts)
        i, row = Value(COUNT, "i"), Value(rows[-1].type, "row")
        outer, self.nodes = self.nodes, []
        condition = self.emit("Less", i, bound)
        test, self.nodes = self.nodes, outer
        nodes = self.inside((), [*rows, row], [*counts, i], depth)
        self.nodes = nodes
        step = self.emit("Add", i, Constant(1, INT64))
        self.nodes = outer
        begin = self.generator.choice(rows)
        name = self.name("while")
        parts = [
            (f"{name}_condition", test, [condition], [i, row]),
            (f"{name}_body", nodes, [step, self.left[-1]], [i, row]),
        ]
        node = self.region_node(While(carried=2), [Constant(0, INT64), begin], parts)
        return self.item(node, 1)

    def make_for(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        """With a number of turns that an operand says."""
        return self.loop(For(carried=1, reverse=self.generator.random() < 0.5), rows, counts, depth)

    def make_turns(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        op = For(carried=1, stacked=1, turns=self.generator.randint(1, 3), reverse=self.generator.random() < 0.5)
        return self.loop(op, rows, counts, depth)

    def make_scan(self, rows: list[Value], counts: list[Value], depth: int) -> Value:
        return self.loop(Scan(carried=1, scanned=1, stacked=1, turns=2), rows, counts, depth)

    def loop(self, op: Loop, rows: list[Value], counts: list[Value], depth: int) -> Value:
        row = Value(rows[-1].type, "row")
        begin = self.generator.choice(rows)
        if self.generator.random() < 0.4:
            begin = self.emit("BroadcastTo", Constant(0.25, FLOAT64), shape=(ROWS, WIDTH))
        own: list[Value] = [Value(COUNT, "turn")] if op.leading else []
        given: list[Value] = [self.generator.choice(counts)] if op.first else []
        entries: list[Value] = []
        if op.scanned:
            entries = [Value(row.type, "entry")]
            given = [begin, self.emit("Stack", *self.generator.choices(rows, k=2), axis=0)]
        else:
            given.append(begin)
        nodes = self.inside((), [*rows, *entries, row], [*counts, *own], depth)
        results = [self.left[-1], *(self.generator.choice(self.left) for _ in range(op.stacked))]
        name = f"{self.name(op.name.lower())}_body"
        node = self.region_node(op, given, [(name, nodes, results, [*own, row, *entries])])
        if not op.stacked or self.generator.random() < 0.5:
            return self.item(node, 0)
        return self.emit("Tanh", self.emit("ReduceSum", self.item(node, 1), axis=(0,), keep_dims=False))
