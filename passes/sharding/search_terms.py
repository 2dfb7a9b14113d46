"""Reads from and writes to the header of a graph what a search reckons with beside the bytes that are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass

_KEY = "search_"
LEAST = -1
"""In place of a limit of memory: the plan that takes the least."""

MILLION = 1_000_000
"""The number of parts that the sum which a search minimises is divided into, to say what may be saved of it."""
OPERATIONS = 1e9
"""Of products: what `compute` is the cost of."""


SEARCHES = ("dynamic_programming", "recursive_programming")
"""What `search_mode` says where all operators are decided on together."""


@dataclass(frozen=True)
class Terms:
    """Terms of a search; 0 and "" where they do not count.

    latency: what a collective costs by itself, as bytes sent. touch: the same for a thousand bytes that operators read
    or write. compute, compute_half: the same for a billion operations of products that are computed again, of elements
    of four bytes and of two. memory: bytes that a plan may take on a rank, or `LEAST`. hosts: ranks of a host; network:
    what a byte between hosts costs, in thousandths of one inside of a host, for a rank's card. mesh: that layouts are
    looked for on, as "8x4". milliseconds: after which it takes the best that it has found, as soon as there is one.
    """

    latency: int = 0
    touch: int = 0
    compute: int = 0
    compute_half: int = 0
    memory: int = 0
    hosts: int = 0
    network: int = 0
    mesh: str = ""
    milliseconds: int = 0

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Terms:
        """The terms in a graph's header."""
        return cls(**{f.name: attrs[_KEY + f.name] for f in fields(cls) if _KEY + f.name in attrs})

    def attributes(self) -> dict[str, Any]:
        """What of them goes into a graph's header."""
        found = {_KEY + f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value for key, value in found.items() if value}

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the mesh that the settings name; () where they name none."""
        return tuple(map(int, self.mesh.split("x"))) if self.mesh else ()


def wants_search(graph: Graph) -> bool:
    """Whether the layouts of all operators of a graph are to be decided on together, by its header."""
    return graph.attrs.get("mode") == "auto_parallel" and graph.attrs.get("search_mode") in SEARCHES
