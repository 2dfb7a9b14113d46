"""First values of what the small program stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import TensorType
from mspc.ops.control.regions import While
from mspc.verify.scale.small_programs import thinned

Array = Any


def first_weights(
    one: Graph, small: Graph, values: Sequence[Any], seed: int
) -> dict[str, Array]:
    """First values for the small program: what is trained and what optimizers store are random numbers, so that none
    stands for another; counters and numbers are the script's own. All are where values decide how often a loop turns.

    values: the program's first values (`output.first_values`).
    """
    own = any(isinstance(node.op, While) for each in one.graphs() for node in each.nodes)
    found: dict[str, Array] = {}
    by_name = {value.name: value for value in values}
    for number, (real, parameter) in enumerate(zip(one.parameters, small.parameters, strict=True)):
        if parameter.kind == "input":
            continue
        assert isinstance(parameter.type, TensorType)
        found[parameter.name] = _first(
            real, parameter, by_name[parameter.name], None if own else np.random.default_rng([seed, number])
        )
    return found


def _first(real: Parameter, parameter: Parameter, value: Any, generator: np.random.Generator | None) -> Array:
    assert isinstance(parameter.type, TensorType)
    type = parameter.type
    if generator is not None and parameter.kind == "parameter" and type.dtype.is_float and type.shape:
        if parameter.trainable:
            return generator.uniform(-0.5, 0.5, type.shape) + (1.0 if len(type.shape) == 1 else 0.0)
        return generator.uniform(0.1, 0.2, type.shape)
    array = np.asarray(value.make())
    return thinned(array, type.shape).astype(type.dtype.numpy)
