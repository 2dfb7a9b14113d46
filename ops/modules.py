"""This module imports all operators at once. Who needs one asks the registry for it by name, which imports that one's
module alone.
"""

from __future__ import annotations

from mspc.ops.op import REGISTRY, Op
from mspc.ops.registry import Operators, load_all


def load_operators() -> Operators[type[Op]]:
    """Import every operator module and return the registry."""
    load_all()
    return REGISTRY
