"""The classes of a `.mindir` graph, as it is read and written."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass

REFERENCE = "REF::"
"""Stands before the name of a primitive, a graph or a node where a node has its operator."""
CALL, SELECT = "call", "either"
"""Operators of nodes that call a graph, their first input, and that give one of two results by a condition."""


@dataclass(frozen=True)
class MindirNode:
    """A node: its name, its operator, the names of its inputs, and the operator's attributes."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class MindirGraph:
    """A graph. name: by which others call it. inputs, outputs: names.

    parameters: (the name that nodes know, the script's name, the value). constants: values by name; without one it is
    a mark of MindSpore's for the order of effects.
    """

    name: str
    inputs: tuple[str, ...]
    parameters: tuple[tuple[str, str, np.ndarray], ...]
    constants: dict[str, Any]
    nodes: tuple[MindirNode, ...]
    outputs: tuple[str, ...]
