"""Graphs for the tests of the text form: one by hand that shows every part of it, and random ones."""

from __future__ import annotations  # as operators have it, whose fields name their types

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.opaque import OpaqueOp, Symbol
from mspc.ir.text.facts import HEADER, NODE
from tests.graphs import BOOL, DTYPES, FLOAT32, INT32, DType, Layout, Location, NamedLayout, TensorType, TupleType
from tests.texts import text_of


class Operator:
    """The parts of an operator that the graph needs, without the registry of the real ones."""

    has_side_effect = False

    @property
    def name(self) -> str:
        return type(self).__name__

    def attributes(self) -> Mapping[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Product(Operator):
    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True)
class Total(Operator):
    axis: int | tuple[int, ...] | None = None
    epsilon: float = 0.0
    dtype: DType = FLOAT32
    mode: str = "sum"

    def __post_init__(self) -> None:
        if self.mode not in ("sum", "mean"):
            raise ValueError(f"mode {self.mode}")


@dataclass(frozen=True)
class Pair(Operator):
    pass


OPERATORS = {cls.__name__: cls for cls in (Product, Total, Pair)}


def small_graph() -> Graph:
    """Two operators of a network on 8 ranks, with everything that the text can say about them."""
    graph = Graph("net")
    graph.attrs = {"mode": "semi_auto_parallel", "ranks": 8}
    x = Parameter("x", TensorType(FLOAT32, (8, 32)), layout=Layout.from_strategy((2, 1), 8))
    x.global_type = TensorType(FLOAT32, (16, 32))
    w = Parameter("net.w", TensorType(FLOAT32, (32, 16)), "parameter", True)
    table = Parameter("table", TensorType(INT32, ()), "constant")
    table.attrs = {"note": 'quotes " and\nlines'}
    source = Location("net.py", 45, 15, 41, "        out = self.matmul(x, self.w)")
    caller = Location("net.py", 60, text="    return self.loss(self.net(x), y)")
    product = Node(Product(), [x, w], TensorType(FLOAT32, (8, 16)), "out", "matmul", "Default/network-Net")
    product.frames = (source, caller)
    product.in_strategy = ((2, 4), (4, 1))
    product.strategy = ((2, 4), (4, 1))
    product.in_layouts = (Layout.of((2, 4), ((0,), (1,))), Layout.of((2, 4), ((1,), ())))
    product.layout = Layout.of((2, 4), ((0,), ()), (1,))
    half = Constant(0.5, FLOAT32)
    pair = Node(Pair(), [product, half], TupleType((product.tensor_type, half.tensor_type)), scope="Default")
    pair.layout = (product.layout, Layout.replicated(8, 0))
    pair.frames = product.frames
    total = Node(Total((0, 1), 1e-5), [product], TensorType(FLOAT32, ()), phase="backward")
    total.in_strategy = ((8, 1),)
    total.forward, total.forward_input = product, 0
    total.attrs = {"reason": "x needs (8) [-]", "ranks": tuple(range(0, 4096, 4))}
    graph.parameters = [x, w, table]
    graph.nodes = [product, pair, total]
    graph.results = [pair, total]
    graph.returns_tuple = True
    return graph


SMALL_TEXT = text_of(Path(__file__).with_name("small.ir"), "small")

# Random graphs ------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)
source_lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
names = st.one_of(
    st.sampled_from(["", "w", "net.w", "blocks.0.l0", "a b", 'q"{}', "ü", "subgraph attr", "[CNode]5"]), texts
)
floats = st.floats(allow_nan=True, allow_infinity=True)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(list(DTYPES.values()))
tensor_types = st.builds(TensorType, dtypes, shapes)


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> Layout:
    mesh = tuple(draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3)))
    dims: list[list[int]] = [[] for _ in range(rank)]
    partial: list[int] = []
    for axis in draw(st.permutations(range(len(mesh)))):
        place = draw(st.integers(-2, rank - 1))
        if place >= 0:
            dims[place].append(axis)
        elif place == -2:
            partial.append(axis)
    return Layout.of(mesh, dims, partial, draw(st.sampled_from(["sum", "max"])))


named_layouts = st.just(NamedLayout((2, 4), ("dp", "mp"), (1, (0, 1), -1)))
attribute_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), floats, texts, dtypes, layouts(2), tensor_types,
        named_layouts,
        st.builds(Symbol, st.sampled_from(["U", "a.b", "[x] y"])),
        st.integers(60, 70).map(lambda n: tuple(range(3, 3 + 2 * n, 2))),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)  # fmt: skip
attributes = st.dictionaries(st.one_of(st.sampled_from(["axis", "op"]), texts), attribute_values, max_size=3)
locations = st.builds(
    Location, st.sampled_from(["net.py", "nn/loss.py"]), st.integers(1, 99), st.integers(0, 9),
    st.integers(0, 9), source_lines,
)  # fmt: skip


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    tensor = draw(tensor_types)
    raw = draw(st.binary(min_size=tensor.nbytes, max_size=tensor.nbytes))
    if tensor.dtype is BOOL:
        raw = bytes(b & 1 for b in raw)
    return Constant(np.frombuffer(raw, tensor.dtype.numpy).reshape(tensor.shape).copy())


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """A graph whose nodes run others, some of them together."""
    made = draw(st.lists(graphs(("input",)), min_size=2, max_size=5, unique_by=lambda graph: graph.name))
    made[-1].parameters += [Parameter("kept", TensorType(FLOAT32, ()), "parameter")]
    for number, graph in enumerate(made):
        for node in graph.nodes:
            node.regions = tuple(draw(st.lists(st.sampled_from(made[:number]), max_size=2))) if number else ()
            others = [other for one in node.regions for other in one.nodes]
            if others and draw(st.booleans()):
                node.forward = draw(st.sampled_from(others))
                node.forward_input = draw(st.integers(-1, len(node.forward.inputs) - 1))
    return made[-1]


@st.composite
def graphs(draw: st.DrawFn, kinds: Sequence[str] = ("input", "parameter", "constant")) -> Graph:
    graph = Graph(draw(names))
    found = draw(st.dictionaries(names, attribute_values, max_size=3))
    graph.attrs = {k: v for k, v in found.items() if k not in HEADER}  # those are of certain kinds
    for name in draw(st.lists(names, unique=True, max_size=3)):
        kind = draw(st.sampled_from(kinds))
        parameter = Parameter(name, draw(tensor_types), kind, draw(st.booleans()))
        parameter.attrs = draw(attributes)
        if draw(st.booleans()):
            parameter.layout = draw(layouts(parameter.tensor_type.rank))
            parameter.global_type = draw(tensor_types)
        graph.parameters.append(parameter)
    for _ in range(draw(st.integers(0, 4))):
        graph.nodes.append(draw(nodes([*graph.parameters, *graph.nodes])))
    values: list[Value] = [*graph.parameters, *graph.nodes]
    if values:
        graph.returns_tuple = draw(st.booleans())
        last = 3 if graph.returns_tuple else 1
        graph.results = draw(st.lists(st.sampled_from(values), max_size=last))
    return graph


@st.composite
def nodes(draw: st.DrawFn, values: list[Value]) -> Node:
    operands = st.one_of(st.sampled_from(values), constants()) if values else constants()
    inputs = draw(st.lists(operands, max_size=3))
    type = draw(st.one_of(tensor_types, st.lists(tensor_types, max_size=3).map(tuple).map(TupleType)))
    name = draw(st.sampled_from(["Gelu", "X1"]))
    node = Node(OpaqueOp(name, draw(attributes)), inputs, type, draw(names), draw(names), draw(names))
    node.frames = tuple(draw(st.lists(locations, max_size=2)))
    node.phase = draw(st.sampled_from(["forward", "backward", "update"]))
    node.attrs = draw(attributes.map(lambda found: {k: v for k, v in found.items() if k not in (*NODE, "phase")}))
    ints = st.lists(st.integers(1, 8), max_size=3).map(tuple)
    strategies = st.one_of(st.none(), st.lists(st.one_of(ints, named_layouts), max_size=2).map(tuple))
    node.in_strategy, node.out_strategy = draw(strategies), draw(strategies)
    node.strategy = draw(st.one_of(st.none(), st.lists(ints, max_size=2).map(tuple)))
    if draw(st.booleans()):
        node.in_layouts = tuple(draw(layouts(v.type.rank)) if isinstance(v.type, TensorType) else None for v in inputs)
        ranks = [t.rank for t in ((type,) if isinstance(type, TensorType) else type.elements)]
        found = tuple(draw(layouts(rank)) for rank in ranks)
        node.layout = found[0] if isinstance(type, TensorType) else found
    earlier = [v for v in values if isinstance(v, Node)]
    if earlier and draw(st.booleans()):
        node.forward = draw(st.sampled_from(earlier))
        node.forward_input = draw(st.integers(-1, len(node.forward.inputs) - 1))
    return node
