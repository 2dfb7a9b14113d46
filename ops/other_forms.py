"""An operator may have other forms, which compute the same and have another rule, so that a search has more to choose
from; and what ranks do inside of a form may differ from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class UnevenWork:
    """What ranks do inside of an operator beside even shares. busiest: how many times the mean over all ranks the one
    computes that has the most to do. operations: floating-point operations of products that it does more than the mean.
    mesh, axes: `moved_bytes` are exchanged along these axes of it. rounds:
    exchanges that follow one another."""

    busiest: float = 1.0
    operations: float = 0.0
    mesh: tuple[int, ...] = ()
    axes: Axes = ()
    rounds: int = 0


EVEN = UnevenWork()


class OtherForms:
    """The forms of an operator, of which one is itself."""

    def other_form(self, types: Sequence[TensorType], ranks: int) -> Self | None:
        """The form with another rule, for operands of these types (global), by which so many ranks may shard it, too;
        None where there is none."""
        return None

    def in_form(self, layouts: Sequence[Layout]) -> Self:
        """The form whose rule lets operands lie so."""
        return self

    def like_forward(self, forward: object) -> Self:
        """A gradient's operator in the form of the one that it differentiates."""
        return self

    def uneven(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> UnevenWork:
        """What ranks do beside even shares, for operands of these types (global) and layouts."""
        return EVEN
