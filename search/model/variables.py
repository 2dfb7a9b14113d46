"""The decisions of a search's problem, and how operators read tensors of which something is decided."""

from __future__ import annotations

from typing import Any

from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.choices import ShardingChoice

Numbers = Any
"""Layouts by their numbers in `LayoutTable`, one for every choice."""
Source = tuple[Value, int]
"""What makes a tensor, and the tensor's place among its results."""


@dataclass(frozen=True, eq=False)
class Variable:
    """One decision: on an operator, on where a parameter is stored, on a copy of a value, or none where there is one
    choice.

    choices: of an operator. outputs: the layouts of every tensor; returned: the same without partial sums, as their
    gradients are wanted. operands, gradients: how an operator needs its operands, and how their gradients come out.
    again: for every way to store a parameter whether it is brought to its readers once more for gradients; () where it
    never is.
    """

    outputs: tuple[Numbers, ...]
    returned: tuple[Numbers, ...] = ()
    operands: tuple[Numbers, ...] = ()
    gradients: tuple[Numbers, ...] = ()
    choices: tuple[ShardingChoice, ...] = ()
    again: tuple[bool, ...] = ()

    @property
    def size(self) -> int:
        return len(self.outputs[0])


@dataclass(frozen=True, eq=False)
class Use:
    """One reading of a tensor. writes: the reader changes it, so that it must be stored as it is needed. runs: how
    often a step reads it."""

    variable: int
    needs: Numbers
    gradients: Numbers
    writes: bool = False
    runs: int = 1
