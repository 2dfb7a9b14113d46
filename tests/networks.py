"""Random networks with random legal strategies, built straight as graphs; for property tests.

A chain of values passes through pieces of usual networks (products with weights, biases, shared weights, branches,
gates, splits), and through operators as their samples call them: a value of the chain takes the place of an operand,
the others are weights or inputs, and what comes out goes on in the chain. So an operator with samples is here by
itself. Gradients of all weights and an optimizer's updates follow (`tests/random_updates.py`).
"""

import math
import random
from collections.abc import Sequence

import numpy as np

from docs.site.samples_on_ranks import random_strategy
from mspc.compiler.pipeline import VIEWS, shared_passes
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, Sample
from mspc.passes.lib.choices import rule_of
from tests.graphs import FLOAT64, INT32, INT64, Builder, Graph, Layout, Node, Parameter, TensorType, TupleType, Value
from tests.ops.simulate import types_of
from tests.random_updates import finish

PASSES = ",".join(name for name in shared_passes("semi_auto_parallel") if name not in VIEWS)
"""The passes that make a network ready for slicing."""
GPU_PASSES = ",".join(name for name in shared_passes("semi_auto_parallel", "GPU") if name not in VIEWS)
RANKS = (2, 2, 2, 3, 4, 4, 4, 6, 6, 8, 8, 12, 16, 24)
SEARCHES = ("", "", "", "dynamic_programming", "", "", "recursive_programming")
ROWS, COLUMNS = (8, 16, 24, 48), (8, 16, 24)
PIECES = ("matmul", "matmul", "bias", "unary", "branch", "gate", "reshape", "transpose", "split", "shared")
INDEXED = ("scan", "scan", "messages", "messages", "messages", "messages", "elements", *PIECES[1:6])
SCANS = ("CumSum", "CumProd", "CumulativeLogsumexp", "Cummax", "Cummin", "LinearRecurrence")
SUMS = ("UnsortedSegmentSum", "GatherGrad", "ScatterNd", "TensorScatterAdd", "TensorScatterAdd", "TensorScatterSub",
        "TensorScatterMax", "TensorScatterMin", "TensorScatterUpdate")  # fmt: skip
SINGULAR = frozenset({"LogMatrixDeterminant", "MatrixInverse", "Qr", "Svd"})
"""Operators that need regular matrices, which a network does not keep."""
LEFT_OUT = frozenset({"collective", "control", "fused", "optim"})
"""Rooms of operators that stand in no network, or are not grown here."""


def usable() -> tuple[str, ...]:
    """Names of the operators with a sample that is small and of types that a network here can have."""
    found: list[str] = []
    for name, op in sorted(REGISTRY.items()):
        room = op.__module__.split(".")[2]
        plain = room not in LEFT_OUT and not name.endswith("Grad") and not op.mutates and name not in SINGULAR
        if plain and any(map(_fits, op.samples)):
            found.append(name)
    return tuple(found)


def _fits(sample: Sample) -> bool:
    small = all(math.prod(shape) <= 4096 for shape in sample.shapes)
    return small and not {"Float16", "BFloat16", "Float32"} & set(sample.dtypes)


class RandomNetwork:
    """Grows a training graph; `feeds` are the values of its parameters, `names` operators that join the pieces."""

    def __init__(self, seed: int, names: Sequence[str] = (), pieces: Sequence[str] = PIECES,
                 ranks: Sequence[int] = RANKS) -> None:  # fmt: skip
        self.rng = rng = random.Random(seed)
        self.random = np.random.default_rng(seed)
        self.names, self.pieces = names, pieces
        self.ranks = rng.choice(ranks)
        self.graph = Graph(f"random_{seed}")
        mode = rng.choice(["semi_auto_parallel", "semi_auto_parallel", "auto_parallel"])
        self.graph.attrs = {"ranks": self.ranks, "mode": mode, "outputs": rng.choice(["whole", "batch"])}
        if mode == "auto_parallel" and SEARCHES[seed % len(SEARCHES)]:
            self.graph.attrs["search_mode"] = SEARCHES[seed % len(SEARCHES)]
        self.builder = Builder(self.graph)
        self.feeds: dict[str, np.ndarray] = {}
        rows, columns = rng.choice(ROWS), rng.choice(COLUMNS)
        x = self.parameter("x", TensorType(FLOAT64, (rows, columns)), -1.0, 1.0, "input")
        if rows % self.ranks == 0 and rng.random() < 0.5:
            x.layout = Layout.of((self.ranks,), [(0,), ()])
        values: list[Value] = [x]
        for _ in range(rng.randint(1, 3) if names else rng.randint(2, 6)):
            values.append(self.grow(values))
        finish(self, values[-1])

    @property
    def weights(self) -> list[Parameter]:
        """The parameters that are trained."""
        return [p for p in self.graph.parameters if p.trainable]

    def parameter(self, name: str, type: TensorType, low: float, high: float, kind: str = "parameter") -> Parameter:
        made = Parameter(name, type, kind, kind == "parameter" and type.dtype.is_float)
        self.graph.parameters.append(made)
        if kind == "input":
            made.layout = Layout.replicated(self.ranks, len(type.shape))
        self.feeds[name] = self.drawn(type, low, high)
        return made

    def drawn(self, type: TensorType, low: float, high: float) -> np.ndarray:
        """Values of a tensor in [low, high)."""
        if type.dtype.is_float:
            return self.random.uniform(low, high, type.shape).astype(type.dtype.numpy)
        low, high = (0, 2) if type.dtype.name == "Bool" else (int(low), max(int(low) + 1, math.ceil(high)))
        return self.random.integers(low, high, type.shape).astype(type.dtype.numpy)

    def weight(self, *shape: int) -> Parameter:
        """A weight that neither lets sums grow nor cancels large terms, so that rounding stays small."""
        bound = 1 / math.sqrt(max(shape))
        return self.parameter(f"w{len(self.graph.parameters)}", TensorType(FLOAT64, shape), -bound, bound)

    def op(self, name: str, *inputs: Value, **fields: object) -> Node:
        return self.emit(REGISTRY[name](**fields), *inputs)

    def emit(self, op: Op, *inputs: Value) -> Node:
        """A node, perhaps with a strategy, perhaps computed again for the gradients. One of the readers of a parameter
        has a strategy at most: others would have to cut it alike."""
        node = self.builder.emit(op, *inputs, instance=f"op{len(self.graph.nodes)}")
        rule = rule_of(node)
        if rule is not None and self.rng.random() < 0.6:
            strategy = random_strategy(op, rule, self.ranks, self.rng)
            read = {value for value in inputs if isinstance(value, Parameter)}
            if not any(read & set(other.inputs) for other in self.graph.nodes if other.in_strategy is not None):
                node.in_strategy = strategy
        if self.rng.random() < 0.15:
            node.attrs["recompute"] = "net"
        return node

    def grow(self, values: list[Value]) -> Value:
        """The chain's next value: of two dimensions, as all."""
        x = values[-1]
        if not self.names or self.rng.random() < 0.4:
            return getattr(self, self.rng.choice(self.pieces))(x, values)
        return self.sampled(self.rng.choice(self.names), x)

    # Pieces of usual networks

    def matmul(self, x: Value, values: list[Value]) -> Value:
        rows, columns = x.shape
        n = self.rng.choice([columns, rows])
        if self.rng.random() < 0.5:
            return self.op("MatMul", x, self.weight(n, columns), transpose_b=True)
        return self.op("MatMul", x, self.weight(columns, n))

    def bias(self, x: Value, values: list[Value]) -> Value:
        return self.op("Add", x, self.weight(x.shape[1]))

    def unary(self, x: Value, values: list[Value]) -> Value:
        return self.op(self.rng.choice(["ReLU", "Tanh", "Square", "Neg", "Sigmoid"]), x)

    def branch(self, x: Value, values: list[Value]) -> Value:
        others = [v for v in values if v.shape == x.shape]
        return self.op(self.rng.choice(["Add", "Sub", "Mul", "Maximum"]), x, self.rng.choice(others))

    def gate(self, x: Value, values: list[Value]) -> Value:
        reduce = self.rng.choice(["ReduceMean", "ReduceSum"])
        return self.op("Sub", x, self.op(reduce, x, keep_dims=True, axis=(self.rng.choice([0, 1]),)))

    def reshape(self, x: Value, values: list[Value]) -> Value:
        rows, columns = x.shape
        shapes = [(rows // 2, columns * 2), (rows * 2, columns // 2), (columns, rows)]
        return self.op("Reshape", x, shape=self.rng.choice([s for s in shapes if math.prod(s) == rows * columns]))

    def transpose(self, x: Value, values: list[Value]) -> Value:
        return self.op("Transpose", x, perm=(1, 0))

    def split(self, x: Value, values: list[Value]) -> Value:
        if x.shape[1] % 2:
            return self.unary(x, values)
        pair = self.op("Split", x, axis=1, output_num=2)
        left, right = (self.builder.emit(TupleGetItem(i), pair) for i in (0, 1))
        return self.op("Concat", right, self.op("Tanh", left), axis=self.rng.choice([0, 1]))

    def shared(self, x: Value, values: list[Value]) -> Value:
        fitting = [w for w in self.weights if w.shape in (x.shape, x.shape[1:])]
        return self.op("Mul", x, self.rng.choice(fitting) if fitting else self.weight(x.shape[1]))

    # Scans, and rows and elements that integers name

    def scan(self, x: Value, values: list[Value]) -> Value:
        name, axis, rng = self.rng.choice(SCANS), self.rng.choice([0, 1, -1]), self.rng
        operands = [self.op("Tanh", x)]
        if name in ("Cummax", "Cummin"):
            return self.builder.emit(TupleGetItem(0), self.op(name, *operands, axis=axis))
        if name == "LinearRecurrence":
            operands.insert(0, self.op("Sigmoid", rng.choice([v for v in values if v.shape == x.shape])))
        fields = {"exclusive": rng.random() < 0.3} if name in ("CumSum", "CumProd") else {}
        return self.op("Tanh", self.op(name, *operands, axis=axis, reverse=rng.random() < 0.5, **fields))

    def ids(self, count: int, size: int, others: str = "") -> Value:
        """Names of `size` rows. others: "negative" if some count from the end, "dropped" if some are no row."""
        rng, draw = self.rng, self.random
        ids = size * draw.random(count) ** rng.choice([1, 3, 20])
        other = {"": ids, "negative": ids - size, "dropped": draw.integers(-size, 3 * size, count)}[others]
        type = TensorType(rng.choice([INT32, INT64]), (count,))
        made = self.parameter(f"ids{len(self.graph.parameters)}", type, 0, 1, "input")
        self.feeds[made.name] = np.floor(np.where(draw.random(count) < 0.3, other, ids)).astype(type.dtype.numpy)
        return made

    def put(self, rows: Value, x: Value) -> Value:
        """Rows added up or put at places of a table of the shape of x, of zeros, or of nothing."""
        name, count, size = self.rng.choice(SUMS), rows.shape[0], x.shape[0]
        ids = self.ids(count, size, self.rng.choice(["", "dropped" if name == SUMS[0] else "negative"]))
        if name in SUMS[:2]:
            return self.op(name, rows, ids, **{"num_segments" if name == SUMS[0] else "size": size})
        places = self.op("Reshape", ids, shape=(count, 1))
        if name == "ScatterNd":
            return self.op(name, places, rows, shape=x.shape)
        return self.op(name, self.rng.choice([x, self.op("Fill", type=FLOAT64, shape=x.shape)]), places, rows)

    def messages(self, x: Value, values: list[Value]) -> Value:
        """Rows of x, none, one, fewer or more than it has, weighted by parts or not."""
        name, (size, width) = self.rng.choice(["Gather", "EmbeddingLookup", "GatherNd"]), x.shape
        count = self.rng.choice([0, 1, 17, 2 * size, 2 * size])
        ids = self.ids(count, size, self.rng.choice(["", "dropped" if name == "EmbeddingLookup" else "negative"]))
        rows: Value = self.op(name, x, self.op("Reshape", ids, shape=(count, 1)) if name == "GatherNd" else ids)
        parts = self.rng.choice([0, 1, 2, width, -1]) if count else 0
        if parts > 0:
            rows = self.op("Reshape", rows, shape=(count, parts, width // parts))
            rows = self.op("Reshape", self.op("Mul", rows, self.weight(count, parts, 1)), shape=(count, width))
        elif parts:
            score = self.op("Mul", rows, self.builder.emit(TupleGetItem(0), self.op("Cummax", rows, axis=0)))
            rows = self.op("Mul", rows, self.op("ReduceSum", score, axis=(1,), keep_dims=True))
        return self.op("Tanh", self.put(rows, x))

    def elements(self, x: Value, values: list[Value]) -> Value:
        axis, shape = self.rng.choice([0, 1]), list(x.shape)
        shape[axis] = self.rng.choice([0, 1, 5, 2 * shape[axis]])
        low, type = self.rng.choice([0, -x.shape[axis]]), TensorType(INT32, tuple(shape))
        index = self.parameter(f"ids{len(self.graph.parameters)}", type, low, x.shape[axis], "input")
        how = self.rng.choice([{}, {"adds": True}, {"combine": "maximum"}, {"combine": "minimum"}])
        updates = self.op("Sin", self.op("GatherD", x, index, dim=axis))
        return self.op("Tanh", self.op("ScatterElements", x, index, updates, axis=axis, **how))

    # Operators as their samples call them

    def sampled(self, name: str, x: Value) -> Value:
        """The operator that follows one called as in one of its samples."""
        sample = self.rng.choice([s for s in REGISTRY[name].samples if _fits(s)])
        op, types = REGISTRY[name](**sample.fields), types_of(sample)
        floats = [i for i, type in enumerate(types) if type.dtype == FLOAT64 and type.shape]
        chosen = self.rng.choice(floats) if floats else -1
        operands: list[Value] = []
        for i, type in enumerate(types):
            if i == chosen:
                operands.append(self.squashed(self.fitted(x, type.shape), sample))
                continue
            kind = "parameter" if type.dtype.is_float and self.rng.random() < 0.7 else "input"
            title = f"{'w' if kind == 'parameter' else 'i'}{len(self.graph.parameters)}"
            made = self.parameter(title, type, sample.low, sample.high, kind)
            # An update may move a weight out of a range that the operator needs.
            bounded = made.trainable and (sample.low, sample.high) != (Sample.low, Sample.high)
            operands.append(self.squashed(made, sample) if bounded else made)
        result = self.floating(self.emit(op, *operands))
        if isinstance(op.bprop, NotDifferentiable) or not sample.gradient:
            result = self.op("StopGradient", result)
        found = self.op("Tanh", self.fitted(result, x.shape))
        return found if chosen >= 0 else self.op("Add", x, found)

    def floating(self, node: Node) -> Value:
        """One of the results, as Float64."""
        found: list[Value] = [node]
        if isinstance(node.type, TupleType):
            found = [self.builder.emit(TupleGetItem(i), node) for i in range(len(node.type.elements))]
        found = [value for value in found if value.tensor_type.dtype == FLOAT64] or found
        value = self.rng.choice(found)
        return value if value.tensor_type.dtype == FLOAT64 else self.op("Cast", value, dst_type=FLOAT64)

    def fitted(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The value in another shape: its begin, repeated where that is not enough."""
        if x.shape == shape:
            return x
        have, want = math.prod(x.shape), math.prod(shape)
        flat = x if len(x.shape) == 1 else self.op("Reshape", x, shape=(have,))
        if have < want:
            flat = self.op("Tile", flat, multiples=(-(-want // have),))
        if math.prod(flat.shape) > want:
            flat = self.op("StridedSlice", flat, begin=(0,), end=(want,), strides=(1,))
        return flat if shape == (want,) else self.op("Reshape", flat, shape=shape)

    def squashed(self, x: Value, sample: Sample) -> Value:
        """The value moved into the range that the operator is sampled in."""
        constant = self.builder.constant
        scaled = self.op("Mul", self.op("Sigmoid", x), constant(float(sample.high - sample.low), FLOAT64))
        return self.op("Add", scaled, constant(float(sample.low), FLOAT64))
