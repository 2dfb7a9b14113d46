"""Random networks of all operators that have samples: `python -m tests.wide_networks SEED COUNT [STEPS]`.

A chain of values passes through operators as their samples call them: a value of the chain takes the place of an
operand, the others are weights or inputs, and what comes out goes on in the chain. So an operator with samples is here
by itself. A training step on sharded ranks must equal one device's, in float64, for several steps.

Prints one line per network that differs, with its seed, and a closing line with the number of operators that were used;
exits with 1 if any differs.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType, TupleType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, Sample
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.sharding.choices import rule_of
from tests.interpret import Arrays, run_on_ranks, run_whole, same
from tests.networks import random_strategy
from tests.ops.simulate import types_of

PASSES = (
    "grad,simplify,recompute,check_strategies,decompose,propagate_sharding,insert_redistribution,"
    "lower_redistribution,fuse_gradients"
)
RANKS = (2, 3, 4, 6, 8, 8, 12, 16, 24)
TOLERANCE = 1e-9
SHAPE = (24, 16)
"""Of the values of the chain."""
LEFT_OUT = frozenset({"collective", "control", "fused", "optim"})
"""Rooms of operators that stand in no network, or are not grown here."""
OTHERWISE_CUT = frozenset({
    "DropoutDoMask", "Embedding", "LinSpaceBetween", "OneHot", "OneHotExt", "PadV3", "RemainderScalarTensor",
    "RemainderTensorScalar", "RepeatInterleaveTensor", "Tile",
})  # fmt: skip
"""Operators whose strategies are written in another way than their rules."""


def usable() -> list[str]:
    """Names of the operators with a sample that takes a floating value of the chain and gives floating values."""
    found: list[str] = []
    for name, op in sorted(REGISTRY.items()):
        room = op.__module__.split(".")[2]
        plain = room not in LEFT_OUT and not name.endswith("Grad") and not op.mutates
        if plain and any(map(_fits, op.samples)):
            found.append(name)
    return found


def _fits(sample: Sample) -> bool:
    names = sample.dtypes or ("Float64",) * len(sample.shapes)
    small = all(math.prod(shape) <= 4096 for shape in sample.shapes)
    return small and bool(names) and "Float64" in names and not {"Float16", "BFloat16"} & set(names)


class WideNetwork:
    """Grows a training graph of `length` operators; `feeds` are the values of its parameters."""

    def __init__(self, seed: int, names: list[str]) -> None:
        self.rng = rng = random.Random(seed)
        self.random = np.random.default_rng(seed)
        self.ranks = rng.choice(RANKS)
        self.graph = Graph(f"wide_{seed}")
        mode = rng.choice(["semi_auto_parallel", "semi_auto_parallel", "auto_parallel"])
        self.graph.attrs = {"ranks": self.ranks, "mode": mode, "outputs": rng.choice(["whole", "batch"])}
        self.builder = Builder(self.graph)
        self.feeds: Arrays = {}
        self.used: Counter[str] = Counter()
        x = self.parameter("x", TensorType(FLOAT64, SHAPE), -1.0, 1.0, "input")
        whole = Layout.replicated(self.ranks, 2)
        cut = Layout.of((self.ranks,), [(0,), ()]) if SHAPE[0] % self.ranks == 0 else whole
        x.layout = rng.choice([whole, cut])
        value: Value = x
        values = [value]
        for _ in range(rng.randint(2, 6)):
            value = self.grow(rng.choice(names), value)
            if rng.random() < 0.3:
                value = self.emit(REGISTRY[rng.choice(["Add", "Sub", "Maximum"])](), value, rng.choice(values))
            values.append(value)
        self.finish(value)

    def parameter(self, name: str, type: TensorType, low: float, high: float, kind: str = "parameter") -> Parameter:
        made = Parameter(name, type, kind, kind == "parameter" and type.dtype.is_float)
        self.graph.parameters.append(made)
        if kind == "input":
            made.layout = Layout.replicated(self.ranks, len(type.shape))
        if type.dtype.is_float:
            self.feeds[name] = self.random.uniform(low, high, type.shape).astype(type.dtype.numpy)
        else:
            top = 2 if type.dtype.name == "Bool" else max(int(low) + 1, math.ceil(high))
            self.feeds[name] = self.random.integers(max(0, int(low)), top, type.shape).astype(type.dtype.numpy)
        return made

    def emit(self, op: Op, *inputs: Value, instance: str = "") -> Node:
        node = self.builder.emit(op, *inputs, instance=instance or f"op{len(self.graph.nodes)}")
        self.used[op.name] += 1
        rule = rule_of(node) if op.name not in OTHERWISE_CUT else None
        if rule is not None and self.rng.random() < 0.6:
            node.in_strategy = random_strategy(rule, self.ranks, self.rng)
        if self.rng.random() < 0.15:
            node.attrs["recompute"] = "net"
        return node

    def grow(self, name: str, x: Value) -> Value:
        """The chain's next value, behind an operator called as in one of its samples."""
        cls = REGISTRY[name]
        sample = self.rng.choice([s for s in cls.samples if _fits(s)])
        op = cls(**sample.fields)
        types = types_of(sample)
        floats = [i for i, type in enumerate(types) if type.dtype == FLOAT64]
        chosen = self.rng.choice(floats)
        operands: list[Value] = []
        for i, type in enumerate(types):
            if i == chosen:
                operands.append(self.squashed(self.fitted(x, type.shape), sample))
                continue
            kind = "parameter" if type.dtype.is_float and self.rng.random() < 0.7 else "input"
            title = f"{'w' if kind == 'parameter' else 'i'}{len(self.graph.parameters)}"
            operands.append(self.parameter(title, type, sample.low, sample.high, kind))
        node = self.emit(op, *operands)
        made = [node] if isinstance(node.type, TensorType) else []
        if isinstance(node.type, TupleType):
            made = [self.builder.emit(TupleGetItem(i), node) for i in range(len(node.type.elements))]
        made = [value for value in made if value.tensor_type.dtype == FLOAT64]
        if not made:
            return x
        result: Value = self.rng.choice(made)
        if isinstance(op.bprop, NotDifferentiable) or not sample.gradient:
            result = self.emit(REGISTRY["StopGradient"](), result)
        return self.emit(REGISTRY["Tanh"](), self.fitted(result, SHAPE))

    def fitted(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The value in another shape: its begin, repeated where that is not enough."""
        have, want = math.prod(x.shape), math.prod(shape)
        flat: Value = x if len(x.shape) == 1 else self.emit(REGISTRY["Reshape"](shape=(have,)), x)
        if have < want:
            flat = self.emit(REGISTRY["Tile"](multiples=(-(-want // have),)), flat)
        if math.prod(flat.shape) > want:
            flat = self.emit(REGISTRY["StridedSlice"](begin=(0,), end=(want,), strides=(1,)), flat)
        return flat if shape == (want,) else self.emit(REGISTRY["Reshape"](shape=shape), flat)

    def squashed(self, x: Value, sample: Sample) -> Value:
        """The value moved into the range that the operator is sampled in."""
        b = self.builder
        unit = self.emit(REGISTRY["Sigmoid"](), x)
        scaled = self.emit(REGISTRY["Mul"](), unit, b.constant(float(sample.high - sample.low), FLOAT64))
        return self.emit(REGISTRY["Add"](), scaled, b.constant(float(sample.low), FLOAT64))

    def finish(self, last: Value) -> None:
        """A scalar loss, the gradients of all weights, clipped or not, and an optimizer's updates."""
        b, rng = self.builder, self.rng
        loss = self.emit(REGISTRY[rng.choice(["ReduceMean", "ReduceSum"])](axis=(0, 1)), last)
        self.graph.results = [loss, last] if rng.random() < 0.5 else [loss]
        weights = [p for p in self.graph.parameters if p.kind == "parameter" and p.trainable]
        if not weights:
            return
        grads = b.emit(Gradient(), loss, *weights)
        b.phase = "update"
        found: list[Value] = [b.emit(TupleGetItem(i), grads) for i in range(len(weights))]
        if rng.random() < 0.3:
            found = self.clipped(found)
        update = rng.choice([self.plain, self.momentum, self.adam])
        for weight, gradient in zip(weights, found, strict=True):
            update(weight, gradient)

    def clipped(self, gradients: list[Value]) -> list[Value]:
        b = self.builder
        sums: list[Value] = []
        for gradient in gradients:
            square = b.emit(REGISTRY["Square"](), gradient)
            axes = tuple(range(len(gradient.shape)))
            sums.append(b.emit(REGISTRY["ReduceSum"](axis=axes), square) if axes else square)
        total = b.emit(REGISTRY["AddN"](), *sums) if len(sums) > 1 else sums[0]
        norm = b.emit(REGISTRY["Sqrt"](), b.emit(REGISTRY["Add"](), total, b.constant(1.0, FLOAT64)))
        return [b.emit(REGISTRY["RealDiv"](), gradient, norm) for gradient in gradients]

    def plain(self, weight: Parameter, gradient: Value) -> None:
        step = self.builder.emit(REGISTRY["Mul"](), gradient, self.builder.constant(0.1, FLOAT64))
        self.builder.emit(REGISTRY["AssignSub"](), weight, step)
        self.used["AssignSub"] += 1

    def state(self, weight: Parameter, title: str) -> Parameter:
        made = self.parameter(f"{title}.{weight.name}", weight.tensor_type, 0.0, 0.5)
        made.trainable = False
        return made

    def momentum(self, weight: Parameter, gradient: Value) -> None:
        b = self.builder
        rate, share = b.constant(0.1, FLOAT64), b.constant(0.9, FLOAT64)
        b.emit(REGISTRY["ApplyMomentum"](), weight, self.state(weight, "moments"), rate, gradient, share)
        self.used["ApplyMomentum"] += 1

    def adam(self, weight: Parameter, gradient: Value) -> None:
        b = self.builder
        numbers = [b.constant(number, FLOAT64) for number in (0.9, 0.99, 0.01, 0.9, 0.99, 1e-2)]
        states = [self.state(weight, title) for title in ("moment1", "moment2")]
        b.emit(REGISTRY["Adam"](), weight, *states, *numbers, gradient)
        self.used["Adam"] += 1


def check(seed: int, names: list[str], steps: int) -> Counter[str]:
    """`steps` training steps on all ranks equal one device's; returns how often each operator was used."""
    network = WideNetwork(seed, names)
    ready = run_passes(WideNetwork(seed, names).graph, parse_passes(PASSES))
    ready.verify()
    whole, ranks = dict(network.feeds), dict(network.feeds)
    for _ in range(steps):
        expected = run_whole(WideNetwork(seed, names).graph, whole)
        found = run_on_ranks(ready, ranks)
        same(found, expected, TOLERANCE)
        changed = sorted(p.name for p in network.graph.parameters if p.kind == "parameter")
        values = len(expected) - len(changed)
        whole |= dict(zip(changed, expected[values:], strict=True))
        ranks |= dict(zip(changed, found[values:], strict=True))
    return network.used


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    load_operators()
    names = usable()
    start = time.perf_counter()
    wrong = 0
    used: Counter[str] = Counter()
    generator = random.Random(first)
    for seed in (generator.getrandbits(48) for _ in range(count)):
        try:
            used |= check(seed, names, steps)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{count} networks from seed {first} with {len(used)} operators, {wrong} differ, {seconds:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
