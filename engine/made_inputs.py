"""Inputs that a comparison makes up: numbers of the kind that the network takes, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc.analysis.index_ranges import index_limits
from mspc.ir.graph import Graph
from mspc.ir.types import TensorType

Array = Any
SMALL = 8
"""Integers of which nothing is known lie in [0, SMALL)."""


@dataclass(frozen=True)
class MadeInput:
    """A global array for one input. said: what its numbers are."""

    array: Array
    said: str


def made_inputs(
    graph: Graph, types: Sequence[TensorType], brought: Sequence[Array], seed: int
) -> dict[str, MadeInput]:
    """A global array for every input of `graph`, by name, in their order.

    Floats are uniform in [0, 1), booleans either. Integers that name places (of a table, classes) lie where the graph
    has places; others are drawn from those that the script brought, or are small.

    Args:
        graph: of one device. types: global, in the order of the inputs. brought: the script's own arrays in the same
            order; fewer where it brought none.
    """
    generator = np.random.default_rng(seed)
    inputs = [p for p in graph.parameters if p.kind == "input"]
    direct, computed = index_limits(graph), index_limits(graph, computed=True)
    found: dict[str, MadeInput] = {}
    for i, (parameter, type) in enumerate(zip(inputs, types, strict=True)):
        own = np.unique(brought[i]) if i < len(brought) else np.zeros(0)
        if type.dtype.is_float:
            array, said = generator.random(type.shape), "uniform in [0, 1)"
        elif not type.dtype.is_integer:
            array, said = generator.integers(0, 2, type.shape), "True or False"
        elif parameter in direct:
            limit = direct[parameter]
            array, said = _below(generator, limit, type), f"integers in [0, {limit}), places that it names"
        elif own.any():
            array, said = generator.choice(own, type.shape), "integers that the script brings"
        else:
            limit = min(SMALL, max(1, computed.get(parameter, 2 * SMALL) // 2))
            array, said = _below(generator, limit, type), f"integers in [0, {limit})"
        found[parameter.name] = MadeInput(np.asarray(array).astype(type.dtype.numpy), said)
    return found


def _below(generator: np.random.Generator, limit: int, type: TensorType) -> Array:
    """Integers in [0, limit) that the element type can hold."""
    most = np.iinfo(type.dtype.numpy).max
    return generator.integers(0, min(max(1, limit), most), type.shape)
