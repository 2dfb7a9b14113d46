"""`mspc verify`: one step on one device and the same step on N simulated ranks must give the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter as ScriptParameter
from mspc.api.common.tensor import Tensor
from mspc.commands.compile import CompileOptions, Found, find_launch
from mspc.commands.report.table import check_json, print_line, print_table, write_json
from mspc.commands.report.verdict import comparison_table, verdict
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Stage, compile_traced, trace_call
from mspc.engine.capture import Launch
from mspc.engine.compared import Row, coarsest, compare
from mspc.engine.dumps import NO_FILES
from mspc.engine.first_values import first_values
from mspc.engine.made_inputs import MadeInput, made_inputs
from mspc.engine.own_rows import alone_on_own_rows, compare_own_rows
from mspc.engine.programs import Programs, compile_for
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.passes.base import OnPass
from mspc.passes.sharding.constraints import release_constraints
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.observe import join, observe
from mspc.runtime.slices import cut, cut_parameter

Array = Any
MARK = "verify"
"""Attribute that numbers the operators before sharding, so that both compiles' values can be matched."""
UPDATE_TOLERANCE = 1e-3
"""Difference up to which an updated parameter is excused when its gradient and optimizer states agree."""


def verify_target(target: str, options: CompileOptions, seed: int) -> None:
    """Compare, print the table and the verdict, fail where anything differs by more than its tolerance.

    With the table as JSON on stdout nothing else is printed there.

    Raises:
        MspcError: the program cannot be compiled. ExecutionError: a value differs.
    """
    check_json(options.json)
    found = find_launch(target, options)
    config = Config.from_context(found.launch.context, found.ranks, str(Path(found.launch.script).parent))
    if config.mode == "hybrid_parallel":
        raise MspcError(
            "in hybrid_parallel mode the script's own collectives decide what the ranks compute, so there is no step "
            "of one device to compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    many = _compiled(found.launch, config, options.loudness.on_pass())
    if found.asked():
        _check_ranks_alike(found)
    rows, first, inputs = _compared(found.launch, many, seed)
    if options.json is not None:
        write_json([r.__dict__ | {"shape": list(r.shape), "same": r.same} for r in rows], options.json)
    if options.json != Path("-"):
        if not options.loudness.quiet:
            _show(rows, config, seed, inputs)
        print_line(verdict(rows, config.ranks, first))
    wrong = [r for r in rows if not r.same]
    if wrong:
        raise ExecutionError(
            f"{len(wrong)} of {len(rows)} values differ between one device and {config.ranks} ranks",
            notes=[f"the first operator where they part is {first.label}"] if first is not None else (),
            frames=first.frames if first is not None else (),
        )


def _check_ranks_alike(found: Found) -> None:
    """Raises MspcError where ranks that ask for their number launch different graphs."""
    first = compile_for(found.launch, found.ranks, NO_FILES, found.asked)
    if Programs(first, range(found.ranks), True, NO_FILES, found.rerun).differ:
        raise MspcError(
            "the network depends on get_rank(): the ranks run different graphs, so there is no step of one device to "
            "compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )


def _compared(launch: Launch, many: Compiled, seed: int) -> tuple[list[Row], Node | None, dict[str, MadeInput]]:
    """The compared values, the first operator that differs, and the inputs of the step."""
    config, fed, own = many.config, many.fed, many.config.feeds_own_rows
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.sharded)
    one = _compiled(_whole(launch, [f.graph_type if own else f.global_type for f in fed]), alone)
    brought: list[Tensor] = []
    describe_call(launch.args, brought)
    made = made_inputs(one.graph, [f.global_type for f in fed], [t.asnumpy() for t in brought], seed)
    data = [m.array for m in made.values()]
    weights = _weights(one)
    found = _on_ranks(many, data, weights)
    if not own:
        return *_compare(one, many, _on_ranks(one, data, weights), found), made
    inputs = [[cut(array, f.layout, rank) for array, f in zip(data, fed, strict=True)] for rank in range(config.ranks)]
    expected = alone_on_own_rows(one.graph, inputs, weights, MARK, config.gradients_mean)
    return *compare_own_rows(one, many, expected, found, MARK), made


def _whole(launch: Launch, types: Sequence[TensorType]) -> Launch:
    """The launch with global types in the places of its tensors."""
    rest = iter(types)

    def place(arg: Any) -> Any:
        if isinstance(arg, Tensor | TensorType | np.ndarray) and not isinstance(arg, ScriptParameter):
            return next(rest)
        return tuple(map(place, arg)) if isinstance(arg, tuple | list) else arg

    return replace(launch, args=tuple(map(place, launch.args)), whole=True)


def _compiled(launch: Launch, config: Config, on_pass: OnPass | None = None) -> Compiled:
    def mark(stage: Stage) -> None:
        if stage.name == "grad":
            for number, node in enumerate(stage.graph.nodes):
                node.attrs[MARK] = number
            if not config.sharded:
                release_constraints(stage.graph)

    call = trace_call(launch.target, describe_call(launch.args, []), config, launch.whole)
    return compile_traced(call, mark, on_pass)


def _weights(compiled: Compiled) -> dict[str, Array]:
    return {value.name: np.array(value.make()) for value in first_values(compiled)}


def _values(graph: Graph, rank: int, data: Sequence[Array], weights: dict[str, Array]) -> dict[Parameter, Array]:
    inputs = iter(data)
    return {
        p: np.array(cut_parameter(p, next(inputs) if p.kind == "input" else weights[p.name], rank, p.kind))
        for p in graph.parameters
    }


def _on_ranks(compiled: Compiled, data: Sequence[Array], weights: dict[str, Array]) -> list[dict[Any, Array]]:
    """What every rank computed: operators by their number, parameters by name, results by position."""

    def main(comm: LocalComm) -> dict[Any, Array]:
        graph = compiled.rank_graph(comm.rank)
        values = _values(graph, comm.rank, data, weights)
        return observe(graph, NumPyBackend(comm), values, MARK)

    return World(compiled.config.ranks).run(main)


def _compare(
    one: Compiled, many: Compiled, expected: list[dict[Any, Array]], found: list[dict[Any, Array]]
) -> tuple[list[Row], Node | None]:
    """Rows for results, gradients and parameters, and the first operator whose value differs."""
    rows: list[Row] = []
    least = coarsest(one.graph)
    for i, value in enumerate(many.graph.results):
        whole = _joined(found, ("result", i), _layout(value, many))
        rows.append(compare("output", str(i), expected[0]["result", i], whole, least))
    numbers = {node.attrs[MARK]: node for node in many.graph.nodes if MARK in node.attrs}
    first: Node | None = None
    for node in one.graph.nodes:
        number = node.attrs.get(MARK)
        other = numbers.get(number)
        if other is None or number not in expected[0]:
            continue
        try:
            whole = _joined(found, number, _layout(other, many))
        except KeyError:  # parts of it are needed nowhere
            continue
        compared = compare("operator", node.label, expected[0][number], whole, least)
        if not compared.same and first is None:
            first = node
        for name in filter(None, str(node.attrs.get("gradient_for", "")).split(",")):
            rows.append(replace(compared, kind="gradient", name=name))
    for parameter in one.graph.parameters:
        if parameter.kind == "parameter":
            mine = many.graph.parameter(parameter.name)
            whole = _joined(found, parameter.name, _layout(mine, many))
            rows.append(compare("parameter", parameter.name, expected[0][parameter.name], whole, least))
    return _excuse_updates(rows), first


def _joined(found: list[dict[Any, Array]], key: Any, layout: Layout) -> Array | None:
    """The whole value; None where the ranks' parts do not fit together. Raises KeyError where a part is missing."""
    try:
        return join(found, key, layout)
    except ValueError:
        return None


def _excuse_updates(rows: list[Row]) -> list[Row]:
    """Excuse parameters that differ a little more than their tolerance though all that their update reads agrees."""
    agreeing = {row.name for row in rows if row.kind == "gradient" and row.same}
    found: list[Row] = []
    for row in rows:
        states = [r for r in rows if r.kind == "parameter" and r.name.endswith(f".{row.name}")]
        if row.kind == "parameter" and row.name in agreeing and not row.same and row.difference <= UPDATE_TOLERANCE:
            row = replace(row, excused=all(state.same for state in states))
        found.append(row)
    return found


def _layout(value: Any, compiled: Compiled) -> Layout:
    if isinstance(value.layout, Layout):
        return value.layout
    return Layout.replicated(compiled.config.ranks, len(value.shape))


def _show(rows: list[Row], config: Config, seed: int, inputs: dict[str, MadeInput]) -> None:
    ranks = f"{config.ranks} rank{'s' if config.ranks != 1 else ''}"
    print_table(comparison_table(rows, f"one device beside {ranks}: one step, inputs from seed {seed}"))
    for name, made in inputs.items():
        print_line(f"input {name}: {made.said}")
    if config.feeds_own_rows:
        how = "means" if config.gradients_mean else "sums"
        print_line(f"every rank beside one device on the rank's own rows, with gradients that are {how} over the ranks")
