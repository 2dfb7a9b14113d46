"""Defines what a pass is, how its options are written (`slice_to_rank{rank=3}`) and how a list of passes runs."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, dataclass_transform

from mspc import passes
from mspc.ir.diagnostics import MspcError, all_of, did_you_mean
from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass, finish_subclass
from mspc.ir.provenance import record_provenance
from mspc.ir.temporary import temporarily
from mspc.ir.text.facts import fields_of, shown
from mspc.ir.types import TupleType
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.lib.choices import wants_search


@dataclass(frozen=True)
class Need:
    """A property of graphs.

    lacks: returns the node that breaks it, True if that is no single node, or None. wants: the need, and how the graph
    fails it; `{label}` is replaced by the node's. remedy: the way to get it.
    """

    lacks: Callable[[Graph], Node | bool | None]
    wants: str
    remedy: str

    def check(self, name: str, graph: Graph) -> None:
        """Raise MspcError if the graph lacks a need of the pass `name`."""
        found = self.lacks(graph)
        if not found:
            return
        label, frames = (found.label, found.frames) if isinstance(found, Node) else ("", ())
        message = f"pass {name} needs {self.wants.format(label=label)}"
        raise MspcError(message, notes=[self.remedy.format(name=name)], frames=frames)


def _first(breaks: Callable[[Node], bool]) -> Callable[[Graph], Node | None]:
    """Return a search for the first node that breaks a need."""
    return lambda graph: next(filter(breaks, graph.nodes), None)


GLOBAL = Need(
    lambda graph: "rank" in graph.attrs,
    "a graph of all ranks; the header of this one names its rank",
    "run {name} before slice_to_rank",
)
KNOWN = Need(
    _first(lambda node: not isinstance(node.op, Op)),
    "operators that mspc knows; no operator is called {label}",
    "`mspc ops` lists them",
)
DIFFERENTIATED = Need(
    _first(lambda node: isinstance(node.op, Gradient)),
    "gradients made of operators; {label} only asks for them",
    "run grad before {name}",
)
LOWERED = Need(
    _first(lambda node: isinstance(node.op, Redistribute)),
    "collectives; {label} is still to become some",
    "run lower_redistribution before {name}",
)
SEARCHED = Need(
    lambda graph: wants_search(graph) and "search_cost" not in graph.attrs,
    "layouts that a search has decided on; the header of this graph has search_mode, and no layouts were searched",
    "run search_sharding before {name}, or take search_mode out of the header",
)


EACH, OPENED, WHOLE = "each", "opened", "whole"

OnPass = Callable[[str, Graph, bool], None]
"""Called after every pass with its name, the graph and whether it changed; the one hook for dumps, checks and times."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Pass:
    """A step of the compiler. A subclass is a frozen dataclass, too; its fields are the pass's options.

    The name is the name of the file. A pass reads everything it needs from the graph (its header attributes, layouts,
    partial axes), so that `mspc opt` can start from any dump.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[Need, ...]] = ()
    """The needs that the manager checks."""
    regions: ClassVar[str] = EACH
    """How the pass sees graphs within the graph: it runs on each (`EACH`), on one whose regions are opened, with all
    nodes in one list (`OPENED`), or on the graph alone, and looks after its regions itself (`WHOLE`)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        finish_subclass(cls)
        cls.name = cls.__module__.rpartition(".")[2]

    def run(self, graph: Graph) -> bool:
        """Change the graph in place; True if anything changed."""
        raise NotImplementedError(self.name)

    def apply(self, graph: Graph) -> tuple[Graph, bool]:
        """(the resulting graph, changed). Passes that make a new graph override this instead of `run`."""
        return graph, self.run(graph)


def runs_anyway(node: Node) -> bool:
    """Return whether a node runs even if nobody reads its results. A collective over mesh axes is one for all ranks:
    unlike on a rank, it may go when nobody needs it."""
    return node.op.has_side_effect and not (isinstance(node.op, Collective) and node.op.over_mesh)


def live_values(
    nodes: Sequence[Node], results: Iterable[Value], runs: Callable[[Node], object] = lambda node: False
) -> set[Value]:
    """Return the results, nodes for which `runs` holds, and all values that these are computed from."""
    live = set(results)
    for node in reversed(nodes):
        if node in live or runs(node):
            live.add(node)
            live.update(node.inputs)
    return live


def rewrite_nodes(graph: Graph, visit: Callable[[Builder, Node], Value | Sequence[Value] | None]) -> bool:
    """Let nodes be replaced by the values that `visit` emits for them, and return whether there were any.

    visit: called with every node in order, after its operands were replaced; returns one value, or the results of the
    node, of which there may be several; None keeps the node.
    """
    builder = Builder(graph, [])
    read_whole = set(graph.results)
    for node in graph.nodes:
        if not isinstance(node.op, TupleGetItem):
            read_whole.update(node.inputs)
    parts: dict[Value, Sequence[Value]] = {}
    replaced: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [replaced.get(value, value) for value in node.inputs]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in parts:
            made: Value | Sequence[Value] | None = parts[node.inputs[0]][node.op.index]
        else:
            builder.provenance = f"/{node.op.name}"
            made = visit(builder, node)
        if made is None:
            builder.nodes.append(node)
        elif isinstance(made, Value):
            replaced[node] = made
        elif not isinstance(node.type, TupleType):
            replaced[node] = made[0]
        else:
            parts[node] = made
            if node in read_whole:
                replaced[node] = builder.emit(MakeTuple(), *made)
                parts[replaced[node]] = made
    graph.nodes = builder.nodes
    graph.results = [replaced.get(value, value) for value in graph.results]
    return bool(replaced or parts)


BESIDE = ("mspc.search.passes",)
"""Rooms of passes in folders that passes/ does not import: a pass is found by its name alone."""
_KINDS = {"int": "a whole number", "bool": "true or false", "str": "a word"}


@functools.cache
def _module_by_name() -> dict[str, str]:
    """Return the modules of the files of passes/ and `BESIDE` by name."""
    [home] = passes.__path__
    rooms = [f"{passes.__name__}.{m.name}" for m in pkgutil.iter_modules([home]) if m.ispkg and m.name != "lib"]
    found: dict[str, str] = {}
    for room in (*rooms, *BESIDE):
        folder = os.path.join(os.path.dirname(home), *room.split(".")[1:])
        found |= {module.name: f"{room}.{module.name}" for module in pkgutil.iter_modules([folder])}
    return found


@functools.cache
def pass_names() -> tuple[str, ...]:
    """The names of all passes, in order. It loads their modules."""
    return tuple(sorted(name for name in _module_by_name() if _pass_class(name) is not None))


def _pass_class(name: str) -> type[Pass] | None:
    """Return the pass in the file `name`, or None for a helper of passes."""
    home = _module_by_name().get(name)
    if home is None:
        return None
    found = getattr(importlib.import_module(home), "".join(word.capitalize() for word in name.split("_")), None)
    return found if isinstance(found, type) and issubclass(found, Pass) else None


def find_pass(name: str, options: dict[str, Any] | None = None) -> Pass:
    """The pass called `name` with options. Raise MspcError if there is no such pass or option."""
    found = _pass_class(name)
    if found is None:
        names = pass_names()
        notes = [*did_you_mean(name, names), f"passes are {all_of(name, names)}"]
        raise MspcError(f"there is no pass {name!r}", notes=notes, code="E0113")
    known = fields_of(found)
    for option, value in (options or {}).items():
        if option not in known:
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise MspcError(f"pass {name} has no option {option!r}; {takes}", notes=did_you_mean(option, known))
        if not known[option].fits(value):
            wanted = known[option].annotation
            raise MspcError(f"pass {name}: option {option} takes {_KINDS.get(wanted, wanted)}, not {shown(value)}")
    return found(**(options or {}))


def parse_passes(text: str) -> list[Pass]:
    """The passes of `"grad,slice_to_rank{rank=3}"`. Raise MspcError for text that names no passes."""
    passes: list[Pass] = []
    rest = text.strip()
    while rest:
        match = re.match(r"\s*(\w+)\s*(?:\{([^}]*)\})?\s*(,|$)", rest)
        if match is None:
            raise MspcError(f"cannot read the list of passes at {rest!r}; write name or name{{option=value}}")
        options: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            key, equals, value = item.partition("=")
            if not equals:
                raise MspcError(f"option {item!r} of pass {match[1]} has no value; write {item}=VALUE")
            options[key.strip()] = _option(value.strip())
        passes.append(find_pass(match[1], options))
        rest = rest[match.end() :]
    return passes


def _option(text: str) -> int | bool | str:
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


VERIFY = "MSPC_VERIFY_PASSES"
"""Environment variable: if it is set, the structure of every graph is checked after every pass; if it is "types",
the type of every node is inferred again, too, and layouts are checked. Tests set it."""


class PassManager:
    """Runs passes. Every pass of a compile, of a rank and of `mspc opt` runs here.

    on_pass: called with the name of the pass, its result, and whether it changed anything. verify: check the graph
    after every pass, as the value of `VERIFY` does; None: the environment's value.
    """

    def __init__(self, on_pass: OnPass | None = None, verify: str | None = None) -> None:
        self._on_pass = on_pass
        self._verify = os.environ.get(VERIFY, "") if verify is None else verify
        self._checked: dict[Node, tuple[object, ...]] = {}

    def apply(self, step: Pass, graph: Graph) -> tuple[Graph, bool]:
        """Return (the resulting graph, changed).

        Raise MspcError if the graph lacks a need of the pass, or the pass refuses it; AssertionError, with the name of
        the pass, if it left a broken graph.
        """
        for need in step.needs:
            need.check(step.name, graph)
        if any(node.regions for node in graph.nodes):
            result, changed = _with_regions(step, graph)
            if changed:
                _note_effects(result)
        else:
            result, changed = step.apply(graph)
        if changed:
            record_provenance(result, step.name)
        if self._verify:
            try:
                result.verify()
                if changed and self._verify == "types":
                    check_graph(result, self._checked)
            except (AssertionError, MspcError) as error:
                raise AssertionError(f"{step.name} leaves a broken graph: {error}") from None
        if self._on_pass is not None:
            self._on_pass(step.name, result, changed)
        return result, changed

    def run(self, graph: Graph, passes: Iterable[Pass]) -> Graph:
        """The graph after all of `passes`, in their order."""
        for step in passes:
            graph, _ = self.apply(step, graph)
        return graph


def _with_regions(step: Pass, graph: Graph) -> tuple[Graph, bool]:
    """Run the pass on a graph that has regions."""
    if step.regions == WHOLE:
        return step.apply(graph)
    if step.regions == OPENED:
        from mspc.passes.lib.opened_graphs import opened  # late: few graphs have regions

        with opened(graph):
            return step.apply(graph)
    changed = False
    for region in graph.graphs()[1:]:
        with temporarily(region, attrs=graph.attrs):  # passes read the header
            changed |= step.run(region)
    result, of_graph = step.apply(graph)
    return result, changed or of_graph


def _note_effects(graph: Graph) -> None:
    """Update the effects that operators with regions declare."""
    from mspc.ops.control.regions import Effects, RegionOp, with_effects  # late: few graphs have regions

    known: dict[Graph, Effects] = {}
    without: set[tuple[int, tuple[Graph, ...]]] = set()  # operators, by their ids, that have nothing to say
    for each in reversed(graph.graphs()):  # those inside come first, and change no more
        for node in each.nodes:
            if node.regions and isinstance(node.op, RegionOp) and (id(node.op), node.regions) not in without:
                told = with_effects(node.op, node.inputs, node.regions, known)
                if told is node.op and not told.mutates:
                    without.add((id(told), node.regions))
                node.op = told  # type: ignore[assignment]  # see RegionOp


def run_passes(graph: Graph, passes: Iterable[Pass], on_pass: OnPass | None = None) -> Graph:
    """Run `passes` in order and return the resulting graph."""
    return PassManager(on_pass).run(graph, passes)
