"""Opaque objects of the text form, beyond mspc's own graphs: another compiler's operators, values and words.

They are read, printed and compared, but cannot be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

from mspc.ir.graph import Graph, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import LONGEST_LIST, number_of
from mspc.ir.types import OpaqueType, Type

UNKNOWN_TYPE = OpaqueType("<null>")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A bare word of the text without a meaning in mspc, such as `U` or `[const vector]`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class OpaqueOp:
    """An operator without a class: its name and its attributes from the text."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_side_effect: ClassVar[bool] = True
    mutates: ClassVar[tuple[int, ...]] = ()
    host_reads: ClassVar[tuple[int, ...]] = ()
    updates_aside: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False

    def attributes(self) -> Mapping[str, Any]:
        return self.fields

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the group of a collective, as far as the text lists them; () if it does not."""
        listed = self.fields.get("rank_list", self.fields.get("group_rank_ids"))
        if isinstance(listed, tuple) and all(isinstance(rank, int) for rank in listed):
            return listed
        text = self.fields.get("group_ranks")
        ranks = [number_of(part, LONGEST_LIST) for part in text.split("-")] if isinstance(text, str) else []
        return () if None in ranks else tuple([rank for rank in ranks if rank is not None])

    def aliased_operands(self, count: int) -> Sequence[int]:
        """Return all operands, since nothing is known of the operator."""
        return range(count)


class Literal(Value):
    """An operand that is no tensor: a number, a string, a tuple, a `Symbol` or a `GraphReference`."""

    __slots__ = ("value",)

    def __init__(self, value: Any, type: Type = UNKNOWN_TYPE) -> None:
        super().__init__(type)
        self.value = value

    def __repr__(self) -> str:
        return f"Literal({self.value!r})"


@dataclass(frozen=True, slots=True)
class GraphReference:
    """The name of a graph (`@graph`), or of a value that belongs to another graph (`$(@graph:value)`).

    at: the character of the file at which it begins, for messages.
    """

    graph: str
    value: str = ""
    at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        return f"$(@{self.graph}:{self.value})" if self.value else f"@{self.graph}"


@dataclass(slots=True)
class Module:
    """One file: its graphs, the name of the graph that runs first, and the writer's dialect.

    dialect: "" for mspc's own text; "mindspore" if every operator is opaque.
    """

    entry: str
    graphs: list[Graph]
    dialect: str = ""

    @property
    def main(self) -> Graph:
        """The graph that runs first."""
        return next(graph for graph in self.graphs if graph.name == self.entry)

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes in the header."""
        return self.main.attrs
