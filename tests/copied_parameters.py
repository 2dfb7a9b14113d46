"""Random graphs that read parameters in halves, and update them."""

import random

from mspc.analysis.aliasing import mark_shadow_weights
from tests.graphs import FLOAT16, FLOAT32, Graph, Node, Op, Parameter, TensorType, Value
from tests.operators import AllReduce, AssignAdd, Cast, Concat, MatMul, ReduceSum, Reshape, StridedSlice, Tanh

SHAPE = (16, 16)
_TYPE = TensorType(FLOAT32, SHAPE)


def random_copies(seed: int, marked: bool = True) -> Graph:
    """Copies of parameters, read in many ways on two streams, and updates among and behind their readers; marked: where
    they can be kept."""
    generator = random.Random(seed)
    graph = Graph("net")
    graph.parameters = [Parameter("x", _TYPE), *(Parameter(f"w{i}", _TYPE, "parameter") for i in range(6))]
    x, *weights = graph.parameters

    def add(op: Op, *inputs: Value) -> Node:
        node = Node(op, list(inputs), op.infer(*[value.tensor_type for value in inputs]))
        graph.nodes.append(node)
        return node

    made: list[Value] = [x]
    written: list[Value] = []
    halves: list[Node] = []
    for _ in range(generator.randint(5, 30)):
        kind = generator.randrange(6)
        rest = [w for w in weights if w not in written or generator.random() < 0.1]
        if kind == 0 and len(rest) > 1 and generator.random() < 0.5:
            parts = [add(Cast(FLOAT16), w) for w in generator.sample(rest, 2)]
            halves.append(add(Concat(generator.randrange(2)), *parts))
        elif kind == 0 and rest:
            halves.append(add(Cast(FLOAT16), generator.choice(rest)))
        elif kind == 1 and rest:
            written.append(generator.choice(rest))
            add(AssignAdd(), written[-1], generator.choice(made))
        elif kind < 4 and halves:
            half = generator.choice(halves)
            size = half.tensor_type.size
            if generator.random() < 0.3:
                halves.append(add(AllReduce(rank_list=(0, 1)), half))
                halves[-1].attrs["stream"] = "communication"
            elif generator.random() < 0.3:
                halves.append(add(Reshape(shape=(size,)), half))
            else:
                wide = add(Reshape(shape=(size // 16, 16)), add(Cast(FLOAT32), half))
                made.append(add(StridedSlice(begin=(0, 0), end=SHAPE, strides=(1, 1)), wide))
        else:
            made.append(add(Tanh(), add(MatMul(), generator.choice(made), generator.choice(made))))
    for w in weights:
        if w not in written and generator.random() < 0.9:
            add(AssignAdd(), w, generator.choice(made))
    graph.results = [add(ReduceSum(), generator.choice(made))]
    if marked:
        mark_shadow_weights(graph)
    return graph
