"""`export` and `load`: a network as a file of its graph and its tensors, for `nn.GraphCell`.

The file is one of safetensors: the tensors are the parameters and large constants of the network, and the header has
the graph as text. MindSpore's own `.mindir` files have another format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.tensors import TensorFile
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.parser import parse
from mspc.mindspore_api import log
from mspc.mindspore_api.call_handler import backend
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.op import REGISTRY, Op

__all__ = ["export", "load"]
SUFFIX, FORMAT = ".mindir", "MINDIR"
FORMAT_KEY, GRAPH_KEY, RESULT_KEY = "mspc", "graph", "result"
"""Entries of the header: the kind of file, the text of the graph, and the value that the network returns as JSON."""
_OTHERS = "for MindSpore and other programs, load the checkpoint into the network's script there and export it there"


@dataclass(frozen=True)
class LoadedGraph:
    """Result of `load`: a graph for `nn.GraphCell`.

    graph: its operators. tensors: the values of its parameters and constants by name. result: the value that it
    returns, with `{"result": i}` for result `i` of the graph. file: its source.
    """

    graph: Graph
    tensors: Mapping[str, Any]
    result: Any
    file: str


def load(file_name: str, **kwargs: Any) -> LoadedGraph:
    """Read a file of `export`, for `nn.GraphCell`. Raise MspcError if the file is missing, damaged or MindSpore's own;
    TypeError or ValueError if an argument is of the wrong kind."""
    if not isinstance(file_name, str):
        raise ApiTypeError(f"load: file_name must be the name of a file, not {file_name!r}")
    for name in kwargs:
        raise ApiValueError(f"load: {name} is not supported")
    if not file_name.endswith(SUFFIX):
        raise ApiValueError(f"load: {file_name!r} does not end in {SUFFIX}")
    path = Path(file_name)
    try:
        file = TensorFile(path)
        if GRAPH_KEY not in file.about:
            raise ValueError("it has no graph")
        graph = _read_graph(file, path)
        tensors = {each.name: file.read(each.name) for each in graph.parameters if each.kind != "input"}
        return LoadedGraph(graph, tensors, _read_result(file, graph), file_name)
    except FileNotFoundError:
        raise MspcError(f"there is no file {shown_path(path)!r}") from None
    except OSError as error:
        raise MspcError(f"cannot read {shown_path(path)}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown_path(path)!r} is no file that mspc exported, or is damaged: {error}", notes=[
            ".mindir files of MindSpore are not read: build the network from its script, and load a checkpoint"
        ]) from None  # fmt: skip


def _read_graph(file: TensorFile, path: Path) -> Graph:
    """Return the graph in the header. Raise ValueError if a tensor is missing; MspcError if the text is damaged or an
    operator is unknown, or would write outside of the file's folder."""
    module = parse(file.about[GRAPH_KEY], REGISTRY, str(path))
    graph = module.main
    for each in graph.parameters:
        if each.kind != "input" and (each.name not in file.names or file.type(each.name) != each.type):
            raise ValueError(f"it has no tensor {each.name!r} of type {each.type}")
    nodes = [node for each in graph.graphs() for node in each.nodes]
    unknown = sorted({node.op.name for node in nodes if not isinstance(node.op, Op)})
    if unknown:
        raise MspcError(f"load: {shown_path(path)!r} has unknown operators: {', '.join(unknown)}")
    for node in nodes:
        if isinstance(node.op, Op):
            node.op = node.op.confined(path.parent)
    return graph


def _read_result(file: TensorFile, graph: Graph) -> Any:
    found = parsed_json(file.about.get(RESULT_KEY, ""))
    waiting = [found]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict) and value.get("result") not in range(len(graph.results)):
            raise ValueError(f"its result names {value!r}, and its graph has {len(graph.results)} results")
    return found


def export(net: Any, *inputs: Any, file_name: str, file_format: str, **kwargs: Any) -> None:
    """Write the computation `net(*inputs)`, on one device, to `file_name` with the suffix .mindir, for `load`. Shapes
    are those of the inputs, and parameters have their current values. MindSpore does not read this file.

    Raise TypeError or ValueError if an argument is of the wrong kind or not supported; RuntimeError if the network
    changes parameters; MspcError if the file cannot be written."""
    if not callable(net):
        raise ApiTypeError(f"export: net must be a Cell or a function, not {type(net).__name__}")
    if not isinstance(file_name, str) or not file_name:
        raise ApiTypeError(f"export: file_name must be the name of a file, not {file_name!r}")
    if file_format != FORMAT:
        raise ApiValueError(f"export: file_format must be {FORMAT!r}, not {file_format!r}", [_OTHERS])
    for name, value in kwargs.items():
        if value is not None:
            raise ApiValueError(f"export: {name} is not supported")
    for place, value in enumerate(inputs):
        _check_input(f"export: input {place}", value)
    path = Path(file_name if file_name.endswith(SUFFIX) else file_name + SUFFIX)
    backend().write_graph_file(net, inputs, path)
    log.info("export: mindspore.load of mspc reads %s; %s", path, _OTHERS)


def _check_input(what: str, value: Any) -> None:
    if isinstance(value, tuple | list):
        for place, each in enumerate(value):
            _check_input(f"{what}[{place}]", each)
    elif isinstance(value, Tensor):
        if value.declared is not None:
            raise ApiValueError(f"{what} has shape {value.shape}, and a file has the shapes of one call")
    elif not isinstance(value, bool | int | float | str | None):
        raise ApiTypeError(f"{what} must be a Tensor, a number or a tuple of them, not {type(value).__name__}")
