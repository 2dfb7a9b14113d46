"""How messages and profiles name nodes that are several."""

from __future__ import annotations

from mspc.ir.graph import Node
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.elementwise import Exp


def labelled(*parts: str) -> str:
    node = Node(Exp(), [], TensorType(FLOAT32, ()))
    node.attrs["fused"] = parts
    return node.label


def test_parts_are_named_while_they_can_be_read() -> None:
    assert labelled("Add", "Exp 'exp'") == "Exp of Add, Exp 'exp'"
    assert labelled("x" * 1000) == f"Exp of {'x' * 1000}"
    assert labelled("x" * 300, "y" * 100, "z") == f"Exp of {'x' * 300}, {'y' * 100} and 1 more"
    assert labelled(*["part"] * 1000) == f"Exp of {', '.join(['part'] * 100)} and 900 more"
