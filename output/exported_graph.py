"""Files of `export`: the graph of a network after the front end as text, in the header of a file of its tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.writing import write_synced
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.compiler.frontend.trace import Leaf, Traced
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.tensors import StoredTensor, write_tensors
from mspc.ir.graph import Parameter
from mspc.ir.text.printer import print_graph
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.train.mindir import FORMAT_KEY, GRAPH_KEY, RESULT_KEY


def write_network(target: Any, inputs: Sequence[Any], path: Path) -> None:
    """Write the computation of `target(*inputs)` on one device to a file. Raise MspcError if the network cannot be
    compiled, changes parameters, or returns something that is neither a tensor nor a plain value."""
    traced = trace_call(target, describe_call(inputs, []), Config(), unrolled=True).traced
    graph = traced.graph
    for node in (node for each in graph.graphs() for node in each.nodes):
        if node.op.mutates or node.phase != "forward":
            raise node.error(f"export: {node.label} changes parameters or needs gradients, which is not written", [
                "export the network that predicts, after set_train(False)"
            ])  # fmt: skip
    result = json.dumps(_result(traced.structure))
    about = {FORMAT_KEY: "graph", GRAPH_KEY: print_graph(graph), RESULT_KEY: result}
    held = [_stored(traced, each) for each in graph.parameters if each.kind != "input"]
    write_synced(path, lambda file: write_tensors(file, held, about))


def _stored(traced: Traced, parameter: Parameter) -> StoredTensor:
    def value() -> Any:
        if parameter.kind == "parameter":
            return traced.parameters[parameter.name].asnumpy()
        constant = traced.constants[parameter.name]
        return constant.fill(None) if isinstance(constant, InitialValue) else np.asarray(constant)

    return StoredTensor(parameter.name, parameter.tensor_type, value)


def _result(structure: Any) -> Any:
    """Return the value that the network returns, for a text of JSON: tensors are objects with the number of a result of
    the graph."""
    if isinstance(structure, Leaf):
        return {"result": structure.index}
    if isinstance(structure, tuple | list):
        return [_result(each) for each in structure]
    if isinstance(structure, bool | int | float | str | None):
        return structure
    raise MspcError(f"export: the network returns {type(structure).__name__}, which is not written")
