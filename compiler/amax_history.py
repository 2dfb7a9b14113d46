"""The parameter of delayed scaling, with the largest magnitudes of the tensors that steps before have quantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.compiler.frontend.trace import Traced
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.nn.cell import Cell
from mspc.passes.autodiff.quantize_products import HISTORY, STEPS, TENSORS, linear_layers


def add_history(network: Any, traced: Traced) -> None:
    """Give a traced network the parameter, which its cell keeps for later calls and checkpoints. Raise MspcError if it
    is no cell."""
    graph = traced.graph
    count = TENSORS * len(linear_layers(graph))
    if not count:
        return
    if not isinstance(network, Cell):
        raise MspcError("fp8_recipe='delayed' remembers magnitudes in a cell, and a function is called",
                        notes=["call a Cell, or set fp8_recipe='tensorwise'"])  # fmt: skip
    shape = STEPS, count
    held = getattr(network, HISTORY, None)
    if held is None or tuple(held.shape) != shape:
        held = Parameter(np.zeros(shape, np.float32), HISTORY, requires_grad=False)
        setattr(network, HISTORY, held)
    if HISTORY not in traced.parameters:
        traced.parameters[HISTORY] = held
        graph.parameters.append(GraphParameter(HISTORY, TensorType(FLOAT32, shape), "parameter"))
