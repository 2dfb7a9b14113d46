"""Where a node of an exported program comes from: lines of the module's source, and the module's path."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from mspc.ir.diagnostics import MspcError
from mspc.ir.location import Frames
from mspc.readers.pytorch.program import OWN, ExportedNode

LIBRARIES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
"""What stands before the path of a library's file, which differs from machine to machine."""


def frames_of(node: ExportedNode) -> Frames:
    """The lines of the module that lead to a node, the innermost first, without those of PyTorch."""
    files = [(frame, shown_file(frame.file)) for frame in node.frames]
    return tuple([replace(frame, file=file) for frame, file in files if file])


@cache
def shown_file(file: str) -> str:
    """A library's file by its path among the libraries, another one by its own; "" for PyTorch's."""
    return "" if OWN.search(file) else LIBRARIES.sub("", file)


def scope_of(node: ExportedNode) -> str:
    """The module's path with the classes on it: `model-LlamaModel/layers.0-LlamaDecoderLayer`."""
    if not node.scope:
        return ""
    names: list[str] = []
    for part in node.scope.split("."):
        if part.isdigit() and names:
            names[-1] += f".{part}"
        else:
            names.append(part)
    classes = node.modules[1:]
    if len(classes) != len(names):
        return "/".join(names)
    return "/".join(f"{name}-{kind}" for name, kind in zip(names, classes, strict=True))


def of_node(error: MspcError, node: ExportedNode) -> MspcError:
    """A mistake with the kind and the module that it is about."""
    if error.message.startswith(node.target):
        return error
    where = f" of {node.scope}" if node.scope else ""
    message = f"{node.target}{where}: {error.message}"
    return MspcError(message, notes=error.notes, frames=frames_of(node), kind=error.kind)
