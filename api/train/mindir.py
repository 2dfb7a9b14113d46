"""Graphs in MindSpore's `.mindir` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.checkpoint.mindir_file import MindirGraph, read_mindir

__all__ = ["load"]
SUFFIX = ".mindir"


@dataclass(frozen=True)
class LoadedGraph:
    """What `load` gives: a graph for `nn.GraphCell`. file: where it comes from."""

    graph: MindirGraph
    file: str


def load(file_name: str, **kwargs: Any) -> LoadedGraph:
    """Read a graph that MindSpore has exported (`export(..., file_format="MINDIR")`), for `nn.GraphCell`.

    Raises:
        MspcError: the file is missing or damaged, or holds what is not read. TypeError, ValueError: an argument is of
            the wrong kind.
    """
    if not isinstance(file_name, str):
        raise ApiTypeError(f"load: file_name must be the name of a file, not {file_name!r}")
    for name in kwargs:
        raise ApiValueError(f"load: {name} is not supported")
    if not file_name.endswith(SUFFIX):
        raise ApiValueError(f"load: {file_name!r} does not end in {SUFFIX}")
    return LoadedGraph(read_mindir(Path(file_name)), file_name)
