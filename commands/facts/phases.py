"""This module says which part of a step a node belongs to."""

from __future__ import annotations

from mspc.ir.graph import Node
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.facts import PHASES

FORWARD, BACKWARD, UPDATE = PHASES
GRADIENTS, OPTIMIZER = "Gradients/", "/optimizer-"
"""What begins the scopes of gradients, MindSpore's too, and what is in those of updates in MindSpore's dumps."""


def phase_of(node: Node) -> str:
    """The phase that a node says; of MindSpore's nodes, which say none, the one that the scope tells."""
    if not isinstance(node.op, OpaqueOp) or node.phase != FORWARD:
        return node.phase
    if node.scope.startswith(GRADIENTS):
        return BACKWARD
    return UPDATE if OPTIMIZER in node.scope else FORWARD
