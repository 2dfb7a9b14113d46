"""Facts from what a user names: the folder of a compile, a text graph, a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.machine_file import H200
from mspc.commands.facts.files import dump_text, program_text
from mspc.commands.facts.graph import GraphFacts
from mspc.commands.facts.model import Facts, RankFacts, TensorFact
from mspc.compiler.plan_file import SUFFIX, read_plan
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.inside import inside
from mspc.ir.files.whole import shown_path
from mspc.ir.text.parser import parse
from mspc.ops.check_graph import check_graph
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY
from mspc.runtime.program import PROGRAM, Program, load_program

GRAPH = ".ir"


def read_facts(path: Path, machine: Machine = H200) -> Facts:
    """The facts of a compile's folder, of a graph (`.ir`, MindSpore's too) or of a plan (`.toml`).

    Args:
        path: of it. machine: times are predicted for it.

    Raises:
        MspcError: it is none of them, or cannot be read.
    """
    if os.path.isdir(path):
        return folder_facts(path, machine)
    if path.suffix == SUFFIX:
        plan = read_plan(path)
        return Facts(str(path), plan.ranks, "", {name: _texts(given) for name, given in plan.operators.items()})
    if path.suffix != GRAPH:
        what = "is no folder of a compile, no graph (.ir) and no plan (.toml)"
        raise MspcError(f"{shown_path(path)} {what if os.path.exists(path) else 'does not exist'}")
    return _graph_facts(path, machine)


def folder_facts(folder: Path, machine: Machine = H200) -> Facts:
    """The facts of a compile's folder. Ranks of one kind have equal programs but for ranks, groups and offsets: one of
    them is read for all.

    Raises:
        MspcError: it is no such folder, or damaged.
    """
    program = load_program(folder)
    if not program.execute:
        raise MspcError(f"{folder / PROGRAM} is damaged: it names no rank's graph")
    kinds: list[RankFacts] = []
    notes: list[str] = []
    tensors: dict[str, TensorFact] = {}
    for ranks in _kinds(program):
        text = program_text(program, ranks[0])
        graph = program.graph(ranks[0], text, frames=True)
        if program.edited(ranks[0], text):
            check_graph(graph)
            notes.append(f"{folder / program.execute[ranks[0]]} has been edited since it was compiled")
        read = GraphFacts(graph, False, True, machine)
        kinds.append(read.of_ranks(ranks))
        tensors = {tensor.name: tensor for tensor in read.tensors()} | tensors
    held = (*tensors.values(), *_outputs(program))
    return Facts(str(folder), program.ranks, program.mode, program.operators, held, tuple(kinds), notes=notes)


def _kinds(program: Program) -> Iterator[tuple[int, ...]]:
    """Ranks of one kind together, the lowest first. A file that may have been edited, for it is newer than the rest of
    the folder and not what was written, is of a kind of its own."""
    written = os.stat(program.folder / PROGRAM).st_mtime_ns
    found: dict[Any, list[int]] = {}
    for rank in sorted(program.execute):
        path = inside(program.folder, program.execute[rank], str(program.folder / PROGRAM))
        newer = not os.path.exists(path) or os.stat(path).st_mtime_ns > written
        own = newer and program.edited(rank, program.text(rank))
        found.setdefault(("edited", rank) if own else program.kinds.get(rank, ("rank", rank)), []).append(rank)
    return map(tuple, found.values())


def _outputs(program: Program) -> Iterator[TensorFact]:
    for place, entry in enumerate(program.outputs):
        shape = entry.get("shape")
        shown = str(tuple(cast("list[Any]", shape))) if isinstance(shape, list) else ""
        type = f"{entry.get('dtype', entry.get('type', ''))} {shown}".strip()
        yield TensorFact(f"output {place}", "output", type, "", str(entry.get("layout", "")))


def _graph_facts(path: Path, machine: Machine) -> Facts:
    load_operators()
    module = parse(dump_text(path), REGISTRY, str(path))
    graph, attrs = module.main, module.attrs
    foreign = module.dialect == "mindspore"
    if not foreign and len(module.graphs) == 1:
        check_graph(graph)
    for other in module.graphs:
        if other is not graph:
            graph.nodes += other.nodes
    own = not foreign and "rank" in attrs and len(module.graphs) == 1
    read = GraphFacts(graph, foreign, own, machine)
    ranks = None if foreign else _number(attrs, "ranks")
    kind = read.of_ranks([_number(attrs, "rank") or 0])
    return Facts(str(path), ranks, str(attrs.get("mode", "")), None, read.tensors(), (kind,), foreign)


def _number(attrs: Mapping[str, Any], key: str) -> int | None:
    value = attrs.get(key)
    return value if isinstance(value, int) else None


def _texts(layouts: Any) -> tuple[str, ...]:
    return tuple(str(layout) for layout in layouts)
