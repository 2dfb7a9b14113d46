"""Writing and reading of graphs in MindSpore's `.mindir` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mspc.checkpoint.mindir import MindirGraph, read_mindir
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.call_handler import backend
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

__all__ = ["export", "load"]
SUFFIX, FORMAT = ".mindir", "MINDIR"
_FORMATS = "MindSpore's own export writes AIR and ONNX: export here as MINDIR, and load that there"


@dataclass(frozen=True)
class LoadedGraph:
    """Result of `load`: a graph for `nn.GraphCell`. file: its source."""

    graph: MindirGraph
    file: str


def load(file_name: str, **kwargs: Any) -> LoadedGraph:
    """Read a graph that MindSpore has exported (`export(..., file_format="MINDIR")`), for `nn.GraphCell`. Raise
    MspcError if the file is missing or damaged, or has unknown parts; TypeError or ValueError if an argument is of the
    wrong kind."""
    if not isinstance(file_name, str):
        raise ApiTypeError(f"load: file_name must be the name of a file, not {file_name!r}")
    for name in kwargs:
        raise ApiValueError(f"load: {name} is not supported")
    if not file_name.endswith(SUFFIX):
        raise ApiValueError(f"load: {file_name!r} does not end in {SUFFIX}")
    return LoadedGraph(read_mindir(Path(file_name)), file_name)


def export(net: Any, *inputs: Any, file_name: str, file_format: str, **kwargs: Any) -> None:
    """Write the computation `net(*inputs)`, on one device, to `file_name` with the suffix .mindir, for `load` here and
    in MindSpore. Shapes are those of the inputs, and parameters have their current values. Raise TypeError or
    ValueError if an argument is of the wrong kind or not supported; RuntimeError if the network changes parameters, or
    has operators that such a file cannot represent; MspcError if the file cannot be written."""
    if not callable(net):
        raise ApiTypeError(f"export: net must be a Cell or a function, not {type(net).__name__}")
    if not isinstance(file_name, str) or not file_name:
        raise ApiTypeError(f"export: file_name must be the name of a file, not {file_name!r}")
    if file_format != FORMAT:
        raise ApiValueError(f"export: file_format must be {FORMAT!r}, not {file_format!r}", [_FORMATS])
    for name, value in kwargs.items():
        if value is not None:
            raise ApiValueError(f"export: {name} is not supported")
    for place, value in enumerate(inputs):
        _check_input(f"export: input {place}", value)
    path = Path(file_name if file_name.endswith(SUFFIX) else file_name + SUFFIX)
    backend().write_mindir(net, inputs, path)


def _check_input(what: str, value: Any) -> None:
    if isinstance(value, tuple | list):
        for place, each in enumerate(value):
            _check_input(f"{what}[{place}]", each)
    elif isinstance(value, Tensor):
        if value.declared is not None:
            raise ApiValueError(f"{what} has shape {value.shape}, and a file has the shapes of one call")
    elif not isinstance(value, bool | int | float | str | None):
        raise ApiTypeError(f"{what} must be a Tensor, a number or a tuple of them, not {type(value).__name__}")
