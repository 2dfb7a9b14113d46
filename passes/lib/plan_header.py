"""Facts in a graph's header that plans and searches write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.source_text import Malformed

# The front end hands a plan to `shard_by_plan` in a graph's header:
#     plan_file : "plan.toml"
#     plan_operators : (("Default/network-Net/MatMul-op0", "(2, 4) [0, -]", "(2, 4) [-, 1]"))
#     plan_places : (("Default/network-Net/MatMul", 1))
#     %0 = MatMul(%para1_x, %para2_w) {place: Default/network-Net/MatMul-op0}
# `plan_places` counts the operators of every cell and kind that were read: passes count their new ones from there.
# `shard_by_plan` takes all of it out of the graph.


PLAN_FILE, PLACES = "plan_file", "plan_places"
OPERATORS, RESULTS, PARAMETERS = "plan_operators", "plan_results", "plan_parameters"
RECOMPUTE, GATHER_AGAIN, LOOPS = "plan_recompute", "plan_gather_again", "plan_loops"
OFFLOADED, OFFLOADED_STATES = "plan_offload", "plan_offload_states"
KEYS = (
    PLAN_FILE, OPERATORS, RESULTS, PARAMETERS, RECOMPUTE, GATHER_AGAIN, LOOPS, OFFLOADED, OFFLOADED_STATES, PLACES,
)  # fmt: skip


@dataclass(frozen=True)
class NotedPlan:
    """A plan in a graph's header. file: its origin, for messages. places: of the operators that were read, by cell and
    kind, how many there were. The rest as in a plan file."""

    file: str
    operators: Mapping[str, tuple[Layout, ...]]
    results: Mapping[str, tuple[Layout, ...]]
    parameters: Mapping[str, Layout]
    recompute: tuple[str, ...] = ()
    gather_again: tuple[str, ...] = ()
    loops: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    places: Counter[str] = field(default_factory=Counter[str])


def note_plan(graph: Graph, plan: NotedPlan, places: Mapping[Node, str]) -> None:
    """Write a plan into a graph that was read. places: the names of the operators."""
    noted: dict[str, Any] = {
        OPERATORS: _entries(plan.operators),
        RESULTS: _entries(plan.results),
        PARAMETERS: tuple((name, str(layout)) for name, layout in plan.parameters.items()),
        RECOMPUTE: plan.recompute,
        GATHER_AGAIN: plan.gather_again,
        LOOPS: _entries(plan.loops),
        OFFLOADED: plan.offload,
        OFFLOADED_STATES: plan.offload_states,
        PLACES: tuple(kinds_of(places.values()).items()),
    }
    graph.attrs |= {PLAN_FILE: plan.file} | {key: value for key, value in noted.items() if value}
    for node, place in places.items():
        node.place = place


def noted_plan(graph: Graph) -> NotedPlan | None:
    """Return the plan that a graph carries, or None. Raise MspcError if its texts are no layouts of the graph's
    ranks."""
    if PLAN_FILE not in graph.attrs:
        return None
    said = {key: graph.attrs.get(key, ()) for key in KEYS}
    ranks = int(graph.attrs.get("ranks", 1))
    stored = {name: layouts for name, *layouts in said[PARAMETERS]}
    return NotedPlan(
        str(said[PLAN_FILE]),
        {name: _layouts(OPERATORS, name, texts, ranks) for name, *texts in said[OPERATORS]},
        {name: _layouts(RESULTS, name, texts, ranks) for name, *texts in said[RESULTS]},
        {name: layout for name, texts in stored.items() for layout in _layouts(PARAMETERS, name, texts, ranks)},
        said[RECOMPUTE],
        said[GATHER_AGAIN],
        {name: _layouts(LOOPS, name, texts, ranks) for name, *texts in said[LOOPS]},
        said[OFFLOADED],
        bool(said[OFFLOADED_STATES]),
        Counter(dict(said[PLACES])),
    )


def forget_plan(graph: Graph) -> None:
    """Take a plan out of a graph."""
    for key in KEYS:
        graph.attrs.pop(key, None)
    for each in graph.graphs():
        for node in each.nodes:
            node.place = ""


def kinds_of(places: Iterable[str]) -> Counter[str]:
    """Return how many operators of each cell and kind there are among those with these names."""
    return Counter(place.rpartition("-op")[0] for place in places)


def made_places(nodes: Iterable[Node], named: Container[Node], count: Counter[str]) -> Iterator[tuple[Node, str]]:
    """Yield (node, name) of the forward operators among some that are not `named`, which passes have put in the place
    of others: they go on counting, and `count` with them."""
    for node in nodes:
        if node.phase == "forward" and node not in named:
            kind = kind_of(node)
            yield node, f"{kind}-op{count[kind]}"
            count[kind] += 1


def kind_of(node: Node) -> str:
    """Return the cell and the kind of an operator, which its name in plans begins with."""
    return f"{node.scope or 'Default'}/{node.op.name}"


def _entries(layouts: Mapping[str, Sequence[Layout]]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, *map(str, of)) for name, of in layouts.items())


def _layouts(key: str, name: str, texts: Sequence[str], ranks: int) -> tuple[Layout, ...]:
    try:
        found = [layout for text in texts for layout in read_layouts(text)]
    except Malformed as error:
        raise MspcError(f"{key}: a layout of {name}: {error}") from None
    for layout in found:
        if not isinstance(layout, Layout) or layout.ranks != ranks:
            raise MspcError(f"{key}: {name} has the layout {layout}, which is none of {ranks} ranks")
    return tuple(found)


SHARD, FILE, PLAN = "shard()", "the strategy file", "the plan"
GIVEN = (SHARD, FILE, PLAN)
"""Those who go before all that is found."""


_KEY = "search_"
MINIMAL_MEMORY = -1
"""In place of a limit of memory: the plan that takes the least."""

MILLION = 1_000_000
"""The number of parts of the sum that a search minimises, to express a possible saving."""
OPERATIONS = 1e9
"""The number of operations of matmuls that `compute` is the cost of."""


SEARCHES = ("dynamic_programming", "recursive_programming")
"""The values of `search_mode` for which all operators are decided together."""


@dataclass(frozen=True)
class Terms:
    """Terms of a search; 0 and "" if they do not count.

    latency: the cost of a collective by itself, as bytes sent. touch: the same for a thousand bytes that operators read
    or write. compute, compute_half: the same for a billion operations of recomputed matmuls, of elements of four bytes
    and of two. memory: bytes that a plan may take on a rank, or `MINIMAL_MEMORY`. hosts: ranks of a host; network:
    the cost of a byte between hosts, in thousandths of one inside of a host, for a rank's card. mesh: the only mesh of
    layouts, as "8x4". milliseconds: the time after which it takes the best plan so far, as soon as there is one.
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
        """Return the terms in a graph's header."""
        return cls(**{f.name: attrs[_KEY + f.name] for f in fields(cls) if _KEY + f.name in attrs})

    def attributes(self) -> dict[str, Any]:
        """Return the attributes for a graph's header."""
        found = {_KEY + f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value for key, value in found.items() if value}

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the mesh that the settings name; () if they name none."""
        return tuple(map(int, self.mesh.split("x"))) if self.mesh else ()


def wants_search(graph: Graph) -> bool:
    """Return whether the layouts of all operators of a graph are to be decided on together, by its header."""
    return graph.attrs.get("mode") == "auto_parallel" and graph.attrs.get("search_mode") in SEARCHES
