"""Makes up inputs for a comparison: numbers of the kind that the network takes, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.analysis.integer_ranges import distributions, index_limits
from mspc.ir.graph import Constant, Graph, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, TensorType
from mspc.ops.math.arithmetic import Equal, Maximum, Minimum, NotEqual
from mspc.ops.tensor.embedding import OneHot
from mspc.ops.tensor.reshape import Cast

Array = Any
SMALL = 8
"""Integers of which nothing is known lie in [0, SMALL)."""


RANGES = ((-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0))
"""Ranges of floats, step by step: errors for numbers of one sign alone are hidden among both."""
POSITIVE = ((0.0, 1.0),)
"""The same for a network that computes no numbers from negative ones, as one that takes a logarithm."""


@dataclass(frozen=True)
class MadeInput:
    """Global arrays for one input, one for each step. description: a description of their numbers."""

    arrays: tuple[Array, ...]
    description: str


def made_inputs(
    graph: Graph, types: Sequence[TensorType], brought: Sequence[Array], seed: int, steps: int, positive: bool = False,
    hidden: bool = False,
) -> dict[str, MadeInput]:
    """Make global arrays for every input of `graph`, by name, in their order.

    Floats are uniform, of both signs and of either (`positive`: in [0, 1)), booleans either. Integers that name places
    (of a table, classes) are within the graph's sizes; others are sampled from the script's own, or are small; masks
    never hide the first place of a row. Operands that an operator reads as distributions are distributions.

    graph: of one device. types: global, in the order of the inputs. brought: the script's own arrays in the same order,
    fewer if it brought none. hidden: some labels are those that the graph ignores, and in the second step some rows of
    masks are all of one kind. Not every network stays finite then.
    """
    made = [_made(graph, types, brought, np.random.default_rng([seed, step]), step, positive) for step in range(steps)]
    if hidden:
        _hide(graph, made, seed)
    return {
        name: MadeInput(tuple(step[name][0] for step in made), ", then ".join(dict.fromkeys(s[name][1] for s in made)))
        for name in (made[0] if made else {})
    }


def _made(
    graph: Graph, types: Sequence[TensorType], brought: Sequence[Array], generator: np.random.Generator, step: int,
    positive: bool,
) -> dict[str, tuple[Array, str]]:  # fmt: skip
    """Make for every input the array of one step, and a description of it."""
    ranges = POSITIVE if positive else RANGES
    low, high = ranges[step % len(ranges)]
    inputs = [p for p in graph.parameters if p.kind == "input"]
    direct, computed = index_limits(graph), index_limits(graph, computed=True)
    shares, truths, clamped = distributions(graph), read_as_truths(graph), read_clamped(graph)
    found: dict[str, tuple[Array, str]] = {}
    for i, (parameter, type) in enumerate(zip(inputs, types, strict=True)):
        own = np.unique(brought[i]) if i < len(brought) else np.zeros(0)
        if parameter in shares:
            array = np.exp(generator.uniform(-1, 1, type.shape))
            array, description = array / array.sum(-1, keepdims=True), "rows that sum to 1"
        elif type.dtype.is_float:
            array, description = generator.uniform(low, high, type.shape), f"uniform in [{low:g}, {high:g})"
        elif type.dtype.is_complex:
            array = generator.uniform(low, high, type.shape) + 1j * generator.uniform(low, high, type.shape)
            description = f"complex, both parts uniform in [{low:g}, {high:g})"
        elif not type.dtype.is_integer:
            array, description = generator.integers(0, 2, type.shape), "True or False"
        elif parameter in direct:
            limit = direct[parameter]
            array, description = _below(generator, limit, type), f"integers in [0, {limit}), positions of rows"
        elif parameter in truths:
            array, description = generator.integers(0, 2, type.shape), "0 or 1, in every row 1 first"
            array[..., :1] = 1
        elif step and parameter in clamped:
            limit = max(1, computed.get(parameter, SMALL))
            array = generator.integers(limit, 2 * limit, type.shape)
            if type.dtype.kind == "i" and generator.integers(0, 2):
                array = limit - 1 - array
            description = f"beyond the ends of [0, {limit}), to which the network moves it"
        elif own.any():
            array, description = generator.choice(own, type.shape), "integers that the script brings"
        else:
            limit = min(SMALL, max(1, computed.get(parameter, 2 * SMALL) // 2))
            array, description = _below(generator, limit, type), f"integers in [0, {limit})"
        found[parameter.name] = np.asarray(array).astype(type.dtype.numpy), description
    return found


def _hide(graph: Graph, made: list[dict[str, tuple[Array, str]]], seed: int) -> None:
    """Ignore a quarter of the labels if the graph ignores some, and make rows of masks equal in the second step: in the
    first one finite differences would not see gradients below the number that hides a whole row."""
    ignored, truths = ignored_labels(graph), read_as_truths(graph)
    for parameter in (p for p in graph.parameters if p.kind == "input" and p.name in made[0]):
        for step, arrays in enumerate(made):
            array, description = arrays[parameter.name]
            if parameter in ignored and array.size > 1:
                flat, first = array.reshape(-1), np.random.default_rng([seed, step, 1]).integers(0, 4)
                flat[first::4] = ignored[parameter]
                arrays[parameter.name] = array, f"{description}, every fourth {ignored[parameter]}, which is ignored"
            elif step == 1 and array.ndim > 1 and (array.dtype == bool or parameter in truths):
                rows = array.reshape(-1, array.shape[-1])
                rows[0], rows[1:2] = False, True
                arrays[parameter.name] = array, f"{description} with rows of one kind"


def ignored_labels(graph: Graph) -> dict[Value, int]:
    """Return the inputs that hold labels of which the graph ignores one number, with that number: it compares them with
    one below 0, and no other operator needs a class from 0 on."""
    shown: dict[Value, Value] = {p: p for p in graph.parameters if p.kind == "input" and p.tensor_type.dtype.is_integer}
    asked: dict[Value, set[int]] = {}
    refused: set[Value] = set()
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        integers = isinstance(node.type, TensorType) and node.type.dtype.is_integer
        if source in shown and integers and (node.op.is_view or isinstance(node.op, Cast)):
            shown[node] = shown[source]
            continue
        types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
        limits = node.op.index_limits(*types) if len(types) == len(node.inputs) else {}
        for place, value in enumerate(node.inputs):
            if value not in shown:
                continue
            others = [v for v in node.inputs if isinstance(v, Constant) and v.value.size == 1]
            if isinstance(node.op, OneHot):
                asked.setdefault(shown[value], set()).update({node.op.ignored} if node.op.classes else ())
            elif isinstance(node.op, Equal | NotEqual) and others:
                asked.setdefault(shown[value], set()).add(int(others[0].value.item()))
            elif place in limits or node.regions:
                refused.add(shown[value])
    found = {value: numbers.pop() for value, numbers in asked.items() if len(numbers) == 1 and value not in refused}
    return {value: number for value, number in found.items() if number < 0}


def read_clamped(graph: Graph) -> set[Value]:
    """Return the integers, as starts of slices, that the network moves between two ends before it reads a place by
    them."""
    inputs = [p for p in graph.parameters if p.kind == "input" and p.tensor_type.dtype.is_integer]
    held: dict[Value, set[Value]] = {p: {p} for p in inputs if p.tensor_type.size == 1}
    clamped, refused = set[Value](), set[Value]()
    for node in graph.nodes:
        own = set[Value]().union(*(held.get(value, ()) for value in node.inputs))
        types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
        if own and isinstance(node.op, Maximum | Minimum):
            clamped |= own
        elif own and (node.regions or len(types) < len(node.inputs) or node.op.index_limits(*types)):
            refused |= own
        elif own and isinstance(node.type, TensorType) and node.type.size == 1:
            held[node] = own
        else:
            refused |= own
    return clamped - refused


def read_as_truths(graph: Graph) -> set[Value]:
    """Return the inputs that the network only compares with 0, as masks. If a whole row is hidden, the large number
    added to hide it swallows the values, and no difference shows a gradient."""
    found: dict[Value, bool] = {}
    shown: dict[Value, Value] = {p: p for p in graph.parameters if p.kind == "input" and p.tensor_type.shape}
    for node in graph.nodes:
        if node.op.is_view and len(node.inputs) == 1 and node.inputs[0] in shown:
            shown[node] = shown[node.inputs[0]]
            continue
        asks = isinstance(node.op, Cast) and node.op.dst_type == BOOL
        for value in node.inputs:
            if value in shown:
                found[shown[value]] = asks and found.get(shown[value], True)
    return {value for value, asks in found.items() if asks and value not in graph.results}


def _below(generator: np.random.Generator, limit: int, type: TensorType) -> Array:
    """Return integers in [0, limit) that the element type can hold."""
    most = np.iinfo(type.dtype.numpy).max
    return generator.integers(0, min(max(1, limit), most), type.shape)
