"""Random small networks with random legal strategies, built straight as graphs; for property tests."""

from __future__ import annotations

import math
import random

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.op import REGISTRY, Op
from mspc.passes.sharding.choices import composite_conflict, rule_of
from mspc.sharding.factors import Rule

RANKS = (2, 4, 6, 8, 12)


def random_strategy(rule: Rule, ranks: int, rng: random.Random) -> tuple[tuple[int, ...], ...] | None:
    """One legal in_strategy of an operator with this rule; None where the draw is not legal."""
    cuts = [1] * len(rule.sizes)
    for f in rng.sample(range(len(cuts)), len(cuts)):
        if f in rule.frozen:
            continue
        room = ranks // math.prod(cuts)
        legal = [n for n in range(1, room + 1) if rule.sizes[f] % n == 0 and ranks % (math.prod(cuts) * n) == 0]
        cuts[f] = rng.choice(legal)
    mesh = (*cuts, ranks // math.prod(cuts))
    if composite_conflict(rule, mesh, [(i,) if c > 1 else () for i, c in enumerate(cuts)]):
        return None
    return tuple(tuple(math.prod(cuts[f] for f in dim) for dim in dims) for dims in rule.inputs)


class RandomNetwork:
    """Grows a training graph: a chain with side branches, a scalar loss, gradients of all weights, plain updates."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.ranks = rng.choice(RANKS)
        self.graph = Graph(f"random_{seed}")
        self.graph.attrs = {
            "ranks": self.ranks,
            "mode": rng.choice(["semi_auto_parallel", "semi_auto_parallel", "auto_parallel"]),
            "outputs": rng.choice(["whole", "batch"]),
        }
        self.builder = Builder(self.graph)
        self.weights: list[Parameter] = []
        base = 24 if self.ranks in (6, 12) else 8
        rows, columns = base * rng.choice([1, 2]), base * rng.choice([1, 2])
        x = self.parameter("x", (rows, columns), "input")
        whole = Layout.replicated(self.ranks, 2)
        x.layout = rng.choice([whole, Layout.of((self.ranks,), [(0,), ()])])
        values: list[Value] = [x]
        for _ in range(rng.randint(2, 6)):
            values.append(self.grow(values))
        self.finish(values[-1])

    def parameter(self, name: str, shape: tuple[int, ...], kind: str = "parameter") -> Parameter:
        made = Parameter(name, TensorType(FLOAT64, shape), kind, kind == "parameter")
        self.graph.parameters.append(made)
        if kind == "parameter":
            self.weights.append(made)
        return made

    def emit(self, op: Op, *inputs: Value) -> Node:
        node = self.builder.emit(op, *inputs, instance=f"op{len(self.graph.nodes)}")
        rule = rule_of(node)
        if rule is not None and self.rng.random() < 0.6:
            node.in_strategy = random_strategy(rule, self.ranks, self.rng)
        return node

    def grow(self, values: list[Value]) -> Value:
        rng, x = self.rng, values[-1]
        rows, columns = x.shape
        kind = rng.choice(
            ["matmul", "matmul", "bias", "unary", "branch", "reshape", "transpose", "gate", "shared", "split"]
        )
        if kind == "matmul":
            transpose = rng.random() < 0.5
            n = rng.choice([columns, rows])
            w = self.parameter(f"w{len(self.weights)}", (n, columns) if transpose else (columns, n))
            return self.emit(REGISTRY["MatMul"](transpose_b=transpose), x, w)
        if kind == "bias":
            return self.emit(REGISTRY["Add"](), x, self.parameter(f"w{len(self.weights)}", (columns,)))
        if kind == "unary":
            return self.emit(REGISTRY[rng.choice(["ReLU", "Tanh", "Square", "Neg", "Sigmoid"])](), x)
        if kind == "branch":
            others = [v for v in values if v.shape == x.shape]
            return self.emit(REGISTRY[rng.choice(["Add", "Sub", "Mul"])](), x, rng.choice(others))
        if kind == "gate":
            mean = self.emit(
                REGISTRY[rng.choice(["ReduceMean", "ReduceSum"])](keep_dims=True, axis=(rng.choice([0, 1]),)), x
            )
            return self.emit(REGISTRY["Sub"](), x, mean)
        if kind == "reshape":
            shape = rng.choice([(rows // 2, columns * 2), (rows * 2, columns // 2), (columns, rows)])
            return self.emit(REGISTRY["Reshape"](shape=shape), x)
        if kind == "transpose":
            return self.emit(REGISTRY["Transpose"](perm=(1, 0)), x)
        if kind == "split":
            pair = self.emit(REGISTRY["Split"](axis=1, output_num=2), x)
            left = self.builder.emit(TupleGetItem(0), pair)
            right = self.builder.emit(TupleGetItem(1), pair)
            return self.emit(REGISTRY["Concat"](axis=rng.choice([0, 1])), right, self.emit(REGISTRY["Tanh"](), left))
        weight = rng.choice(self.weights) if self.weights else self.parameter("w0", (columns,))
        if weight.shape in (x.shape, (columns,)):
            return self.emit(REGISTRY["Mul"](), x, weight)
        return self.emit(REGISTRY["Tanh"](), x)

    def finish(self, last: Value) -> None:
        b = self.builder
        scaled = self.emit(REGISTRY["Tanh"](), last)
        reduce = REGISTRY[self.rng.choice(["ReduceMean", "ReduceSum"])](axis=(0, 1))
        loss = self.emit(reduce, scaled)
        self.graph.results = [loss]
        if self.rng.random() < 0.5:
            self.graph.results.append(scaled)
        if not self.weights:
            return
        grads = b.emit(Gradient(), loss, *self.weights)
        b.phase = "update"
        rate = b.constant(0.5, FLOAT64)
        for i, weight in enumerate(self.weights):
            step = b.emit(REGISTRY["Mul"](), b.emit(TupleGetItem(i), grads), rate)
            b.emit(REGISTRY["AssignSub"](), weight, step)
