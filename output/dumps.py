"""Makes the contents of a compile's files: a text per stage, `program.json`. `folder` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mspc.compiler.driver import Compiled, DumpPoint
from mspc.ir.files.parsing import Written, indented
from mspc.ir.graph import Graph, element_layouts
from mspc.ir.types import Type
from mspc.output.first_values import FirstValue
from mspc.plans.files.plan_file import PlanFile
from mspc.runtime.program import FORMAT, Settings

LAST = "execute"
MAIN_STAGES = ("frontend", "step_parallel_begin", "slice_to_rank", LAST)
NO_FILES = -1
"""A level below all: nothing is stored of a stage."""

File = tuple[str, bytes]


class StageFiles:
    """Collects the files of the stages that a level asks for; pass it as `on_stage`.

    level: 0 the last stage, 1 the main ones, 2 all, 3 all with drawings.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self.files: list[File] = []
        """(name without counter, content)."""

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """The names of the passes whose stages are stored; None: all."""
        return {NO_FILES: (), 0: (LAST,), 1: MAIN_STAGES}.get(self.level)

    def __call__(self, stage: DumpPoint) -> None:
        if self.wanted is None or stage.name in self.wanted:
            self._keep(stage)

    def _keep(self, stage: DumpPoint) -> None:
        changed = "yes" if stage.changed else "no"
        header = f"# after: {stage.name}, previous: {stage.previous or 'none'}, changed: {changed}\n"
        self.files.append((f"{stage.file}.ir", (header + stage.text()).encode()))
        if self.level >= 3:
            from mspc.ir.export import to_dot

            self.files.append((f"{stage.file}.dot", to_dot(stage.graph).encode()))


def numbered(rank: int, files: Iterable[File]) -> Iterable[File]:
    """The files under the rank's folder, with a counter that a stage's text and drawing share."""
    counter = -1
    for name, content in files:
        stem, dot, ending = name.rpartition(".")
        counter += ending == "ir"
        yield f"rank_{rank}/{stem}_{counter:04}{dot}{ending}", content


def is_execute(name: str) -> bool:
    return f"_{LAST}_" in name and name.endswith(".ir")


def program(
    compiled: Compiled,
    execute: dict[int, str],
    digests: dict[str, str],
    settings: Settings,
    values: Iterable[FirstValue],
    network: str = "",
    kinds: Mapping[int, int] | None = None,
) -> str:
    """The text of `program.json`.

    execute: the file of every rank that was written. digests: SHA-256 of these files. settings: of the script.
    values: the first values of the parameters and constants; those without a description are in the weights.
    network: the text of the graph as it was read; "" where one device cannot be compared with the ranks. kinds: a
    number for every rank, the same for those with equal programs.
    """
    graph = compiled.graph
    set_by_script = settings.entry()
    content = {
        "format": FORMAT,
        "compile_id": graph.attrs["compile_id"],
        "ranks": compiled.config.all_ranks,
        "mode": compiled.config.mode,
        "training": any(node.phase == "update" for each in graph.graphs() for node in each.nodes),
        **({"settings": set_by_script} if set_by_script else {}),
        "execute": {str(rank): name for rank, name in execute.items()},
        "digests": digests,
        "kinds": {str(rank): kind for rank, kind in (kinds or {}).items()},
        "inputs": [
            {"name": p.name, **_typed(fed.global_type), "layout": str(fed.layout)}
            for p, fed in zip(compiled.inputs, compiled.fed, strict=True)
        ],
        "outputs": _outputs(graph),
        "parameters": _parameters(graph, values),
        **_plan(compiled.strategies.plan(compiled.config.ranks)),
        **({"network": network} if network else {}),
    }
    return indented(content) + "\n"


def _parameters(graph: Graph, values: Iterable[FirstValue]) -> list[Written]:
    """What is said of every parameter and constant, in the lines that it has below `parameters`. Of thousands nearly
    all differ in their names and random numbers alone."""
    made = {value.name: value.description for value in values if value.description is not None}
    line = "\n" + " " * 3
    shared: dict[Any, str] = {}
    found: list[Written] = []
    for p in graph.parameters:
        if p.kind == "input":
            continue
        key = p.kind, id(p.global_type or p.type), id(p.layout)
        rest = shared.get(key)
        if rest is None:
            facts = {"kind": p.kind, **_typed(p.global_type or p.type), "layout": str(p.layout or "")}
            rest = shared[key] = indented(facts, line[:-1])[1 : -len(line)]
        initial = f',{line}"initial": {indented(made[p.name].entry(), line)}' if p.name in made else ""
        found.append(Written(f'{{{line}"name": {indented(p.name)},{rest}{initial}{line[:-1]}}}'))
    return found


def _plan(plan: PlanFile) -> dict[str, Any]:
    """What the compile decided on, as a plan has it: how the operands of every operator are sharded, and the rest."""
    if not plan.operators:
        return {}
    results = {name: [str(layout) for layout in layouts] for name, layouts in plan.results.items()}
    stored = {name: str(layout) for name, layout in plan.parameters.items()}
    return {
        "operators": {name: [str(layout) for layout in layouts] for name, layouts in plan.operators.items()},
        **({"results": results} if results else {}),
        **({"stored": stored} if stored else {}),
        **({"gather_again": list(plan.gather_again)} if plan.gather_again else {}),
        **({"recompute": list(plan.recompute)} if plan.recompute else {}),
        **({"offload": list(plan.on_host)} if plan.on_host else {}),
    }


def _outputs(graph: Graph) -> list[dict[str, Any]]:
    layouts = ["; ".join(map(str, element_layouts(value.layout))) for value in graph.results]
    return [{**_typed(v.type), "layout": layout} for v, layout in zip(graph.results, layouts, strict=True)]


def _typed(type: Type) -> dict[str, Any]:
    shape = getattr(type, "shape", None)
    if shape is None:
        return {"type": str(type)}
    return {"dtype": str(getattr(type, "dtype", "")), "shape": list(shape)}
